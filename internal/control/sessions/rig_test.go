package sessions

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// rig is the services of sessions, with the sandboxes of two providers in memory: one,
// which is the default, and two. Its clock moves only with later.
type rig struct {
	*Services
	core *core.Core
	env  memory
	*world
	passed atomic.Int64 // since coretest.Now
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{env: memory{}}
	r.core = coretest.OpenWith(t, func() time.Time { return coretest.Now.Add(time.Duration(r.passed.Load())) })
	blobs, err := blob.Open(t.Context(), "dir:"+t.TempDir())
	coretest.OK(t, err)
	r.world = newWorld(t, r.core, archive.New(blobs, bytes.Repeat([]byte{7}, 32)))
	r.Services = New(r.core, Config{
		Sandboxes: r.world, Snapshots: r.world, Providers: r.world, Workspaces: r.world, Environments: r.env,
		Archive: r.archive, Scratch: t.TempDir(), Binding: "atoll:here", Lease: lease.Config{Warming: time.Minute, Grace: time.Minute, ViewerTTL: time.Minute, Viewers: 2},
	})
	return r
}

func (r *rig) later(d time.Duration) { r.passed.Add(int64(d)) }

// as returns the context of a request of Acme.
func as(t *testing.T) context.Context {
	return coretest.As(t, coretest.Acme, key.Read, key.Write, key.Exec)
}

// limit sets the limits of Acme.
func (r *rig) limit(t *testing.T, l operator.Limits) {
	t.Helper()
	coretest.OK(t, r.core.Store.Update(t.Context(), func(tx *store.Tx) error { return tx.Tenants().SetLimits(t.Context(), coretest.Acme, l) }))
}

// session makes a session of Acme without a sandbox.
func (r *rig) session(t *testing.T, n durable.NewSession) {
	t.Helper()
	_, err := r.Sessions.Create(as(t), n)
	coretest.OK(t, err)
}

// acquire makes a holder of the kind operator, and returns what it got.
func (r *rig) acquire(t *testing.T, name, holder string) durable.Acquired {
	t.Helper()
	got, err := r.Holders.Acquire(as(t), name, durable.HolderRef{ID: holder})
	coretest.OK(t, err)
	return got
}

// orphan adds a sandbox of an attempt that its daemon did not finish.
func (r *rig) orphan(t *testing.T, name string) {
	t.Helper()
	group := r.get(t, name).Group
	all := r.Movers.leases.of(coretest.Acme)
	l, err := all.Load(t.Context(), group)
	coretest.OK(t, err)
	l, _, err = all.Apply(t.Context(), group, lease.Depart{Epoch: l.Epoch})
	coretest.OK(t, err)
	_, err = r.Make(t.Context(), sandbox.Spec{}, attemptKey(group, l.Attempt), "")
	coretest.OK(t, err)
	_, _, err = all.Apply(t.Context(), group, lease.Stay{Epoch: l.Epoch, Attempt: l.Attempt})
	coretest.OK(t, err)
}

// removing marks a session as one whose removal was not finished.
func (r *rig) removing(t *testing.T, name string) {
	t.Helper()
	coretest.OK(t, r.core.Store.Update(t.Context(), func(tx *store.Tx) error {
		row, err := tx.Sessions().Get(t.Context(), coretest.Acme, name)
		if err != nil {
			return err
		}
		row.Removing = true
		return tx.Sessions().Update(t.Context(), row)
	}))
}

// get returns a session of Acme.
func (r *rig) get(t *testing.T, name string) durable.Session {
	t.Helper()
	s, err := r.Sessions.Get(as(t), name)
	coretest.OK(t, err)
	return s
}

// ledger lists the archives that are recorded for Acme, as STATE REF.
func (r *rig) ledger(t *testing.T) (all []string) {
	t.Helper()
	kept, err := store.Read(t.Context(), r.core.Store, func(tx *store.Tx) ([]store.KeptArchive, error) {
		return tx.Sessions().Archives(t.Context(), coretest.Acme, "")
	})
	coretest.OK(t, err)
	for _, k := range kept {
		all = append(all, string(k.State)+" "+k.Archive.Ref)
	}
	return all
}

