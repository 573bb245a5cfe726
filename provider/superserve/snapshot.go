package superserve

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// saver saves sandboxes with their memory and files. A restore of files only
// ends the processes. The service finds snapshots only by their sandbox.
type saver struct{ p *Provider }

// saved is the service's description of a snapshot.
type saved struct {
	ID      string    `json:"id"`
	Sandbox string    `json:"sandbox_id"`
	Status  string    `json:"status"`
	Name    string    `json:"name"`
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created_at"`
}

// savedDeleting is the status of a snapshot that is being removed.
const savedDeleting = "deleting"

func (s saved) describe(id string, kind driver.SnapshotKind) hosted.Saved {
	return hosted.Saved{
		ID: id, Data: s.ID, Kind: kind, Status: s.Status, Ready: s.Status == "ready", Coming: s.Status == "creating", Size: s.Size, Created: s.Created,
	}
}

// usableID matches ids of the service that are valid in a path.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Owns implements hosted.Saver.
func (saver) Owns(data string) bool { return usableID.MatchString(data) }

func (k saver) get(ctx context.Context, id string) (s saved, err error) {
	err = k.p.api.Call(ctx, http.MethodGet, "/snapshots/"+id, nil, &s)
	switch {
	case missing(err), err == nil && s.Status == savedDeleting:
		err = hosted.ErrNone
	case err == nil && s.ID != id:
		err = k.p.ProtocolError("the service answers for another snapshot")
	}
	return s, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	s, err := k.get(ctx, data)
	return s.describe("", ""), err
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error {
	return known(k.p.api.Remove(ctx, "/snapshots/"+data))
}

// Save implements hosted.Saver. It requests the snapshot with the same
// idempotency key until there is an answer.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, r *hosted.SavedRecord) (out hosted.Saved, err error) {
	resume, err := k.stay(ctx, in.Sandbox)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, resume()) }()
	var s saved
	body := map[string]string{"kind": "mem+fs", "idempotency_key": r.Key, "name": id}
	for n := range tries {
		if n > 0 {
			if err := rest.Sleep(ctx, time.Second); err != nil {
				return out, err
			}
		}
		err = k.p.api.Call(ctx, http.MethodPost, "/sandboxes/"+in.Sandbox+"/snapshot", body, &s)
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			break
		}
	}
	if err == nil && (!usableID.MatchString(s.ID) || s.Sandbox != in.Sandbox) {
		s, err = saved{}, k.p.ProtocolError("the service's response contains no snapshot of the sandbox")
	}
	if err != nil {
		return out, err
	}
	return k.p.Await(ctx, nil, func() (hosted.Saved, error) {
		now, err := k.get(ctx, s.ID)
		now.ID = s.ID
		return now.describe(id, r.Kind), err
	})
}

// stay ensures that a sandbox with a lifetime is not removed while it is paused
// for a snapshot. It returns a function that undoes that.
func (k saver) stay(ctx context.Context, sandboxID string) (undo func() error, err error) {
	none := func() error { return nil }
	b, err := k.p.api.get(ctx, sandboxID)
	if err != nil || b.AutoDelete == nil {
		return none, err
	}
	was := *b.AutoDelete
	if err := k.p.api.patch(ctx, b.ID, map[string]any{"auto_delete_seconds": nil}); err != nil {
		return none, err
	}
	return func() error { return k.p.api.patch(ctx, b.ID, map[string]any{"auto_delete_seconds": was}) }, nil
}

// Saved implements hosted.Saver. Only the records name the sandboxes of
// snapshots.
func (k saver) Saved(ctx context.Context, id string) ([]hosted.Saved, error) {
	return k.p.Search(ctx, id, func(ctx context.Context, id string, r hosted.SavedRecord) (hosted.Saved, error) {
		var all []saved
		if err := known(k.p.api.Call(ctx, http.MethodGet, "/sandboxes/"+r.ServiceID+"/snapshots", nil, &all)); err != nil {
			return hosted.Saved{}, err
		}
		for _, s := range all {
			if s.Name == id && usableID.MatchString(s.ID) && s.Status != savedDeleting {
				return s.describe("", ""), nil
			}
		}
		return hosted.Saved{}, hosted.ErrNone
	})
}

// Copy implements hosted.Saver.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, bare bool) (driver.Instance, error) {
	return k.p.make(ctx, spec, creation{Snapshot: s.Data}, hosted.Copied(bare))
}
