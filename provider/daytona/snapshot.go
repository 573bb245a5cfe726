package daytona

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// saver saves running sandboxes. Snapshots are found by name. A snapshot counts
// as files only, because only some classes of sandboxes save memory.
type saver struct{ p *Provider }

// saved is the service's description of a snapshot.
type saved struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Size    float64   `json:"size"` // GB
	Created time.Time `json:"createdAt,omitzero"`
}

func (s saved) describe() hosted.Saved {
	_, id, _ := names.Parse(s.Name)
	coming := strings.Contains(" building pending pulling snapshotting ", " "+s.State+" ")
	return hosted.Saved{
		Data: s.Name, ID: string(id), Kind: driver.SnapshotFilesystem, Status: s.State, Ready: s.State == "active" || s.State == "inactive", Coming: coming,
		Size: int64(s.Size * (1 << 30)), Created: s.Created,
	}
}

// Owns implements hosted.Saver: it refuses a name of another directory.
func (k saver) Owns(data string) bool { return k.p.Named(names, data) }

func (k saver) get(ctx context.Context, name string) (s saved, err error) {
	err = k.p.api.Call(ctx, http.MethodGet, "/snapshots/"+name, nil, &s)
	switch {
	case missing(err) || err == nil && s.State == "removing":
		err = hosted.ErrNone
	case err == nil && (s.Name != name || s.ID == ""):
		err = k.p.ProtocolError("the service answers for another snapshot")
	}
	return s, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	s, err := k.get(ctx, data)
	return s.describe(), err
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error {
	s, err := k.get(ctx, data)
	if err != nil {
		return err
	}
	if err = k.p.api.Remove(ctx, "/snapshots/"+url.PathEscape(s.ID)); missing(err) {
		err = hosted.ErrNone
	}
	return err
}

// Save implements hosted.Saver. It requests the snapshot once. If the answer is
// lost, it looks for the snapshot by name. Then the sandbox runs again.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, _ *hosted.SavedRecord) (out hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return out, err
	}
	name := names.Of(scope, sandbox.ID(id))
	err = k.p.api.Call(ctx, http.MethodPost, "/sandbox/"+url.PathEscape(in.Sandbox)+"/snapshot", map[string]string{"name": name}, nil)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return out, err
	}
	out, err = k.p.Await(ctx, err, func() (hosted.Saved, error) { return k.Referred(ctx, name) })
	if err == nil {
		_, err = k.p.Settled(ctx, in.ID(), in.Sandbox)
	}
	return out, err
}

// Saved implements hosted.Saver.
func (k saver) Saved(ctx context.Context, id string) (found []hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return nil, err
	}
	name := names.Of(scope, sandbox.ID(id))
	if id != "" {
		s, err := k.Referred(ctx, name)
		return []hosted.Saved{s}, err
	}
	all, err := hosted.Counted(&k.p.api.Client, func(n, _ int) ([]saved, int64, error) {
		var p struct {
			Items []saved `json:"items"`
			Total int64   `json:"total"`
		}
		q := url.Values{"name": {name}, "limit": {"100"}, "page": {strconv.Itoa(n)}}
		err := k.p.api.Call(ctx, http.MethodGet, "/snapshots?"+q.Encode(), nil, &p)
		return p.Items, p.Total, err
	})
	for _, s := range all {
		if strings.HasPrefix(s.Name, name) && s.State != "removing" {
			found = append(found, s.describe())
		}
	}
	return found, err
}

// Copy implements hosted.Saver.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	return k.p.make(ctx, spec, s.Data, hosted.Copied(true))
}
