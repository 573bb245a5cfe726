// Package fake is a provider in memory, for fast tests of everything above
// providers. Its sandboxes have a file system in memory, and commands that are
// goroutines: mvdan.cc/sh interprets the shell, and a few programs are
// functions. It starts no process and opens no files of the machine except
// snapshots, so it also works in the bubbles of testing/synctest.
//
// It passes package drivertest for every capability it declares, with the
// restrictions of its shell: programs do not handle signals, and fifos cannot
// be opened. It has no images, mounts or terminals, and no user except root.
package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/sandbox"
)

// Options configures a provider. The zero value is usable.
type Options struct {
	// World holds the sandboxes. Providers that share one see the same sandboxes,
	// like processes on one machine. To simulate a restart of a daemon, close a
	// provider and create another one with its World. Nil means a new world.
	World *World

	// SnapshotDir holds snapshots. Without one there are none.
	SnapshotDir string

	// Fault, if not nil, is called before every operation, with its name. If it
	// returns an error, the operation fails with that error. Fault may also wait
	// or hang: it runs in a separate goroutine, and an operation whose context
	// ends does not wait for it. It must be safe for concurrent use. The names are
	// those of [Operations].
	Fault func(op string) error

	// Binding is what Binding returns. Empty: "memory", with an identifier of the
	// World if there is one.
	Binding string

	// Former is what FormerBindings returns.
	Former []string

	// Limited makes Probe report that every limit is enforced, for tests that
	// depend on it. The fake runs nothing that could exceed a limit.
	Limited bool

	// Isolation is what Probe reports.
	Isolation sandbox.Isolation

	// Bare makes instances without optional interfaces, and with no capability
	// except reattachment.
	Bare bool
}

// Operations returns the names with which Options.Fault is called.
func Operations() []string {
	return []string{
		"probe", "create", "attach", "list", "exec", "wait", "destroy",
		"process.wait", "process.signal", "process.resize",
		"processes.list", "processes.reconnect", "processes.logs", "processes.kill",
		"files.stat", "files.list", "files.read", "files.write", "files.mkdir", "files.remove", "files.move",
		"archive.export", "archive.import", "watch", "pause", "resume", "snapshot", "restore",
	}
}

// World is where sandboxes live. The zero value is empty and ready to use. A
// World may be shared by many providers.
type World struct {
	mu        sync.Mutex
	sandboxes map[sandbox.ID]*fakeSandbox
}

// Provider is a driver.Provider. Make one with New.
type Provider struct {
	world     *World
	fault     func(op string) error
	bare      bool
	limited   bool
	isolation sandbox.Isolation
	binding   string
	former    []string

	snapshots *snapshotstore.Snapshots // nil: none
}

var (
	_ driver.Provider = (*Provider)(nil)
	_ driver.Binder   = (*Provider)(nil)
)

// New returns a provider.
func New(opts Options) *Provider {
	p := &Provider{world: opts.World, fault: opts.Fault, bare: opts.Bare, limited: opts.Limited, isolation: opts.Isolation, binding: opts.Binding, former: opts.Former}
	switch {
	case p.world == nil:
		p.world, p.binding = &World{}, cmp.Or(p.binding, "memory")
	default:
		p.binding = cmp.Or(p.binding, fmt.Sprintf("memory:%p", p.world))
	}
	if opts.SnapshotDir != "" {
		p.snapshots = snapshotstore.NewSnapshots(opts.SnapshotDir, "fake", describeTree)
	}
	return p
}

// Binding implements driver.Binder.
func (p *Provider) Binding(ctx context.Context) (string, error) { return p.binding, ctx.Err() }

// FormerBindings implements driver.FormerBinder.
func (p *Provider) FormerBindings(ctx context.Context) ([]string, error) { return p.former, ctx.Err() }