// world has the sandboxes, snapshots and workspaces of Acme. It notes what is done to
// them. It is safe for concurrent use.
type world struct {
	core      *core.Core
	archive   *archive.Archive
	providers map[string]*fake.Provider
	engines   map[string]*engine.Engine
	// listed describes the providers, and facts are their capabilities.
	listed []catalog.Provider
	facts  map[string]driver.Facts
	// These are sets of providers: machines of their users, those that pause for a
	// snapshot, those that save only stopped sandboxes, nodes, and those that may not be
	// chosen.
	permanent, pauses, stopped, nodes, denied map[string]bool

	reached func() // called when a sandbox is reached; may be nil

	mu sync.Mutex
	// fails has an error for each call that fails, by what it does to what: "make two",
	// "reach sb-1" or all that is noted. lost are calls that have an effect before they fail.
	fails, lost map[string]error
	did         []string
	made        int
	snapshots   map[string]bool
	versions    map[string]int // of workspaces
}

func newWorld(t *testing.T, c *core.Core, a *archive.Archive) *world {
	w := &world{
		core: c, archive: a, providers: map[string]*fake.Provider{}, engines: map[string]*engine.Engine{}, facts: map[string]driver.Facts{},
		permanent: map[string]bool{}, pauses: map[string]bool{}, stopped: map[string]bool{}, nodes: map[string]bool{}, denied: map[string]bool{},
		fails: map[string]error{}, lost: map[string]error{}, snapshots: map[string]bool{}, versions: map[string]int{},
	}
	for _, name := range []string{"one", "two"} {
		p := fake.New(fake.Options{Binding: name, Limited: true})
		t.Cleanup(func() { coretest.OK(t, p.Close()) })
		w.providers[name], w.engines[name] = p, engine.New(engine.Config{Provider: p})
		w.facts[name] = driver.Facts{Provider: name, Capabilities: driver.Capabilities{Snapshot: true}}
		w.listed = append(w.listed, catalog.Provider{
			Name: name, Default: name == "one", Available: true, Isolates: true, Images: true,
			Capabilities: map[string]bool{"archive": true, "files": true},
			Descriptor:   catalog.Descriptor{Name: name, Tier: catalog.TierDev, RunAs: true},
		})
	}
	return w
}

// do notes what is done, unless it fails.
func (w *world) do(format string, args ...any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	what := fmt.Sprintf(format, args...)
	if err := cmp.Or(w.fails[what], w.fails[strings.Join(strings.Fields(what)[:2], " ")]); err != nil {
		return err
	}
	w.did = append(w.did, what)
	return nil
}

// done returns what was done since the last call.
func (w *world) done() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	did := strings.Join(w.did, ", ")
	w.did = nil
	return did
}

// fail makes a call fail. Nil: no more.
func (w *world) fail(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails[what] = err
}

// change changes the record of a sandbox, as its provider or a person does.
func (w *world) change(t *testing.T, id sandbox.ID, change func(*store.Sandbox)) {
	t.Helper()
	coretest.OK(t, w.update(t.Context(), id, change))
}

func (w *world) update(ctx context.Context, id sandbox.ID, change func(*store.Sandbox)) error {
	_, err := store.Write(ctx, w.core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(ctx, coretest.Acme, id, store.Expect{}, change)
	})
	return err
}

func (w *world) record(ctx context.Context, id string) (store.Sandbox, error) {
	return store.Read(ctx, w.core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Get(ctx, coretest.Acme, sandbox.ID(id))
	})
}

func (w *world) enter(ctx context.Context, id sandbox.ID, state sandbox.State) (store.Sandbox, error) {
	err := w.update(ctx, id, func(b *store.Sandbox) { b.State = state })
	if err != nil {
		return store.Sandbox{}, err
	}
	return w.record(ctx, string(id))
}

