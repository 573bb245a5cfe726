package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// EpochHeader is the epoch that the caller expects. If another sandbox serves
// the session now, the request fails with the code stale and has no effect.
const EpochHeader = span.EpochHeader

// FollowHeader, with the value "true", accepts an earlier epoch if the session
// moved to its present sandbox with its files.
const FollowHeader = "Atoll-Follow"

// Sessions manages sessions.
type Sessions interface {
	Create(ctx context.Context, n durable.NewSession) (durable.Opened, error)
	Resume(ctx context.Context, r durable.ResumeRequest) (durable.Opened, error)
	// Send keeps the file that goes along with an envelope.
	Send(ctx context.Context, r io.Reader) (durable.ArchiveFile, error)
	Get(ctx context.Context, ref string) (durable.Session, error)
	Capabilities(ctx context.Context, ref string) (catalog.CapabilityDocument, error)
	List(ctx context.Context, labels map[string]string) ([]durable.Session, error)
	Update(ctx context.Context, ref string, c durable.SessionChange) (durable.Session, error)
	Remove(ctx context.Context, ref string) error
	Usage(ctx context.Context, by string, from, to time.Time) ([]durable.SessionUsage, error)
}

// Holders manages the holders of sessions' sandboxes.
type Holders interface {
	Acquire(ctx context.Context, ref string, h durable.HolderRef) (durable.Acquired, error)
	Heartbeat(ctx context.Context, ref string, h durable.HolderRef) error
	Release(ctx context.Context, ref string, h durable.HolderRef) error
	Save(ctx context.Context, ref string, epoch int64, follow bool) (durable.Saved, error)
	Envelope(ctx context.Context, ref string) (durable.Envelope, error)
	// Route returns the sandbox that serves a session. With follow, an earlier epoch
	// is accepted if its files moved to the present sandbox.
	Route(ctx context.Context, ref string, epoch int64, follow bool) (Routed, error)
}

// Routed is a sandbox that serves a request for a session. It is kept until Done
// is called. The request must end when Over does; its cause is the error.
type Routed struct {
	Session string // its id, under which no other session follows
	Sandbox sandbox.ID
	Epoch   int64
	Done    func()
	Over    context.Context
}

// Movers move sessions between providers.
type Movers interface {
	Targets(ctx context.Context, ref string) ([]durable.SessionTarget, error)
	Swap(ctx context.Context, ref string, req durable.SwapRequest) (durable.Swapped, error)
	// Visit makes a sandbox on another provider and calls use with it.
	Visit(ctx context.Context, ref, target string, use func(context.Context, sandbox.ID) error) error
}

// SessionRef names a session in a path.
type SessionRef struct {
	Ref string `path:"ref" maxLength:"63" doc:"id or name of the session"`
}

type newSessionInput struct{ Body durable.NewSession }

type resumeSessionInput struct{ Body durable.ResumeRequest }

type openedOutput struct {
	Status int
	Body   durable.Opened
}

type sessionOutput struct{ Body durable.Session }

type sessionsInput struct {
	Label []string `query:"label,explode" maxItems:"64" doc:"only those with this label, KEY=VALUE; with several, those that have all of them"`
}

type sessionsOutput struct {
	Body struct {
		Sessions []durable.Session `json:"sessions" doc:"by name"`
	}
}

type sessionChangeInput struct {
	SessionRef
	Body durable.SessionChange
}

type holderInput struct {
	SessionRef
	Body durable.HolderRef
}

type acquiredOutput struct{ Body durable.Acquired }

type saveInput struct {
	SessionRef
	Epoch  int64 `header:"Atoll-Epoch" minimum:"0" doc:"fail with the code stale if the sandbox is at another epoch"`
	Follow bool  `header:"Atoll-Follow" doc:"accept an earlier epoch if the session moved to its present sandbox with its files"`
}

type savedOutput struct{ Body durable.Saved }

type envelopeOutput struct{ Body durable.Envelope }

type usageInput struct {
	By   string    `query:"by" required:"true" maxLength:"200" doc:"label:KEY, group or provider" example:"label:team"`
	From time.Time `query:"from" doc:"start of the time; counted in whole hours"`
	To   time.Time `query:"to" doc:"end of the time; now if it is left out"`
}

