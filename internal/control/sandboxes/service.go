// Package sandboxes makes sandboxes and changes what becomes of them: create, fork,
// pause, stop, update and remove, at the request of a tenant or because a time is
// over. [Service.Reconcile] brings the records and what providers really have
// together.
package sandboxes

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/templates"
	"github.com/atoll-run/atoll/internal/control/tenants"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/sandbox"
)

// Services are those that a sandbox needs.
type Services struct {
	Providers  *providers.Service
	Exec       *exec.Service
	Workspaces *workspaces.Service
	Tenants    *tenants.Service
	Snapshots  *snapshots.Service
	Policies   *policies.Service
	Profiles   *profiles.Service
	Secrets    *secrets.Service
	Templates  *templates.Service
	Ports      *ports.Service
	// Gate bounds what is made at a time. Nil: nothing does.
	Gate *admission.Gate
}

// Service makes sandboxes and changes what becomes of them. Its methods may be
// called concurrently. The caller calls Reconcile before the first request.
type Service struct {
	*records
	*makers
	*rests
	*updates
	*users
	*lifetimes
	*reconciler
}

// New returns a Service. Because some of the others need it too, it gets them later:
// the caller fills Services before the first request.
func New(c *core.Core) *Service {
	r := &records{Core: c, Services: new(Services), hurry: make(chan struct{}, 1), due: make(due, 1)}
	rests := &rests{records: r}
	return &Service{
		records: r, makers: &makers{r, rests}, rests: rests, updates: &updates{r}, users: &users{r, rests},
		lifetimes: &lifetimes{r, rests}, reconciler: &reconciler{r, rests},
	}
}

// Connect says which services there are.
func (s *Service) Connect(all Services) { *s.Services = all }

// records finds, locks and changes the records of sandboxes, and follows the lives of
// those that run.
type records struct {
	*core.Core
	*Services
	locks    core.Locks[sandbox.ID]
	watched  sync.Map // sandbox.ID → *watcher: those that a goroutine waits for
	ending   sync.Map // sandbox.ID → nil: those that are being removed
	stopping sync.Map // sandbox.ID → nil: those that somebody stops
	// restarting are those whose main command is about to be started again, and
	// backoffs how long that took last.
	restarting, backoffs sync.Map
	inflight             core.Inflight[sandbox.ID]
	uses                 uses
	due                  due
	// unsettled says that something is known to be half-made.
	unsettled atomic.Bool
	hurry     chan struct{} // tells Watch so
}

// makers create and fork.
type makers struct {
	*records
	rests *rests
}

// rests pause, stop and bring back.
type rests struct{ *records }

// updates change what a sandbox may use and reach.
type updates struct{ *records }

// users open sandboxes, and wake them for that.
type users struct {
	*records
	rests *rests
}

// lifetimes end or put away sandboxes that nobody uses, or whose time is over.
type lifetimes struct {
	*records
	rests *rests
}

// reconciler compares the records with what exists.
type reconciler struct {
	*records
	rests *rests
}

func actionOf(who key.Principal, a control.Action) audit.Action {
	return guard.Action(who, a.Op, core.SubjectOf(a))
}

// admitted waits until a sandbox of a tenant may be made with a provider; the caller
// calls leave when that is over. Only those that run on this machine, which have
// an engine, take its processors and memory.
func (s *records) admitted(ctx context.Context, be *providers.Backend, tenant string) (leave func(), err error) {
	facts, err := be.Facts(ctx)
	if err != nil || facts.Engine == "" && !facts.SharesFiles {
		return func() {}, err
	}
	return s.Gate.Enter(ctx, tenant)
}

// Creating reports whether this process is creating a sandbox.
func (s *records) Creating(id sandbox.ID) bool { return s.inflight.Has(id) }

// Unsettled makes the next reconciliation come soon.
func (s *records) Unsettled() { s.unsettled.Store(true) }

// doubt has the store compared with what really runs soon, because something
// could not be written down.
func (s *records) doubt() {
	s.unsettled.Store(true)
	select {
	case s.hurry <- struct{}{}:
	default:
	}
}
