// Package sandboxes assembles the services for the life of sandboxes. Each is a
// package of its own:
//
//   - records finds, locks and changes the records of sandboxes. All others use it.
//   - prepare finds what is needed to make a sandbox; create makes it.
//   - access reads and opens sandboxes.
//   - pause pauses, stops and resumes them; update changes them; remove ends them.
//   - supervise notices that a sandbox or its main command has ended.
//   - expire ends or pauses what is idle or expired.
//   - reconcile compares the records with what exists at the providers.
package sandboxes

import (
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/access"
	"github.com/atoll-run/atoll/internal/control/sandboxes/create"
	"github.com/atoll-run/atoll/internal/control/sandboxes/expire"
	"github.com/atoll-run/atoll/internal/control/sandboxes/pause"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/reconcile"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/sandboxes/update"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/templates"
	"github.com/atoll-run/atoll/internal/control/tenants"
	"github.com/atoll-run/atoll/internal/control/workspaces"
)

// Others are the other services that those of this package use.
type Others struct {
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
	Recordings pause.Recordings
}

// Services manage sandboxes. They are safe for concurrent use. The caller calls
// Reconciler.Reconcile before the first request.
type Services struct {
	Records    *records.Records
	Creator    *create.Creator
	Reader     *access.Reader
	Opener     *access.Opener
	Entrance   *access.Entrance
	Pauser     *pause.Pauser
	Updater    *update.Updater
	Remover    *remove.Remover
	Ends       *supervise.Ends
	Mains      *supervise.Mains
	Expirer    *expire.Expirer
	Reconciler *reconcile.Reconciler
}

// New returns Services. The caller calls Connect before the first request; that
// is later because some of the others need these.
func New(c *core.Core) *Services {
	r := records.New(c)
	s := &Services{
		Records: r, Reader: &access.Reader{Core: c, Records: r}, Remover: &remove.Remover{Core: c, Records: r},
		Ends: &supervise.Ends{Core: c, Records: r}, Updater: &update.Updater{Core: c, Records: r}, Reconciler: &reconcile.Reconciler{Core: c, Records: r},
	}
	s.Mains = &supervise.Mains{Core: c, Records: r, Remover: s.Remover}
	s.Creator = &create.Creator{Core: c, Records: r, Remover: s.Remover, Ends: s.Ends, Mains: s.Mains}
	s.Pauser = &pause.Pauser{Core: c, Records: r, Remover: s.Remover, Ends: s.Ends, Mains: s.Mains}
	s.Opener = &access.Opener{Core: c, Records: r, Pauser: s.Pauser}
	s.Entrance = &access.Entrance{Core: c, Records: r, Removing: s.Remover.Removing}
	s.Expirer = &expire.Expirer{Core: c, Records: r, Pauser: s.Pauser, Remover: s.Remover}
	s.Reconciler.Ends = s.Ends
	return s
}

// Connect sets the other services.
func (s *Services) Connect(o *Others) {
	prepare := &prepare.Preparer{Policies: o.Policies, Snapshots: o.Snapshots, Tenants: o.Tenants, Gate: o.Gate}
	r := s.Records
	r.Providers, r.Workspaces, r.Snapshots, r.Secrets, r.Ports = o.Providers, o.Workspaces, o.Snapshots, o.Secrets, o.Ports
	c := s.Creator
	c.Prepare, c.Providers, c.Workspaces, c.Snapshots, c.Policies = prepare, o.Providers, o.Workspaces, o.Snapshots, o.Policies
	c.Profiles, c.Secrets, c.Templates, c.Ports = o.Profiles, o.Secrets, o.Templates, o.Ports
	p := s.Pauser
	p.Prepare, p.Exec, p.Providers, p.Workspaces = prepare, o.Exec, o.Providers, o.Workspaces
	p.Snapshots, p.Secrets, p.Ports, p.Recordings = o.Snapshots, o.Secrets, o.Ports, o.Recordings
	u := s.Updater
	u.Prepare, u.Providers, u.Policies, u.Profiles, u.Secrets, u.Ports = prepare, o.Providers, o.Policies, o.Profiles, o.Secrets, o.Ports
	rec := s.Reconciler
	rec.Providers, rec.Workspaces, rec.Snapshots, rec.Ports = o.Providers, o.Workspaces, o.Snapshots, o.Ports
	s.Entrance.Tenants, s.Remover.Workspaces = o.Tenants, o.Workspaces
	s.Ends.Exec, s.Mains.Exec, s.Expirer.Policies = o.Exec, o.Exec, o.Policies
}
