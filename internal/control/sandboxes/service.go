// Package sandboxes manages the life of sandboxes: create, fork, pause, stop,
// update and remove, on request or because a time limit was reached.
// [Service.Reconcile] compares the records with the sandboxes that exist at the
// providers.
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
	"github.com/atoll-run/atoll/internal/control/inuse"
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
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/sandbox"
)

// Services are the other services that this one uses.
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
	// Gate limits concurrent creations. Nil: no limit.
	Gate *admission.Gate
	// Recordings are stored before a sandbox is paused or put to disk.
	Recordings Recordings
}

// Recordings stores recordings of terminals.
type Recordings interface {
	// Flush stores what the recordings of a sandbox have until now. It takes 10
	// seconds at most.
	Flush(ctx context.Context, id sandbox.ID)
}

// Service manages sandboxes. It is safe for concurrent use. The caller calls
// Reconcile before the first request.
type Service struct {
	*records
	*creator
	*pauser
	*updater
	*opener
	*expirer
	*reconciler
}

// New returns a Service. The caller fills in Services before the first request;
// they are set later because some of them need this one.
func New(c *core.Core) *Service {
	r := &records{Core: c, Services: new(Services), hurry: make(chan struct{}, 1), due: make(due, 1)}
	pauser := &pauser{records: r}
	return &Service{
		records: r, creator: &creator{r, pauser}, pauser: pauser, updater: &updater{r}, opener: &opener{r, pauser},
		expirer: &expirer{r, pauser}, reconciler: &reconciler{r, pauser},
	}
}

// Connect sets the services.
func (s *Service) Connect(all Services) { *s.Services = all }

// records finds, locks and changes the records of sandboxes, and watches
// running sandboxes.
type records struct {
	*core.Core
	*Services
	locks    keyed.Locks[sandbox.ID]
	watched  sync.Map // sandbox.ID → *watcher: the goroutine that waits for its end
	ending   sync.Map // sandbox.ID → nil: being removed
	stopping sync.Map // sandbox.ID → nil: being stopped
	// restarting are the main commands (mainProcess) that are about to be
	// restarted, and backoffs are the last delays, by sandbox.
	restarting, backoffs sync.Map
	inflight             keyed.Inflight[sandbox.ID]
	uses                 inuse.Sandboxes
	due                  due
	// unsettled means that a state is known to be incomplete.
	unsettled atomic.Bool
	hurry     chan struct{} // makes Watch reconcile soon
}

// creator creates and forks sandboxes.
type creator struct {
	*records
	pauser *pauser
}

// pauser pauses, stops and restarts sandboxes.
type pauser struct{ *records }

// updater changes limits, labels and network of sandboxes.
type updater struct{ *records }

// opener opens sandboxes, and wakes sleeping ones.
type opener struct {
	*records
	pauser *pauser
}

// expirer ends or pauses sandboxes that are idle or expired.
type expirer struct {
	*records
	pauser *pauser
}

// reconciler compares the records with the sandboxes that exist.
type reconciler struct {
	*records
	pauser *pauser
}

func actionOf(who key.Principal, a control.Action) audit.Action {
	return guard.Action(who, a.Op, core.SubjectOf(a))
}

// admitted waits until a sandbox of a tenant may be created with a provider.
// The caller calls leave after the creation. The limit applies only to
// sandboxes that run on this machine.
func (s *records) admitted(ctx context.Context, be *providers.Backend, tenant string) (leave func(), err error) {
	facts, err := be.Facts(ctx)
	if err != nil || facts.Engine == "" && !facts.SharesFiles {
		return func() {}, err
	}
	return s.Gate.Enter(ctx, tenant)
}

// Creating reports whether this process is creating a sandbox.
func (s *records) Creating(id sandbox.ID) bool { return s.inflight.Has(id) }

// Unsettled makes the next reconciliation start soon.
func (s *records) Unsettled() { s.unsettled.Store(true) }

// doubt makes the next reconciliation start soon, because something could not
// be recorded.
func (s *records) doubt() {
	s.unsettled.Store(true)
	select {
	case s.hurry <- struct{}{}:
	default:
	}
}
