package coretest

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Provider is a provider whose sandboxes and snapshots a test decides. It runs
// nothing, and notes what is done to them. The fields must not change while it is
// used. It is safe for concurrent use.
type Provider struct {
	// Found are its sandboxes, and Kept its snapshots.
	Found []driver.Found
	Kept  []driver.FoundSnapshot
	// Can are its capabilities.
	Can driver.Facts
	// Fails has an error for each call that fails, as Did says it or by its first two
	// words: "list", "attach sb-1", "destroy sb-1", "pause sb-1" and so on.
	Fails map[string]error
	// Exits are the sandboxes that end at once.
	Exits map[sandbox.ID]sandbox.Exit
	// Plain means that its sandboxes can only be destroyed.
	Plain bool

	mu  sync.Mutex
	did []string
}

// Did returns what was done since the last call, sorted.
func (p *Provider) Did() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	did := slices.Sorted(slices.Values(p.did))
	p.did = nil
	return did
}

func (p *Provider) do(format string, args ...any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	what := fmt.Sprintf(format, args...)
	call := strings.Join(strings.Fields(what)[:2], " ")
	if err := cmp.Or(p.Fails[what], p.Fails[call]); err != nil {
		return err
	}
	p.did = append(p.did, what)
	return nil
}

// Probe implements driver.Provider.
func (p *Provider) Probe(context.Context) (driver.Facts, error) { return p.Can, nil }

// Create implements driver.Provider.
func (p *Provider) Create(_ context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	return p.instance(spec.ID), p.do("create %s", spec.ID)
}

// Restore implements driver.Restorer.
func (p *Provider) Restore(_ context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	return p.instance(spec.ID), driver.Restored{Memory: ref.Kind == driver.SnapshotMemory}, p.do("restore %s from %s", spec.ID, ref.Data)
}

// Attach implements driver.Provider. A sandbox that is not among Found, or that has
// ended, is gone.
func (p *Provider) Attach(_ context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := p.Fails["attach "+string(id)]; err != nil {
		return nil, err
	}
	for _, f := range p.Found {
		if f.ID == id && f.State != sandbox.Gone {
			return p.instance(id), nil
		}
	}
	return nil, &sandbox.Error{Code: sandbox.CodeGone, Message: "no such sandbox"}
}

func (p *Provider) instance(id sandbox.ID) driver.Instance {
	if p.Plain {
		return plain{p, id}
	}
	return instance{plain{p, id}}
}

// List implements driver.Provider.
func (p *Provider) List(context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		for _, f := range p.Found {
			if !yield(f, nil) {
				return
			}
		}
		if err := p.Fails["list"]; err != nil {
			yield(driver.Found{}, err)
		}
	}
}

// ErrorCode implements driver.Provider.
func (p *Provider) ErrorCode(error) sandbox.Code { return "" }

// Close implements driver.Provider.
func (p *Provider) Close() error { return nil }

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(_ context.Context, id string) (driver.Snapshot, error) {
	if err := p.Fails["find "+id]; err != nil {
		return driver.Snapshot{}, err
	}
	for _, s := range p.Kept {
		if s.ID == id {
			return driver.Snapshot{Ref: s.Ref}, nil
		}
	}
	return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such snapshot", Cause: driver.ErrSnapshotLost}
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(_ context.Context, ref driver.SnapshotRef) error {
	return p.do("remove %s", ref.Data)
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		for _, s := range p.Kept {
			if !yield(s, nil) {
				return
			}
		}
		if err := p.Fails["snapshots"]; err != nil {
			yield(driver.FoundSnapshot{}, err)
		}
	}
}

// CopySnapshot implements driver.SnapshotCopier.
func (p *Provider) CopySnapshot(_ context.Context, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	to := ref
	to.Data = id
	return driver.Snapshot{Ref: to}, p.do("copy %s", ref.Data)
}

// SnapshotOf returns a snapshot for Kept: with memory, if that is set.
func SnapshotOf(id string, memory bool) driver.FoundSnapshot {
	return driver.FoundSnapshot{ID: id, Ref: Ref(id, memory)}
}

// Ref returns the reference of a snapshot of a Provider.
func Ref(id string, memory bool) driver.SnapshotRef {
	kind := driver.SnapshotFilesystem
	if memory {
		kind = driver.SnapshotMemory
	}
	return driver.SnapshotRef{Provider: "fake", Kind: kind, Data: id}
}

// plain is a sandbox that can be destroyed.
type plain struct {
	p  *Provider
	id sandbox.ID
}

func (i plain) ID() sandbox.ID { return i.id }

func (i plain) Exec(context.Context, *sandbox.Command) (driver.Process, error) {
	return nil, cmp.Or(i.p.Fails["exec "+string(i.id)], error(&sandbox.Error{Code: sandbox.CodeUnsupported, Message: "nothing runs here"}))
}

func (i plain) Wait(ctx context.Context) (sandbox.Exit, error) {
	if exit, ok := i.p.Exits[i.id]; ok {
		return exit, nil
	}
	<-ctx.Done()
	return sandbox.Exit{}, ctx.Err()
}

func (i plain) Destroy(context.Context) error { return i.p.do("destroy %s", i.id) }

// instance is a sandbox that can also be paused, saved and changed.
type instance struct{ plain }

func (i instance) Pause(context.Context) error  { return i.p.do("pause %s", i.id) }
func (i instance) Resume(context.Context) error { return i.p.do("resume %s", i.id) }

func (i instance) Resize(_ context.Context, r sandbox.Resources) error {
	return i.p.do("resize %s to %v CPUs", i.id, r.CPUs)
}

func (i instance) SetDeadline(_ context.Context, at time.Time) error {
	if at.IsZero() {
		return i.p.do("end %s never", i.id)
	}
	return i.p.do("end %s after %v", i.id, at.Sub(Now))
}

func (i instance) Snapshot(_ context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	return driver.Snapshot{Ref: Ref(opts.ID, opts.Memory && i.p.Can.Capabilities.Memory), Size: 7}, i.p.do("save %s memory=%v stop=%v", i.id, opts.Memory, opts.Stop)
}
