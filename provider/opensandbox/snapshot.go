package opensandbox

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// SnapshotPauses implements driver.SnapshotPauser: Docker pauses a container
// while it takes a snapshot.
func (p *Provider) SnapshotPauses() bool { return true }

// DropsAttributes implements driver.AttributeDropper: Docker does not save
// extended attributes.
func (p *Provider) DropsAttributes() {}

// saver saves the files of running sandboxes as images of the server. Snapshots
// are found by name. The server reports no sizes: the records have what was used
// on the disk.
type saver struct{ p *Provider }

// names are the names of snapshots, which the server does not keep unique.
const names = hosted.Names("-")

// saved is the server's description of a snapshot.
type saved struct {
	ID      string                 `json:"id"`
	Name    string                 `json:"name"`
	Status  struct{ State string } `json:"status"`
	Created time.Time              `json:"createdAt"`
}

// deleting is the state of a snapshot that was removed while a sandbox uses its
// image. The server keeps it until it is removed once more.
const deleting = "Deleting"

func (k saver) describe(s saved) hosted.Saved {
	_, id, _ := names.Parse(s.Name)
	return hosted.Saved{
		Data: s.Name, ID: string(id), Kind: driver.SnapshotFilesystem, Status: s.Status.State, Ready: s.Status.State == "Ready", Coming: s.Status.State == "Creating",
		Size: max(1, k.p.Record(string(id)).Size), Created: s.Created,
	}
}

// Owns implements hosted.Saver: it refuses a name of another directory.
func (k saver) Owns(data string) bool { return k.p.Named(names, data) }

// list returns the snapshots with a name; "" means any.
func (k saver) list(ctx context.Context, name string) ([]saved, error) {
	return hosted.Counted(&k.p.api.Client, func(n, _ int) ([]saved, int64, error) {
		q := url.Values{"page": {strconv.Itoa(n)}, "pageSize": {"200"}}
		if name != "" {
			q.Set("name", name)
		}
		var page struct {
			Items []saved `json:"items"`
			Pages struct {
				Total int64 `json:"totalItems"`
			} `json:"pagination"`
		}
		err := k.p.api.Call(ctx, http.MethodGet, "/v1/snapshots?"+q.Encode(), nil, &page)
		if err == nil && page.Items == nil {
			err = k.p.ProtocolError("the server's list is invalid")
		}
		return page.Items, page.Pages.Total, err
	})
}

// find returns the snapshot with a name, or hosted.ErrNone. One that was removed
// does not count.
func (k saver) find(ctx context.Context, name string) (saved, error) {
	all, err := k.list(ctx, name)
	for _, s := range all {
		if s.Name == name && s.ID != "" && s.Status.State != deleting {
			return s, nil
		}
	}
	if err == nil {
		err = hosted.ErrNone
	}
	return saved{}, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	s, err := k.find(ctx, data)
	return k.describe(s), err
}

// Saved implements hosted.Saver.
func (k saver) Saved(ctx context.Context, id string) (found []hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return nil, err
	}
	name := ""
	if id != "" {
		name = names.Of(scope, sandbox.ID(id))
	}
	all, err := k.list(ctx, name)
	for _, s := range all {
		switch {
		case !k.Owns(s.Name):
		case s.Status.State == deleting:
			_ = k.p.api.forget(ctx, s.ID) // if no sandbox uses it any more
		default:
			found = append(found, k.describe(s))
		}
	}
	return found, err
}

// Save implements hosted.Saver. It requests the snapshot once. If the answer is
// lost, it looks for the snapshot by name.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, _ *hosted.SavedRecord) (out hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return out, err
	}
	used, err := in.Usage(ctx)
	if err != nil {
		return out, err
	}
	name := names.Of(scope, sandbox.ID(id))
	err = k.p.api.Call(ctx, http.MethodPost, path(in.Sandbox, "/snapshots"), map[string]string{"name": name}, nil)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return out, err
	}
	out, err = k.p.Await(ctx, err, func() (hosted.Saved, error) { return k.Referred(ctx, name) })
	out.Size = max(1, used.Disk)
	return out, err
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error {
	return hosted.Ended(ctx, func() error {
		_, err := k.find(ctx, data)
		return err
	}, func() error {
		s, err := k.find(ctx, data)
		if err == nil {
			err = k.p.api.forget(ctx, s.ID)
		}
		if errors.Is(err, hosted.ErrNone) {
			return nil
		}
		return err
	}, func() error { return k.p.ProtocolError("the server does not remove the snapshot") })
}

// Copy implements hosted.Saver.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	now, err := k.find(ctx, s.Data)
	if err != nil {
		return nil, err
	}
	return k.p.make(ctx, spec, creation{Snapshot: now.ID}, hosted.Copied(true))
}