// living returns the sandboxes that are not gone.
func (w *world) living(t *testing.T) (all []string) {
	t.Helper()
	for i := range w.made {
		b, err := w.record(t.Context(), fmt.Sprint("sb-", i+1))
		coretest.OK(t, err)
		if b.State != sandbox.Gone {
			all = append(all, string(b.ID))
		}
	}
	return all
}

// Make implements Sandboxes.
func (w *world) Make(ctx context.Context, spec sandbox.Spec, key string, replaces sandbox.ID) (sandbox.ID, error) {
	provider := cmp.Or(spec.Provider, "one")
	what := "make " + provider
	if spec.Snapshot != "" {
		what += " from a snapshot"
	}
	if replaces != "" {
		what += " instead of " + string(replaces)
	}
	if err := w.do("%s", what); err != nil {
		return "", err
	}
	w.mu.Lock()
	w.made++
	id := sandbox.ID(fmt.Sprint("sb-", w.made))
	w.mu.Unlock()
	spec.ID = id
	b := store.Sandbox{Spec: spec}
	b.ID, b.Name, b.Node, b.State, b.Provider, b.Binding, b.Isolation = id, string(id), coretest.Node, sandbox.Running, provider, provider, sandbox.IsolationKernel
	if _, err := w.providers[provider].Create(ctx, &sandbox.Spec{ID: id}); err != nil {
		return "", err
	}
	_, err := store.Write(ctx, w.core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		b, _, err := tx.Sandboxes().Create(ctx, coretest.Acme, b, store.Create{IdempotencyKey: key, OfSession: true})
		return b, err
	})
	return id, cmp.Or(err, w.lost[what])
}

// Isolation implements Sandboxes.
func (*world) Isolation(string, *sandbox.Spec) sandbox.Isolation { return "" }

// Reach implements Sandboxes.
func (w *world) Reach(_ context.Context, ref string) error {
	if w.reached != nil {
		w.reached()
	}
	return w.do("reach %s", ref)
}

// Resume implements Sandboxes.
func (w *world) Resume(ctx context.Context, ref string) (store.Sandbox, error) {
	if err := w.do("resume %s", ref); err != nil {
		return store.Sandbox{}, err
	}
	return w.enter(ctx, sandbox.ID(ref), sandbox.Running)
}

// Start implements Sandboxes.
func (w *world) Start(ctx context.Context, ref string) (store.Sandbox, error) {
	if err := w.do("start %s", ref); err != nil {
		return store.Sandbox{}, err
	}
	return w.enter(ctx, sandbox.ID(ref), sandbox.Running)
}

// Pause implements Sandboxes.
func (w *world) Pause(ctx context.Context, ref string, toDisk bool) (store.Sandbox, error) {
	if err := w.do("pause %s to-disk=%v", ref, toDisk); err != nil {
		return store.Sandbox{}, err
	}
	return w.enter(ctx, sandbox.ID(ref), sandbox.Paused)
}

// Destroy implements Sandboxes.
func (w *world) Destroy(ctx context.Context, ref string) error {
	if err := w.do("destroy %s", ref); err != nil {
		return err
	}
	_, err := w.enter(ctx, sandbox.ID(ref), sandbox.Gone)
	return err
}

// TakeOver implements Sandboxes.
func (*world) TakeOver(context.Context, string, string, sandbox.Spec) (store.Sandbox, error) {
	return store.Sandbox{}, &sandbox.Error{Code: sandbox.CodeGone, Message: "it ended"}
}

// Files implements Sandboxes.
func (w *world) Files(ctx context.Context, ref string) (engine.Files, error) {
	b, err := w.record(ctx, ref)
	if err == nil {
		w.mu.Lock()
		err = w.fails["files "+ref]
		w.mu.Unlock()
	}
	if err != nil {
		return engine.Files{}, err
	}
	sb, err := w.engines[b.Provider].Attach(ctx, b.ID, b.Name)
	if err != nil {
		return engine.Files{}, err
	}
	return sb.Files(), nil
}

// Flush implements Sandboxes.
func (*world) Flush(context.Context, sandbox.ID) {}