// begin is called first in every operation.
func (p *Provider) begin(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.fault == nil {
		return nil
	}
	failed := make(chan error, 1)
	go func() { failed <- p.fault(op) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Probe returns what the fake can do.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	if err := p.begin(ctx, "probe"); err != nil {
		return driver.Facts{}, err
	}
	no := driver.Limit{Why: "the fake runs nothing that could be limited"}
	if p.limited {
		no = driver.Limit{Holds: true, By: "the test"}
	}
	f := driver.Facts{
		Provider: "fake", Version: "1", Engine: engine, Available: true, Isolates: true, Isolation: p.isolation,
		Findings: []driver.Finding{{Severity: driver.Warning, Subject: "isolation", Message: "sandboxes are simulated inside this process, for tests only"}},
		Limits: map[string]driver.Limit{
			"cpus": no, "memory": no, "disk": no,
			"pids":     {Holds: true, By: "the fake itself"},
			"lifetime": {Holds: true, By: "a timer in this process"},
		},
		Capabilities: driver.Capabilities{Reattach: true},
	}
	if !p.bare {
		f.Capabilities = driver.Capabilities{
			Files: true, Watch: true, Archive: true, Processes: true, Reattach: true, Pause: true, Snapshot: p.snapshots != nil,
			Ports: true, Resize: true, Deadline: true, Usage: true,
		}
	}
	return f, nil
}

// Create makes a sandbox from the fake's only image, "host".
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.begin(ctx, "create"); err != nil {
		return nil, err
	}
	if err := p.supports(spec); err != nil {
		return nil, err
	}
	b, err := newFakeSandbox(spec)
	if err != nil {
		return nil, err
	}
	return p.add(b)
}

// supports refuses what the fake cannot do.
func (p *Provider) supports(spec *sandbox.Spec) error {
	switch {
	case spec.Image != "" && spec.Image != "host":
		return fail(sandbox.CodeUnsupported, "create", "image", "the fake has no image but host")
	case len(spec.Mounts) > 0:
		return fail(sandbox.CodeUnsupported, "create", "mounts", "the fake cannot mount")
	case spec.Network.Asked():
		return fail(sandbox.CodeUnsupported, "create", "network", "the fake has no network")
	}
	return userSupported("create", spec.User)
}

// userSupported refuses users other than the one there is.
func userSupported(op, user string) error {
	if who, ok := lookUser(user); !ok || who != (owner{}) {
		return fail(sandbox.CodeUnsupported, op, "user", "the fake has no user but root")
	}
	return nil
}

// add lets a sandbox begin to live.
func (p *Provider) add(b *fakeSandbox) (driver.Instance, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	id := b.spec.ID
	if _, taken := p.world.sandboxes[id]; taken {
		return nil, fail(sandbox.CodeAlreadyExists, "create", string(id), "the ID is taken")
	}
	if p.world.sandboxes == nil {
		p.world.sandboxes = map[sandbox.ID]*fakeSandbox{}
	}
	p.world.sandboxes[id] = b
	b.start()
	return p.instance(b), nil
}

// instance returns a handle of a sandbox.
func (p *Provider) instance(b *fakeSandbox) driver.Instance {
	i := &instance{provider: p, fakeSandbox: b}
	if p.bare {
		return bare{i}
	}
	return i
}

// Attach finds a sandbox of this provider's world.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := p.begin(ctx, "attach"); err != nil {
		return nil, err
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	b, ok := p.world.sandboxes[id]
	if !ok {
		return nil, fail(sandbox.CodeGone, "attach", string(id), "no such sandbox")
	}
	return p.instance(b), nil
}

// List yields the sandboxes of this provider's world, oldest first.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		if err := p.begin(ctx, "list"); err != nil {
			yield(driver.Found{}, err)
			return
		}
		p.world.mu.Lock()
		sandboxes := slices.Collect(maps.Values(p.world.sandboxes))
		p.world.mu.Unlock()
		slices.SortFunc(sandboxes, func(a, b *fakeSandbox) int { return a.created.Compare(b.created) })
		for _, b := range sandboxes {
			if err := ctx.Err(); err != nil {
				yield(driver.Found{}, err)
				return
			}
			if !yield(b.found(), nil) {
				return
			}
		}
	}
}

// forget removes a sandbox from the world, if it is still this one.
func (w *World) forget(b *fakeSandbox) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sandboxes[b.spec.ID] == b {
		delete(w.sandboxes, b.spec.ID)
	}
}

// ErrorCode classifies an error. An error that came from Options.Fault and is
// neither a *sandbox.Error nor of a context is not known.
func (p *Provider) ErrorCode(err error) sandbox.Code {
	var e *sandbox.Error
	if errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return sandbox.CodeOf(err)
	}
	return ""
}

// Close does nothing: the sandboxes belong to the World.
func (p *Provider) Close() error { return nil }

func fail(code sandbox.Code, op, subject, message string) error {
	return &sandbox.Error{Code: code, Op: op, Subject: subject, Message: message}
}
