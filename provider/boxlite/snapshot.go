package boxlite

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.RestingSnapshotter = (*Instance)(nil)
	_ driver.Restorer           = (*Provider)(nil)
	_ driver.SnapshotKeeper     = (*Provider)(nil)
	_ driver.SnapshotCopier     = (*Provider)(nil)
)

// A snapshot of ours is a box that is never started, a clone of a stopped
// sandbox. Unlike a snapshot of the server, it outlives the sandbox. A snapshot
// of the server gives the size of the clone.

// savedRecord is the record of a snapshot.
type savedRecord struct {
	Box      string `json:"box"`
	Size     int64  `json:"size"`
	Network  string `json:"network"` // of its copies
	AutoStop int64  `json:"autoStop"`
	Binding  string `json:"binding"`
}

// saved is the server's description of a snapshot.
type saved struct {
	Name string `json:"name"`
	Box  string `json:"box_id"`
	Size int64  `json:"size_bytes"`
}

const (
	// capturing limits how long a snapshot may take.
	capturing = 15 * time.Minute
	// sizeName is the name of the server's snapshot that gives the size of a clone.
	sizeName = "atoll"
	// stopSeconds is how long a box may take to stop before it is killed.
	stopSeconds = 10
)

// snapsOf is the prefix of the names of all our snapshots.
func snapsOf(scope string) string { return "atoll-" + scope + "-snap-" }

func (r savedRecord) describe() driver.Snapshot {
	return driver.Snapshot{Ref: driver.SnapshotRef{Provider: Name, Kind: driver.SnapshotFilesystem, Data: r.Box}, Engine: Name, Size: r.Size}
}

func lost(id string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: "the server has no such snapshot", Cause: driver.ErrSnapshotLost}
}

func check(ref driver.SnapshotRef) error {
	if ref.Provider == Name && ref.Kind == driver.SnapshotFilesystem && usableID.MatchString(ref.Data) {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "boxlite.restore", Message: "the reference belongs to another provider"}
}

// AtRest implements driver.RestingSnapshotter: the server clones only stopped boxes.
func (*Instance) AtRest() {}

// Snapshot implements driver.Snapshotter.
func (in *Instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	none := driver.Snapshot{}
	if err := sandbox.ValidateName(opts.ID); err != nil {
		return none, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "boxlite.snapshot", Message: "the ID is invalid", Cause: err}
	}
	if opts.Memory {
		return none, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "boxlite.snapshot", Subject: "memory", Message: "the server saves files only"}
	}
	status, ended, err := in.Ask(ctx)
	if err := ctx.Err(); err != nil {
		return none, err
	}
	switch {
	case ended:
		return none, guestkit.Gone(in.ID())
	case err != nil:
		return none, err
	}
	running := status.State == sandbox.Running
	return in.p.saving(ctx, opts.ID, func(ctx context.Context, l *records.Locked[savedRecord], name string) (driver.Snapshot, error) {
		if running && !opts.Stop {
			return none, &sandbox.Error{
				Code: sandbox.CodeConflict, Op: "boxlite.snapshot", Subject: string(in.ID()), Message: "the server saves only stopped sandboxes, and stopping ends the processes",
				Hint: "save and stop it with: atoll sleep",
			}
		}
		return in.capture(ctx, l, name, running, opts.Stop)
	})
}

// saving calls f with the record of a new snapshot and the name of its box.
// Requests cannot be canceled, so f continues after its caller gave up.
func (p *Provider) saving(ctx context.Context, id string, f func(context.Context, *records.Locked[savedRecord], string) (driver.Snapshot, error)) (driver.Snapshot, error) {
	scope, err := p.Scope()
	if err != nil {
		return driver.Snapshot{}, err
	}
	l, err := p.saved.Lock(ctx, id)
	if err != nil {
		return driver.Snapshot{}, err
	}
	return records.Finish(ctx, &p.Work, func() (driver.Snapshot, error) {
		defer l.Unlock()
		name := snapsOf(scope) + id
		_, err := p.api.named(ctx, name)
		switch {
		case err == nil:
			return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "boxlite.snapshot", Subject: id, Message: "a snapshot with this ID already exists"}
		case !errors.Is(err, hosted.ErrNone):
			return driver.Snapshot{}, err
		}
		s, err := f(ctx, l, name)
		if err != nil {
			err = errors.Join(err, l.Remove())
		}
		return s, err
	})
}

// capture stops a box and clones it. If that fails, it starts the box again.
func (in *Instance) capture(ctx context.Context, l *records.Locked[savedRecord], name string, running, stop bool) (s driver.Snapshot, err error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), capturing)
	defer cancel()
	if running {
		in.SetDying(true) // commands that end now are killed
		defer in.SetDying(false)
		err = in.p.stop(asking, in.ID(), in.Box)
	}
	if err == nil {
		s, err = in.p.keep(ctx, l, in.Box, name, in.p.Of(in.ID(), in.Box).Network)
	}
	if err == nil && stop {
		err = in.Destroy(asking)
	}
	if err == nil || !running {
		return s, err
	}
	in.SetDying(false)
	return s, errors.Join(err, in.p.forget(asking, name, s.Ref.Data), in.p.start(asking, in.ID(), in.Box))
}