// write writes the file note below /workspace of a sandbox.
func (w *world) write(t *testing.T, id sandbox.ID, text string) {
	t.Helper()
	files, err := w.Files(t.Context(), string(id))
	coretest.OK(t, err)
	_, err = files.Write(t.Context(), sandbox.WorkspaceDir+"/note", strings.NewReader(text), driver.WriteOptions{})
	coretest.OK(t, err)
}

// read returns the file note below /workspace of a sandbox; empty: there is none.
func (w *world) read(t *testing.T, id sandbox.ID) string {
	t.Helper()
	files, err := w.Files(t.Context(), string(id))
	coretest.OK(t, err)
	r, _, err := files.Read(t.Context(), sandbox.WorkspaceDir+"/note", driver.ReadOptions{})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return ""
	}
	coretest.OK(t, err)
	defer r.Close()
	text, err := io.ReadAll(r)
	coretest.OK(t, err)
	return string(text)
}

// CreateSnapshot implements Snapshots.
func (w *world) CreateSnapshot(ctx context.Context, ref string, req durable.SnapshotRequest) (durable.Snapshot, error) {
	if b, err := w.record(ctx, ref); err != nil || b.State == sandbox.Running && w.stopped[b.Provider] {
		return durable.Snapshot{}, cmp.Or(err, error(errEnded))
	}
	if err := w.do("save %s", ref); err != nil {
		return durable.Snapshot{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshots[req.Name] = true
	return durable.Snapshot{Name: req.Name, Size: 7}, nil
}

// RemoveSnapshot implements Snapshots.
func (w *world) RemoveSnapshot(_ context.Context, ref string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fails["remove snapshot"]; err != nil {
		return err
	}
	delete(w.snapshots, ref)
	return nil
}

// PersistWorkspace implements Workspaces.
func (w *world) PersistWorkspace(_ context.Context, name, _ string) (durable.WorkspaceVersion, error) {
	if err := w.do("persist %s", name); err != nil {
		return durable.WorkspaceVersion{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.versions[name]++
	return durable.WorkspaceVersion{Number: w.versions[name]}, nil
}

// Workspace implements Workspaces.
func (w *world) Workspace(_ context.Context, name string) (durable.Workspace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := durable.Workspace{Name: name}
	if n := w.versions[name]; n > 0 {
		out.Latest = &durable.WorkspaceVersion{Number: n}
	}
	return out, nil
}

// Providers implements Providers.
func (w *world) Providers(context.Context) ([]catalog.Provider, error) { return w.listed, nil }

// Binding implements Providers.
func (w *world) Binding(_ context.Context, provider string) (string, error) {
	if w.providers[provider] == nil {
		return "", &sandbox.Error{Code: sandbox.CodeInvalid, Message: "there is no such provider"}
	}
	return provider, nil
}

// Present implements Providers.
func (*world) Present(_ context.Context, _, binding string) string { return binding }

// Facts implements Providers.
func (w *world) Facts(_ context.Context, provider string) (driver.Facts, error) {
	return w.facts[provider], nil
}

// CheckImage implements Providers.
func (w *world) CheckImage(_ context.Context, provider, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fails["image "+provider]
}

// Permanent implements Providers.
func (w *world) Permanent(_ context.Context, name string) bool { return w.permanent[name] }

// SnapshotPauses implements Providers.
func (w *world) SnapshotPauses(_ context.Context, name string) bool { return w.pauses[name] }

// OnNode implements Providers.
func (w *world) OnNode(name string) bool { return w.nodes[name] }

// Accepts implements Providers.
func (*world) Accepts(string) bool { return true }

// Place implements Providers.
func (w *world) Place(*sandbox.Spec) (provider, why string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return "two", "", w.fails["place"]
}

// Permit implements Providers.
func (w *world) Permit(_ context.Context, _ key.Principal, name string) error {
	if w.denied[name] {
		return &sandbox.Error{Code: sandbox.CodeDenied, Message: "for the owner of the machine only"}
	}
	return nil
}