type sessionUsageOutput struct {
	Body struct {
		Usage []durable.SessionUsage `json:"usage" doc:"by value"`
	}
}

const sessionBase = "/v1/sessions/{ref}"

func (a *API) sessions() {
	create := operation("createSession", http.MethodPost, "/v1/sessions", "Sessions", "Create a session, or return the session of that name", ops.SessionCreate)
	create.Errors = append(create.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, create, func(ctx context.Context, in *newSessionInput) (*openedOutput, error) {
		return a.openedSession(ctx)(a.services.Sessions.Create(ctx, in.Body))
	})
	resume := operation("resumeSession", http.MethodPost, "/v1/sessions/resume", "Sessions", "Return the session of an envelope, or create one that finds or rebuilds its sandbox", ops.SessionResume)
	resume.Errors = append(resume.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, resume, func(ctx context.Context, in *resumeSessionInput) (*openedOutput, error) {
		return a.openedSession(ctx)(a.services.Sessions.Resume(ctx, in.Body))
	})
	a.raw(operation("sendArchive", http.MethodPost, "/v1/sessions/archives", "Sessions", "Send the file that goes along with an envelope, a tar archive of /workspace, for a session that is resumed within the hour", ops.SessionResume),
		nil, "application/x-tar", "application/json", func(w http.ResponseWriter, r *http.Request) error {
			f, err := a.services.Sessions.Send(r.Context(), r.Body)
			if err != nil {
				return err
			}
			return writeJSON(w, http.StatusOK, f)
		})
	huma.Register(a.huma, operation("listSessions", http.MethodGet, "/v1/sessions", "Sessions", "List sessions", ops.SessionList), a.listSessions)
	huma.Register(a.huma, operation("getSession", http.MethodGet, sessionBase, "Sessions", "Get a session, its holders and its last receipt", ops.SessionGet),
		func(ctx context.Context, in *SessionRef) (*sessionOutput, error) {
			s, err := a.services.Sessions.Get(ctx, in.Ref)
			return &sessionOutput{s}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("updateSession", http.MethodPatch, sessionBase, "Sessions", "Change the labels of a session, or whether its sandbox is paused when no holder is left", ops.SessionUpdate),
		func(ctx context.Context, in *sessionChangeInput) (*sessionOutput, error) {
			s, err := a.services.Sessions.Update(ctx, in.Ref, in.Body)
			return &sessionOutput{s}, a.problem(ctx, err)
		})
	remove := operation("removeSession", http.MethodDelete, sessionBase, "Sessions", "Remove a session, its sandbox and its saved files; workspaces are kept", ops.SessionRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *SessionRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Sessions.Remove(ctx, in.Ref))
	})
	huma.Register(a.huma, operation("sessionUsage", http.MethodGet, "/v1/usage", "Sessions", "Get how long sandboxes ran, with those of sessions", ops.UsageGet),
		func(ctx context.Context, in *usageInput) (*sessionUsageOutput, error) {
			out := &sessionUsageOutput{}
			got, err := a.services.Sessions.Usage(ctx, in.By, in.From, in.To)
			out.Body.Usage = append([]durable.SessionUsage{}, got...)
			return out, a.problem(ctx, err)
		})
	a.holders()
	a.movers()
	a.routes()
}

func (a *API) openedSession(ctx context.Context) func(durable.Opened, error) (*openedOutput, error) {
	return func(o durable.Opened, err error) (*openedOutput, error) {
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		status := http.StatusOK
		if o.Created {
			status = http.StatusCreated
		}
		return &openedOutput{status, o}, nil
	}
}

func (a *API) listSessions(ctx context.Context, in *sessionsInput) (*sessionsOutput, error) {
	wanted, err := labels(in.Label)
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	out := &sessionsOutput{}
	all, err := a.services.Sessions.List(ctx, wanted)
	out.Body.Sessions = append([]durable.Session{}, all...)
	return out, a.problem(ctx, err)
}

