// Package sandboxtest gives tests of single services of sandboxes the services
// below them, on a provider that the test decides about.
package sandboxtest

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/tenants"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Provider is the name of the provider, and Binding its account or machine.
const (
	Provider = "fake"
	Binding  = "account-1"
)

// Rig is what services of sandboxes stand on. Its sandboxes have no workspaces and
// no policies.
type Rig struct {
	Core       *core.Core
	Provider   *coretest.Provider
	Records    *records.Records
	Providers  *providers.Service
	Snapshots  *snapshots.Service
	Workspaces *workspaces.Service
	Policies   *policies.Service
	Tenants    *tenants.Service
	Ports      *ports.Service
	Ends       *supervise.Ends
}

// Open returns a Rig on an empty store. It is closed with the test.
func Open(t testing.TB, p *coretest.Provider) *Rig {
	t.Helper()
	c := coretest.Open(t)
	if p.Can.Provider == "" {
		p.Can = driver.Facts{Provider: Provider, Available: true, Isolation: sandbox.IsolationKernel, Capabilities: p.Can.Capabilities, Limits: p.Can.Limits}
	}
	r := &Rig{Core: c, Provider: p, Records: records.New(c)}
	r.Providers = providers.New(c, providers.Config{Default: providers.Opened{Name: Provider, Binding: Binding, Engine: engine.Config{Provider: p, Owner: owner{}}}})
	r.Snapshots = snapshots.New(c, snapshots.Config{Providers: r.Providers, Sandboxes: r.Records})
	r.Workspaces = workspaces.New(c, workspaces.Config{Sandboxes: r.Records})
	r.Policies = policies.New(c, policies.Config{Snapshot: r.Snapshots.Find})
	r.Tenants = tenants.New(c)
	r.Ports = ports.New(c, nil)
	r.Ends = &supervise.Ends{Core: c, Records: r.Records, Exec: quiet{}}
	r.Records.Providers, r.Records.Workspaces, r.Records.Snapshots, r.Records.Secrets, r.Records.Ports = r.Providers, r.Workspaces, r.Snapshots, quiet{}, r.Ports
	return r
}

// Dead names a process that has ended, in the label engine.LabelOwner.
const Dead = "dead"

// owner is the owner of sandboxes that must not outlive this process.
type owner struct{}

func (owner) Token() string          { return "me" }
func (owner) Dead(token string) bool { return token == Dead }
func (owner) Foreign(string) bool    { return false }

// quiet has no commands and no secrets.
type quiet struct{}

func (quiet) WatchBackground(string, *engine.Sandbox) {}
func (quiet) Forget(sandbox.ID)                       {}

// Add records a sandbox of coretest.Acme at the provider.
func (r *Rig) Add(t testing.TB, b store.Sandbox) store.Sandbox {
	t.Helper()
	if b.Provider == "" {
		b.Provider, b.Binding = Provider, Binding
	}
	state := b.State
	if state == sandbox.Gone {
		b.State = sandbox.Running
	}
	b.Spec.ID = b.ID
	b = coretest.Add(t, r.Core, coretest.Acme, b)
	if state != sandbox.Gone {
		return b
	}
	reason := b.Reason
	b, err := store.Write(t.Context(), r.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(t.Context(), coretest.Acme, b.ID, store.Expect{}, func(b *store.Sandbox) { b.State, b.Reason = sandbox.Gone, reason })
	})
	coretest.OK(t, err)
	return b
}

// Save records a snapshot of a tenant. It is here and complete unless it says
// otherwise.
func (r *Rig) Save(t testing.TB, tenant string, s store.Snapshot, complete bool) store.Snapshot {
	t.Helper()
	if s.Provider == "" {
		s.Provider, s.Binding = Provider, Binding
	}
	if s.Node == "" {
		s.Node = coretest.Node
	}
	s, err := store.Write(t.Context(), r.Core.Store, func(tx *store.Tx) (store.Snapshot, error) {
		s, err := tx.Snapshots().Create(t.Context(), tenant, s)
		if err == nil && complete {
			err = tx.Snapshots().Finish(t.Context(), tenant, s.ID, snapshots.Taken(driver.Snapshot{Ref: coretest.Ref(s.ID, s.Memory)}))
		}
		return s, err
	})
	coretest.OK(t, err)
	return s
}

// Record returns the present record of a sandbox.
func (r *Rig) Record(t testing.TB, id sandbox.ID) store.Sandbox {
	t.Helper()
	b, err := r.Records.Record(context.Background(), coretest.Acme, id)
	coretest.OK(t, err)
	return b
}
