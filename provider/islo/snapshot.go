package islo

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// saver saves running sandboxes. Snapshots are found by name. It is not known
// whether the service saves memory, so a snapshot counts as files only.
type saver struct{ p *Provider }

// saved is the service's description of a snapshot.
type saved struct {
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created_at"`
}

// The statuses of a snapshot that is complete, and of one that still can be.
const (
	readyStatuses  = " ready completed available active "
	comingStatuses = " saving creating pending "
)

func (s saved) describe() hosted.Saved {
	_, id, _ := names.Parse(s.Name)
	is := func(statuses string) bool { return strings.Contains(statuses, " "+s.Status+" ") }
	return hosted.Saved{
		Data: s.Name, ID: string(id), Kind: driver.SnapshotFilesystem, Status: s.Status, Ready: is(readyStatuses), Coming: is(comingStatuses), Size: s.Size, Created: s.Created,
	}
}

// Owns implements hosted.Saver: it refuses a name of another directory.
func (k saver) Owns(data string) bool { return k.p.Named(names, data) }

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	var s saved
	err := k.p.api.Call(ctx, http.MethodGet, "/snapshots/"+data, nil, &s)
	switch {
	case missing(err):
		err = hosted.ErrNone
	case err == nil && s.Name != data:
		err = k.p.ProtocolError("the service answers for another snapshot")
	}
	return s.describe(), err
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error {
	if err := k.p.api.Remove(ctx, "/snapshots/"+data); !missing(err) {
		return err
	}
	return hosted.ErrNone
}

// Save implements hosted.Saver. It requests the snapshot once. If the answer is
// lost, it looks for the snapshot by name.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, _ *hosted.SavedRecord) (out hosted.Saved, err error) {
	name, err := k.p.api.own(id)
	if err != nil {
		return out, err
	}
	sb, err := k.p.api.named(in.ID())
	if err != nil {
		return out, err
	}
	err = k.p.api.Call(ctx, http.MethodPost, "/snapshots/", map[string]string{"sandbox_name": sb, "name": name}, nil)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return out, err
	}
	return k.p.Await(ctx, err, func() (hosted.Saved, error) { return k.Referred(ctx, name) })
}

// Saved implements hosted.Saver.
func (k saver) Saved(ctx context.Context, id string) (found []hosted.Saved, err error) {
	name, err := k.p.api.own(id)
	if err != nil {
		return nil, err
	}
	if id != "" {
		s, err := k.Referred(ctx, name)
		return []hosted.Saved{s}, err
	}
	items, err := all[saved](ctx, k.p.api, "/snapshots/", url.Values{})
	for _, s := range items {
		if strings.HasPrefix(s.Name, name) {
			found = append(found, s.describe())
		}
	}
	return found, err
}

// Copy implements hosted.Saver.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	return k.p.make(ctx, spec, creation{Snapshot: s.Data}, hosted.Copied(true))
}