// holders registers the operations on the sandbox of a session as a whole.
func (a *API) holders() {
	acquire := sometimes(operation("acquireSession", http.MethodPost, sessionBase+"/acquire", "Sessions", "Hold the sandbox of a session, which is made, resumed or rebuilt if necessary; repeating it counts as a heartbeat", ops.SandboxFind, ops.SessionAcquire), ops.SandboxCreate)
	acquire.Errors = append(acquire.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, acquire, func(ctx context.Context, in *holderInput) (*acquiredOutput, error) {
		got, err := a.services.Holders.Acquire(ctx, in.Ref, in.Body)
		return &acquiredOutput{got}, a.problem(ctx, err)
	})
	beat := operation("heartbeatSession", http.MethodPost, sessionBase+"/heartbeat", "Sessions", "Send a heartbeat of a holder; a holder of an earlier epoch gets the code stale", ops.SessionHeartbeat)
	release := operation("releaseSession", http.MethodPost, sessionBase+"/release", "Sessions", "Remove a holder; after the last one, the sandbox is saved and ended after a grace period", ops.SessionRelease)
	beat.DefaultStatus, release.DefaultStatus = http.StatusNoContent, http.StatusNoContent
	huma.Register(a.huma, beat, func(ctx context.Context, in *holderInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Holders.Heartbeat(ctx, in.Ref, in.Body))
	})
	huma.Register(a.huma, release, func(ctx context.Context, in *holderInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Holders.Release(ctx, in.Ref, in.Body))
	})
	huma.Register(a.huma, operation("saveSession", http.MethodPost, sessionBase+"/save", "Sessions", "Save the workspaces of a session or, without workspaces, the files of its sandbox, which continues", ops.SessionSave),
		func(ctx context.Context, in *saveInput) (*savedOutput, error) {
			s, err := a.services.Holders.Save(ctx, in.Ref, in.Epoch, in.Follow)
			return &savedOutput{s}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getEnvelope", http.MethodGet, sessionBase+"/envelope", "Sessions", "Get a description of a session without secrets, from which its sandbox can be found again or rebuilt", ops.SessionEnvelope),
		func(ctx context.Context, in *SessionRef) (*envelopeOutput, error) {
			e, err := a.services.Holders.Envelope(ctx, in.Ref)
			return &envelopeOutput{e}, a.problem(ctx, err)
		})
}

// routed are the resources of a sandbox that a session has too.
var routed = []string{
	"exec", "processes", "files", "ports", "streams", "recordings", "computer", "desktop", "code", "git", "port-tokens", "usage", "wait", "fork", "snapshots", "pause", "resume", "stop", "start",
}

// routes registers the routed resources. Each request goes to the sandbox that
// serves the session now.
func (a *API) routes() {
	for _, name := range routed {
		for _, path := range []string{"/v1/sessions/{ref}/" + name, "/v1/sessions/{ref}/" + name + "/{rest...}"} {
			a.mux.HandleFunc(path, a.route)
		}
	}
}

func (a *API) route(w http.ResponseWriter, r *http.Request) {
	epoch, err := requestEpoch(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/sessions/"), "/")
	probe := rewritten(r, "any", rest)
	if _, pattern := a.mux.Handler(probe); pattern == "/" {
		a.nowhere(w, probe)
		return
	}
	to, err := a.services.Holders.Route(r.Context(), r.PathValue("ref"), epoch, r.Header.Get(FollowHeader) == "true")
	if err != nil {
		a.fail(w, r, err)
		return
	}
	defer to.Done()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(to.Over, func() { cancel(context.Cause(to.Over)) })()
	w.Header().Set(EpochHeader, strconv.FormatInt(to.Epoch, 10))
	a.mux.ServeHTTP(w, rewritten(withRoute(r.WithContext(ctx), to.Session, to.Epoch), string(to.Sandbox), rest))
}

func requestEpoch(r *http.Request) (int64, error) {
	text := r.Header.Get(EpochHeader)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || len(r.Header.Values(EpochHeader)) > 1 {
		return 0, invalid(EpochHeader, "is not a positive number")
	}
	return n, nil
}

// rewritten returns the request for the same resource of the sandbox.
func rewritten(r *http.Request, id, rest string) *http.Request {
	out := r.Clone(r.Context())
	out.Pattern = ""
	path := "/v1/sandboxes/" + id + "/" + rest
	plain, err := url.PathUnescape(path)
	if err != nil {
		plain = path
	}
	out.URL.Path, out.URL.RawPath = plain, path
	return out
}
