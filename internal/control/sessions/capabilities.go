package sessions

import (
	"context"
	"slices"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Capabilities returns what a session can do now, with a reason for each
// missing capability. It makes no sandbox.
func (s *Service) Capabilities(ctx context.Context, ref string) (_ catalog.CapabilityDocument, err error) {
	const op = ops.SessionGet
	defer core.Name(op, &err)
	who, err := guard.Principal(ctx)
	if err != nil {
		return catalog.CapabilityDocument{}, err
	}
	row, err := s.Get(ctx, ref)
	if err != nil {
		return catalog.CapabilityDocument{}, err
	}
	all, err := s.providers.Providers(ctx)
	if err != nil {
		return catalog.CapabilityDocument{}, err
	}
	at := slices.IndexFunc(all, func(p catalog.Provider) bool { return serving(&row, &p) })
	if at < 0 {
		return catalog.CapabilityDocument{}, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: row.Name, Message: "this daemon does not have the provider of the session", Hint: "see: atoll session targets " + row.Name,
		}
	}
	var group []store.Session
	var serves store.Sandbox
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		if row.Lease.Sandbox != "" {
			if serves, err = tx.Sandboxes().Get(ctx, who.Tenant, row.Lease.Sandbox); err != nil {
				return err
			}
		}
		group, err = tx.Sessions().InGroup(ctx, who.Tenant, row.Group)
		return err
	})
	if err != nil {
		return catalog.CapabilityDocument{}, err
	}
	q := catalog.Query{
		SessionID: row.ID, Isolation: serves.Isolation, Liveness: row.Lease.State, Epoch: row.Lease.Epoch, Shared: len(group) > 1, Now: s.Store.Now(),
		NoDesktop: !catalog.DesktopImage(row.Spec.Image),
	}
	if who.AllowIn(row.Lease.Sandbox, ops.ComputerAct) != nil {
		q.DesktopView, q.ComputerView = true, true
	}
	if q.Machine, err = s.machines.State(ctx, who.Tenant, all[at].Name); err != nil {
		return catalog.CapabilityDocument{}, core.Named(op, err)
	}
	if q.Machine != nil && q.Machine.Own { // its screen is not of an image
		q.NoDesktop = false
	}
	d := all[at].Descriptor
	if all[at].Capabilities["ports"] {
		d = catalog.Served(d)
	}
	for _, other := range group {
		if other.ID != row.ID {
			q.SharedWith = append(q.SharedWith, other.ID)
		}
	}
	doc, err := catalog.Negotiate(d, q)
	return doc, err
}

// serving reports whether a provider has the sandbox of a session, or would make
// its next one.
func serving(row *durable.Session, p *catalog.Provider) bool {
	switch {
	case row.Lease.Provider != "":
		return p.Name == row.Lease.Provider
	case row.Provider != "":
		return p.Name == row.Provider
	}
	return p.Default
}
