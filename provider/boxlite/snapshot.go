package boxlite

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.RestingSnapshotter = (*Instance)(nil)
	_ driver.SnapshotCopier     = (*Provider)(nil)
)

// saver keeps snapshots as boxes that are never started, clones of stopped
// sandboxes. Unlike a snapshot of the server, a clone outlives the sandbox. A
// snapshot of the server gives the size of the clone.
type saver struct{ p *Provider }

const (
	// snaps are the names of the boxes of snapshots.
	snaps = hosted.Names("-snap-")
	// sizeName is the name of the server's snapshot that gives the size of a clone.
	sizeName = "atoll"
	// stopSeconds is how long a box may take to stop before it is killed.
	stopSeconds = 10
)

// AtRest implements driver.RestingSnapshotter: the server clones only stopped boxes.
func (*Instance) AtRest() {}

// Still implements hosted.Stiller.
func (k saver) Still(ctx context.Context, in *hosted.Instance, _ bool) error {
	return k.p.move(ctx, in.ID(), in.Sandbox, "stop", stopped, map[string]int{"timeout_seconds": stopSeconds})
}

// Save implements hosted.Saver.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, r *hosted.SavedRecord) (hosted.Saved, error) {
	r.Network = k.p.Of(in.ID(), in.Sandbox).Network
	return k.clone(ctx, in.Sandbox, id, r)
}

// clone clones a stopped box for a snapshot. The record names the clone.
func (k saver) clone(ctx context.Context, boxID, id string, r *hosted.SavedRecord) (s hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return s, err
	}
	b, err := k.p.api.clone(ctx, boxID, snaps.Of(scope, sandbox.ID(id)))
	if err == nil {
		s.Data, r.ServiceID, r.AutoStop = b.ID, b.ID, b.AutoStop
		s.Kind = driver.SnapshotFilesystem
		s.Size, err = k.p.api.size(ctx, b.ID)
	}
	return s, err
}

// clone clones a stopped box. It makes one request; if the answer is lost, it
// looks for the clone by its name.
func (a *api) clone(ctx context.Context, boxID, name string) (box, error) {
	b, err := a.box(ctx, http.MethodPost, "/boxes/"+boxID+"/clone", name, map[string]string{"name": name})
	return a.made(ctx, name, b, err)
}

// size returns the size of a stopped box's disks, in bytes.
func (a *api) size(ctx context.Context, boxID string) (int64, error) {
	var s struct {
		Name string `json:"name"`
		Box  string `json:"box_id"`
		Size int64  `json:"size_bytes"`
	}
	where := "/boxes/" + boxID + "/snapshots"
	err := a.call(ctx, http.MethodPost, where, map[string]string{"name": sizeName}, &s)
	if code := sandbox.CodeOf(err); code == sandbox.CodeUnavailable || code == sandbox.CodeConflict {
		err = a.call(ctx, http.MethodGet, where+"/"+sizeName, nil, &s) // the answer may have been lost
	}
	if err == nil && (s.Name != sizeName || s.Box != boxID || s.Size <= 0) {
		err = a.ProtocolError("the server answers for another snapshot")
	}
	return s.Size, err
}

// CopySnapshot implements driver.SnapshotCopier.
func (p *Provider) CopySnapshot(ctx context.Context, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	return p.CopyAs(ctx, ref, id, func(ctx context.Context, from hosted.Saved, r *hosted.SavedRecord) (hosted.Saved, error) {
		r.Network = p.Record(from.ID).Network
		return saver{p}.clone(ctx, from.Data, id, r)
	})
}

// Owns implements hosted.Saver.
func (saver) Owns(data string) bool { return usableID.MatchString(data) }

// Saved implements hosted.Saver. One without its record is not complete.
func (k saver) Saved(ctx context.Context, _ string) (found []hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return nil, err
	}
	all, err := k.p.api.list(ctx, snaps.Of(scope, ""))
	for _, b := range all {
		_, id, _ := snaps.Parse(b.Name)
		r := k.p.Record(string(id))
		found = append(found, hosted.Saved{
			Data: b.ID, ID: string(id), Kind: driver.SnapshotFilesystem, Status: "without a record", Ready: r.ServiceID == b.ID, Size: r.Size, Created: b.Created,
		})
	}
	return found, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	all, err := k.Saved(ctx, "")
	if err != nil {
		return hosted.Saved{}, err
	}
	return hosted.ByData(all, data)
}

// Forget implements hosted.Saver. It removes only boxes of our snapshots.
func (k saver) Forget(ctx context.Context, data string) error {
	scope, err := k.p.Scope()
	if err != nil {
		return err
	}
	b, err := k.p.api.get(ctx, data)
	switch {
	case err == nil && !strings.HasPrefix(b.Name, snaps.Of(scope, "")):
		return hosted.ErrNone
	case err == nil:
		err = k.p.api.End(ctx, "", b.ID)
	case missing(err):
		err = hosted.ErrNone
	}
	if !errors.Is(err, hosted.ErrNone) {
		return err
	}
	if _, err = k.Referred(ctx, data); err == nil {
		err = k.p.ProtocolError("the server lists the snapshot and says that it does not know it")
	}
	return err
}

// Copy implements hosted.Saver. A clone has the size, volumes and network of
// its source. A spec with others is refused.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	r := k.p.Record(s.ID)
	b, err := k.p.api.get(ctx, s.Data)
	if err != nil {
		return nil, err
	}
	return k.p.make(ctx, spec, func(ctx context.Context, c *creation) (box, error) {
		refuse := func(subject, message string) error {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "boxlite.restore", Subject: subject, Message: message, Hint: "use the same settings, or make a new sandbox"}
		}
		switch {
		case r.Network != c.Network.digest():
			return box{}, refuse("network", "the server gives a copy the network of its source, and this one is to have another")
		case r.AutoStop > 0 && (c.AutoStop == 0 || c.AutoStop > r.AutoStop):
			return box{}, refuse("lifetime", "the server stops a copy that was idle for the lifetime of its source, and this one is to live longer")
		case c.CPUs > 0 && c.CPUs != b.CPUs, c.Memory > 0 && c.Memory != b.Memory:
			return box{}, refuse("resources", "the server gives a copy the size of its source, and this one is to have another")
		}
		c.AutoStop = r.AutoStop
		return k.p.api.clone(ctx, b.ID, c.Name)
	})
}
