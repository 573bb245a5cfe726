package services_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// machine is a state directory and the sandboxes that run, which both outlive
// the services.
type machine struct {
	dir   string
	world *fake.World
	now   func() time.Time // nil: time.Now
	// provider wraps the provider.
	provider func(driver.Provider) driver.Provider
}

func newMachine(t *testing.T) *machine { return &machine{dir: t.TempDir(), world: new(fake.World)} }

// start starts the services and the daemon's timers, and returns a function that
// stops them.
func (m *machine) start(t *testing.T) (p *services.Services, ctx context.Context, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := store.Open(ctx, filepath.Join(m.dir, "atoll.db"), store.Options{Now: m.now})
	must(err)
	_, err = store.Write(ctx, db, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Ensure(ctx, key.DefaultTenant) })
	must(err)
	log := eventlog.New(db, eventlog.Options{})
	environments, err := snapshotstore.OpenEnvironments(filepath.Join(m.dir, "environments"), filepath.Join(m.dir, "seal.key"))
	must(err)
	provider := driver.Provider(fake.New(fake.Options{World: m.world, Limited: true, SnapshotDir: filepath.Join(m.dir, "snapshots")}))
	if m.provider != nil {
		provider = m.provider(provider)
	}
	p = services.New(services.Config{
		Engine:   engine.Config{Provider: provider},
		Provider: "fake", Log: log, Environments: environments,
		Config: core.Config{Node: "local", Store: db, Audit: audit.New(log, audit.Options{}), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))},
	})
	ctx = guard.WithPrincipal(ctx, key.Peer(key.DefaultTenant, 0))
	must(p.Sandboxes.Reconciler.Reconcile(ctx))
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){p.Sandboxes.Reconciler.Watch, p.Sandboxes.Expirer.WatchIdle, p.Sandboxes.Expirer.WatchExpiry} {
		loops.Go(func() { loop(ctx) })
	}
	return p, ctx, sync.OnceFunc(func() {
		cancel()
		loops.Wait()
		if err := errors.Join(p.Close(), log.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
}

// clear ends what runs.
func (m *machine) clear(t *testing.T) {
	t.Helper()
	provider := fake.New(fake.Options{World: m.world})
	for f, err := range provider.List(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		inst, err := provider.Attach(context.Background(), f.ID)
		if err == nil {
			err = inst.Destroy(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func create(t *testing.T, p *services.Services, ctx context.Context, spec sandbox.Spec) store.Sandbox {
	t.Helper()
	made, err := p.Sandboxes.Creator.Create(ctx, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec}})
	if err != nil {
		t.Fatal(err)
	}
	return made.Sandbox
}

func get(t *testing.T, p *services.Services, ctx context.Context, ref string) store.Sandbox {
	t.Helper()
	b, err := p.Sandboxes.Records.Get(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// shell runs a script as one request does.
func shell(p *services.Services, ctx context.Context, ref, script string) (string, error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	sb, err := p.Exec.Open(ctx, ref)
	if err != nil {
		return "", err
	}
	proc, err := sb.Exec(ctx, sandbox.Command{Shell: script})
	if err != nil {
		return "", err
	}
	defer proc.Close()
	out, err := io.ReadAll(proc.Stdout())
	if err != nil {
		return "", err
	}
	_, err = proc.Wait(ctx)
	return string(out), err
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if err == nil || sandbox.CodeOf(err) != code {
		t.Errorf("got %v (%s), want %s", err, sandbox.CodeOf(err), code)
	}
}