// keep clones a stopped box for a snapshot. On an error nothing is left.
func (p *Provider) keep(ctx context.Context, l *records.Locked[savedRecord], boxID, name, network string) (driver.Snapshot, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), capturing)
	defer cancel()
	b, err := p.api.clone(asking, boxID, name)
	if err != nil {
		return driver.Snapshot{}, err
	}
	r := savedRecord{Box: b.ID, Network: network, AutoStop: b.AutoStop}
	r.Size, err = p.api.size(asking, b.ID)
	if err == nil {
		r.Binding, err = p.Binding(ctx)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = l.Write(r)
	}
	if err != nil {
		return driver.Snapshot{}, errors.Join(err, p.forget(asking, name, b.ID))
	}
	return r.describe(), nil
}

// clone clones a stopped box. It makes one request; if the answer is lost, it
// looks for the clone by its name.
func (a *api) clone(ctx context.Context, boxID, name string) (box, error) {
	b, err := a.box(ctx, http.MethodPost, "/boxes/"+boxID+"/clone", name, map[string]string{"name": name})
	return a.made(ctx, name, b, err)
}

// size returns the size of a stopped box's disks, in bytes.
func (a *api) size(ctx context.Context, boxID string) (int64, error) {
	var s saved
	where := "/boxes/" + boxID + "/snapshots"
	err := a.call(ctx, http.MethodPost, where, map[string]string{"name": sizeName}, &s)
	if code := sandbox.CodeOf(err); code == sandbox.CodeUnavailable || code == sandbox.CodeConflict {
		err = a.call(ctx, http.MethodGet, where+"/"+sizeName, nil, &s) // the answer may have been lost
	}
	if err == nil && (s.Name != sizeName || s.Box != boxID || s.Size <= 0) {
		err = a.Strange("the server answers for another snapshot")
	}
	return s.Size, err
}

// forget removes the box of a snapshot. A missing box is success.
func (p *Provider) forget(ctx context.Context, name, boxID string) error {
	if boxID == "" {
		return nil
	}
	err := p.api.End(ctx, "", boxID)
	if !errors.Is(err, hosted.ErrNone) {
		return err
	}
	b, err := p.api.named(ctx, name)
	switch {
	case errors.Is(err, hosted.ErrNone), err == nil && b.ID != boxID:
		return nil
	case err == nil:
		return p.Strange("the server lists the snapshot and says that it does not know it")
	}
	return err
}

// snapshots returns our snapshots, by their IDs.
func (p *Provider) snapshots(ctx context.Context) (map[string]box, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	all, err := p.api.list(ctx, snapsOf(scope))
	found := map[string]box{}
	for _, b := range all {
		if id := strings.TrimPrefix(b.Name, snapsOf(scope)); sandbox.ValidateName(id) == nil {
			found[id] = b
		}
	}
	return found, err
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	all, err := p.snapshots(ctx)
	if err != nil {
		return driver.Snapshot{}, err
	}
	r, ok := p.saved.Get(id)
	if b, there := all[id]; !there || !ok || r.Box != b.ID {
		return driver.Snapshot{}, lost(id)
	}
	return r.describe(), nil
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		all, err := p.snapshots(ctx)
		if err != nil {
			yield(driver.FoundSnapshot{}, err)
			return
		}
		for id, b := range all {
			f := driver.FoundSnapshot{ID: id, Ref: savedRecord{Box: b.ID}.describe().Ref, Used: b.Created}
			if r, ok := p.saved.Get(id); ok && r.Box == b.ID {
				f.Size = r.Size
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// referred returns the snapshot of a reference.
func (p *Provider) referred(ctx context.Context, ref driver.SnapshotRef) (id string, b box, err error) {
	if err := check(ref); err != nil {
		return "", box{}, err
	}
	all, err := p.snapshots(ctx)
	for id, b := range all {
		if b.ID == ref.Data {
			return id, b, nil
		}
	}
	if err == nil {
		err = lost(ref.Data)
	}
	return "", box{}, err
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	_, b, err := p.referred(ctx, ref)
	if err == nil {
		err = p.forget(ctx, b.Name, b.ID)
	}
	if err == nil || errors.Is(err, driver.ErrSnapshotLost) {
		p.saved.Sweep(func(r savedRecord) bool { return r.Box == ref.Data })
		return nil
	}
	return err
}

// CopySnapshot implements driver.SnapshotCopier.
func (p *Provider) CopySnapshot(ctx context.Context, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	from, b, err := p.referred(ctx, ref)
	if err != nil {
		return driver.Snapshot{}, err
	}
	r, _ := p.saved.Get(from)
	return p.saving(ctx, id, func(ctx context.Context, l *records.Locked[savedRecord], name string) (driver.Snapshot, error) {
		return p.keep(ctx, l, b.ID, name, r.Network)
	})
}

// Restore implements driver.Restorer. A clone has the size, volumes and network
// of its source. A spec with others is refused.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	id, b, err := p.referred(ctx, ref)
	if err != nil {
		return nil, driver.Restored{}, err
	}
	r, ok := p.saved.Get(id)
	if !ok || r.Box != b.ID {
		return nil, driver.Restored{}, lost(id)
	}
	in, err := p.make(ctx, spec, func(ctx context.Context, c *creation) (box, error) {
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
		made, err := p.api.clone(ctx, b.ID, c.Name)
		if missing(err) { // removed in the meantime
			err = lost(id)
		}
		return made, err
	})
	return in, driver.Restored{}, err
}
