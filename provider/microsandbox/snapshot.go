package microsandbox

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.RestingSnapshotter = Instance{}
	_ driver.SnapshotCopier     = (*Provider)(nil)
)

// Instance is a sandbox of the service, which a guest inside makes usable.
type Instance struct{ hosted.Savable }

// AtRest implements driver.RestingSnapshotter: the service saves only stopped
// sandboxes.
func (Instance) AtRest() {}

// saver saves the disks of stopped sandboxes. The service keeps the names of
// snapshots unique.
type saver struct{ p *Provider }

const (
	// managed is the kind of a snapshot that the service stores itself.
	managed = "managed"
	// diskSnapshot is the source of sandboxes that are made from a snapshot.
	diskSnapshot = "disk_snapshot"
	// copying begins the names of sandboxes that exist only to copy a snapshot, and
	// longest is how long they do.
	copying = "copy-"
	longest = 30 * time.Minute
	// diskLabel is the label with the size of the disk of a snapshot and of its
	// copies, in MiB. 0 is the service's default.
	diskLabel = "atoll-disk-mib"
)

// location says where the service has a snapshot.
type location struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// saved is the service's description of a snapshot, which is complete.
type saved struct {
	Name     string            `json:"name"`
	Location location          `json:"location"`
	Size     int64             `json:"size_bytes"`
	Labels   map[string]string `json:"labels"`
	Created  time.Time         `json:"created_at"`
}

func (s saved) describe() hosted.Saved {
	_, id, _ := names.Parse(s.Name)
	return hosted.Saved{
		Data: s.Name, ID: string(id), Kind: driver.SnapshotFilesystem, Status: "complete", Ready: true, Size: max(1, s.Size), Created: s.Created,
	}
}

// operation is the taking of a snapshot.
type operation struct {
	ID     string `json:"id"`
	Name   string `json:"snapshot_name"` // only in lists
	Status string `json:"status"`
	Error  *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// describe says of an operation how its snapshot is.
func (o operation) describe() hosted.Saved {
	s := hosted.Saved{Status: o.Status, Coming: o.Status == "queued" || o.Status == "in_progress"}
	if o.Error != nil {
		s.Status += ": " + o.Error.Code + " " + o.Error.Message
	}
	return s
}

// absent reports that the service itself says that there is no such snapshot. Its
// description of the API has the code of sandboxes here.
func absent(err error) bool {
	r := rest.RefusalOf(err)
	return missing(err) || r.Ours && r.Status == http.StatusNotFound && r.Code == "snapshot_not_found"
}

func bySnapshot(name string) string { return "/v1/snapshots/by-name/" + url.PathEscape(name) }

// Owns implements hosted.Saver: it refuses a name of another directory.
func (k saver) Owns(data string) bool { return k.p.Named(names, data) }

// get returns the snapshot with a name, or hosted.ErrNone.
func (k saver) get(ctx context.Context, name string) (s saved, err error) {
	err = k.p.api.Call(ctx, http.MethodGet, bySnapshot(name), nil, &s)
	switch {
	case absent(err):
		err = hosted.ErrNone
	case err == nil && (s.Name != name || s.Location.Type != managed || s.Location.ID == ""):
		err = k.p.ProtocolError("the service answers for another snapshot")
	}
	return s, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	s, err := k.get(ctx, data)
	return s.describe(), err
}

// Saved implements hosted.Saver.
func (k saver) Saved(ctx context.Context, id string) (found []hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return nil, err
	}
	if id != "" {
		s, err := k.Referred(ctx, names.Of(scope, sandbox.ID(id)))
		return []hosted.Saved{s}, err
	}
	k.tidy(ctx)
	all, err := listed[saved](ctx, k.p.api, "/v1/snapshots")
	for _, s := range all {
		if k.Owns(s.Name) {
			found = append(found, s.describe())
		}
	}
	return found, err
}

// Still implements hosted.Stiller.
func (k saver) Still(ctx context.Context, in *hosted.Instance, _ bool) error {
	return k.stop(ctx, in.ID(), in.Sandbox)
}

// stop stops a sandbox.
func (k saver) stop(ctx context.Context, id sandbox.ID, sb string) error {
	return k.p.Move(ctx, id, sb, func(now hosted.Sandbox) (bool, error) {
		if now.Status != running {
			return true, nil
		}
		return false, k.p.api.Call(ctx, http.MethodPost, at(sb, "/stop"), struct{}{}, nil)
	})
}

// Save implements hosted.Saver.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, _ *hosted.SavedRecord) (hosted.Saved, error) {
	return k.save(ctx, in.Sandbox, id)
}

