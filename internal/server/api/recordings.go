package api

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Recordings records terminals and desktops.
type Recordings interface {
	Start(ctx context.Context, ref string, by viewing.StreamSession, n viewing.NewRecording) (viewing.Recording, error)
	// Stop ends a recording and waits until it is stored.
	Stop(ctx context.Context, id string) (viewing.Recording, error)
	Get(ctx context.Context, id string) (viewing.Recording, error)
	List(ctx context.Context, q viewing.RecordingQuery) (page []viewing.Recording, next string, err error)
	// Fetch opens the file of a recording. The caller closes it.
	Fetch(ctx context.Context, id string) (io.ReadCloser, viewing.Recording, error)
	Remove(ctx context.Context, id string) error
}

type recordingInput struct {
	SandboxRef
	Body viewing.NewRecording
}

type recordingOutput struct{ Body viewing.Recording }

// RecordingRef names a recording.
type RecordingRef struct {
	ID string `path:"id" maxLength:"64" doc:"id of the recording"`
}

type recordingListInput struct {
	Sandbox string `query:"sandbox" maxLength:"128" doc:"only those of a sandbox, by its name or id, even if it is gone"`
	Session string `query:"session" maxLength:"128" doc:"only those of a session, by its name"`
	Cursor  string `query:"cursor" maxLength:"256" doc:"cursor that was returned with the page before"`
	Limit   int    `query:"limit" minimum:"0" maximum:"1000" doc:"maximum number of recordings"`
}

type recordingListOutput struct {
	Body struct {
		Recordings []viewing.Recording `json:"recordings" doc:"newest first"`
		Next       string              `json:"next,omitempty" doc:"the cursor of the next page; empty at the end"`
	}
}

func (a *API) recordings() {
	const tag, base = "Recordings", "/v1/recordings"
	start := sometimes(operation("startRecording", http.MethodPost, "/v1/sandboxes/{ref}/recordings", tag, "Record a terminal or the desktop of a sandbox", ops.SandboxFind, ops.RecordingStart), ops.ComputerAct)
	start.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, start, func(ctx context.Context, in *recordingInput) (*recordingOutput, error) {
		r, err := a.services.Recordings.Start(ctx, in.Ref, routedBy(ctx), in.Body)
		return &recordingOutput{r}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listRecordings", http.MethodGet, base, tag, "List recordings", ops.RecordingList),
		func(ctx context.Context, in *recordingListInput) (*recordingListOutput, error) {
			page, next, err := a.services.Recordings.List(ctx, viewing.RecordingQuery(*in))
			out := &recordingListOutput{}
			out.Body.Recordings, out.Body.Next = append([]viewing.Recording{}, page...), next
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getRecording", http.MethodGet, base+"/{id}", tag, "Describe a recording", ops.RecordingList),
		func(ctx context.Context, in *RecordingRef) (*recordingOutput, error) {
			r, err := a.services.Recordings.Get(ctx, in.ID)
			return &recordingOutput{r}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("stopRecording", http.MethodPost, base+"/{id}/stop", tag, "End a recording, and wait until it is stored", ops.RecordingStop),
		func(ctx context.Context, in *RecordingRef) (*recordingOutput, error) {
			r, err := a.services.Recordings.Stop(ctx, in.ID)
			return &recordingOutput{r}, a.problem(ctx, err)
		})
	a.raw(sometimes(operation("fetchRecording", http.MethodGet, base+"/{id}/content", tag, "Fetch the file of a recording; of one that runs, what it has until now", ops.RecordingFetch), ops.RecordingFetchInput),
		nil, "", viewing.CastType, a.fetchRecording)
	remove := operation("removeRecording", http.MethodDelete, base+"/{id}", tag, "Remove a recording; one that runs ends", ops.RecordingRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *RecordingRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Recordings.Remove(ctx, in.ID))
	})
}

func (a *API) fetchRecording(w http.ResponseWriter, r *http.Request) error {
	content, about, err := a.services.Recordings.Fetch(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	defer content.Close()
	defer context.AfterFunc(r.Context(), func() { _ = content.Close() })()
	media := viewing.CastType
	if about.Format == viewing.FormatVideo {
		media = viewing.VideoType
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Content-Type-Options", "nosniff") // it comes from a sandbox
	w.Header().Set("Content-Disposition", `attachment; filename="`+about.ID+about.Suffix()+`"`)
	return finish(w, content)
}
