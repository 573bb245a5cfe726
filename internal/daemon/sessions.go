package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/sandboxes/create"
	"github.com/atoll-run/atoll/internal/control/sandboxes/pause"
	"github.com/atoll-run/atoll/internal/control/sandboxes/reconcile"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/control/sessions"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/metrics"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// openSessions opens the session service. It needs the other services.
func (d *Daemon) openSessions(ctx context.Context) error {
	environments, err := snapshotstore.OpenEnvironments(filepath.Join(d.node.Dir(), "session-environments"), filepath.Join(d.node.Dir(), "seal.key"))
	if err != nil {
		return err
	}
	first, err := store.Read(ctx, d.store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, key.DefaultTenant) })
	if err != nil {
		return err
	}
	durations := lease.Default()
	if d.opts.SessionGrace > 0 {
		durations.Grace = d.opts.SessionGrace
	}
	hard := time.Duration(0)
	if d, ok := catalog.Find(d.opts.Provider); ok {
		hard = d.Lifetime.Hard
	}
	if err := durations.Check(lease.Sweep, 0, hard); err != nil {
		return err
	}
	scratch := filepath.Join(d.node.Dir(), "session-transfers")
	if err := os.RemoveAll(scratch); err != nil { // left by a killed daemon
		return err
	}
	d.leases = metrics.NewLeases()
	d.sessions = sessions.New(d.services.Core, sessions.Config{
		Sandboxes: newSessionSandboxes(d.services), Snapshots: d.services.Snapshots, Providers: d.services.Providers, Workspaces: d.services.Workspaces, Environments: environments, Machines: d.services.Machines,
		Archive: d.archive, Plain: d.opts.PlainSnapshots, Scratch: scratch,
		Binding: installation(first.Created), Lease: durations, Observer: d.leases, Turns: &d.recordings,
	})
	if d.fleet != nil {
		d.services.Nodes.Connect(d.fleet, d.sessions.Movers)
	}
	return nil
}

// installation returns the name of the installation whose store was created at
// a time. Daemons that share a store are one installation.
func installation(made time.Time) string {
	sum := sha256.Sum256([]byte(made.UTC().Format(time.RFC3339Nano)))
	return "atoll:" + hex.EncodeToString(sum[:8])
}

// sessionSandboxes adapts the sandboxes of this daemon to sessions.
type sessionSandboxes struct {
	*create.Creator
	*pause.Pauser
	*remove.Remover
	*reconcile.Reconciler
	records *records.Records
	exec    *exec.Service
}

func newSessionSandboxes(s *services.Services) sessionSandboxes {
	b := s.Sandboxes
	return sessionSandboxes{b.Creator, b.Pauser, b.Remover, b.Reconciler, b.Records, s.Exec}
}

func (s sessionSandboxes) Make(ctx context.Context, spec sandbox.Spec, key string, replaces sandbox.ID) (sandbox.ID, error) {
	made, err := s.Create(ctx, plan.Request{
		CreateRequest: sandbox.CreateRequest{Spec: spec, IdempotencyKey: key, Raw: []byte(key)}, OfSession: true, Replaces: replaces,
	})
	return made.ID, err
}

func (s sessionSandboxes) Reach(ctx context.Context, ref string) error {
	ctx, cancel := context.WithCancel(ctx) // the sandbox is in use until ctx ends
	defer cancel()
	h, err := s.exec.Open(ctx, ref)
	if err != nil {
		return err
	}
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return s.records.Intact(ctx, who.Tenant, h.ID())
}

func (s sessionSandboxes) Files(ctx context.Context, ref string) (engine.Files, error) {
	h, err := s.exec.Open(ctx, ref)
	if err != nil {
		return engine.Files{}, err
	}
	return h.Files(), nil
}