// save saves a stopped sandbox. It requests the snapshot once. If the answer is
// lost, it looks for the snapshot, and for an operation, by name.
func (k saver) save(ctx context.Context, sandboxID, id string) (out hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return out, err
	}
	b, err := k.p.api.byID(ctx, sandboxID)
	if err != nil {
		return out, err
	}
	name, labels := names.Of(scope, sandbox.ID(id)), map[string]string{}
	if b.Spec != nil && b.Spec.Resources != nil {
		labels[diskLabel] = cmp.Or(b.Spec.Labels[diskLabel], strconv.FormatInt(b.Spec.Resources.Disk, 10))
	}
	var o operation
	err = k.p.api.Call(ctx, http.MethodPost, "/v1/snapshots", map[string]any{"kind": "disk", "sandbox_id": sandboxID, "name": name, "labels": labels}, &o)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return out, err
	}
	return k.p.Await(ctx, err, func() (hosted.Saved, error) {
		// The operation first: the snapshot may be complete a moment later.
		now, unknown := k.operation(ctx, o.ID, name)
		s, err := k.Referred(ctx, name)
		if unknown == nil && errors.Is(err, hosted.ErrNone) && now.Status != "succeeded" {
			return now.describe(), nil
		}
		return s, err
	})
}

// operation returns the operation with an ID, or else the one for a name.
func (k saver) operation(ctx context.Context, id, name string) (o operation, err error) {
	if id != "" {
		err = k.p.api.Call(ctx, http.MethodGet, "/v1/snapshot-operations/"+url.PathEscape(id), nil, &o)
		return o, err
	}
	all, err := listed[operation](ctx, k.p.api, "/v1/snapshot-operations")
	for _, o := range all {
		if o.Name == name && o.describe().Coming {
			return o, nil
		}
	}
	if err == nil {
		err = hosted.ErrNone
	}
	return o, err
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error {
	return hosted.Ended(ctx, func() error {
		_, err := k.get(ctx, data)
		return err
	}, func() error {
		err := k.p.api.Call(ctx, http.MethodDelete, bySnapshot(data), nil, nil)
		if absent(err) {
			err = nil
		}
		return err
	}, func() error { return k.p.ProtocolError("the service does not remove the snapshot") })
}

// Copy implements hosted.Saver. A copy has the disk of its source; another one is
// refused.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	now, err := k.get(ctx, s.Data)
	if err != nil {
		return nil, err
	}
	return k.p.make(ctx, spec, func(c *creation) error {
		disk := now.Labels[diskLabel]
		if disk != "" && c.Resources.Disk > 0 && disk != strconv.FormatInt(c.Resources.Disk, 10) {
			return k.p.Unsupported("disk", "the service gives a copy the disk of its source, and this one is to have another", "use the same size, or make a new sandbox")
		}
		now.restored(c)
		return nil
	})
}

// restored makes a request one for a copy of a snapshot.
func (s saved) restored(c *creation) {
	c.Source, c.Image, c.Snapshot, c.Resources.Disk = diskSnapshot, "", &s.Location, 0
	if disk := s.Labels[diskLabel]; disk != "" {
		c.Labels = map[string]string{diskLabel: disk}
	}
}

// CopySnapshot implements driver.SnapshotCopier. The service copies no snapshots,
// so a sandbox is made from the snapshot, stopped, saved and removed.
func (p *Provider) CopySnapshot(ctx context.Context, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	return p.CopyAs(ctx, ref, id, func(ctx context.Context, from hosted.Saved, _ *hosted.SavedRecord) (s hosted.Saved, err error) {
		k := saver{p}
		scope, err := p.Scope()
		if err != nil {
			return s, err
		}
		now, err := k.get(ctx, from.Data)
		if err != nil {
			return s, err
		}
		c := creation{Name: copying + names.Of(scope, sandbox.ID(id)), Network: networkFor(nil), Lifecycle: lifecycle{Seconds: hosted.Seconds(longest)}}
		now.restored(&c)
		b, err := p.request(ctx, sandbox.ID(id), &c)
		if b.ID != "" {
			defer func() {
				if ended := p.api.End(ctx, "", b.ID); ended != nil && !errors.Is(ended, hosted.ErrNone) {
					err = errors.Join(err, ended)
				}
			}()
		}
		if err == nil {
			err = k.stop(ctx, sandbox.ID(id), b.ID)
		}
		if err == nil {
			s, err = k.save(ctx, b.ID, id)
		}
		return s, err
	})
}

// tidy removes the sandboxes that copying has left long ago.
func (k saver) tidy(ctx context.Context) {
	all, _ := listed[apiSandbox](ctx, k.p.api, sandboxes)
	for _, b := range all {
		if name, ok := strings.CutPrefix(b.Name, copying); ok && k.Owns(name) && time.Since(b.Created) > 2*longest {
			_ = k.p.api.End(ctx, "", b.ID) // else the next time
		}
	}
}
