package sessions

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Reaper ends sandboxes without holders, and removes unused archives.
type Reaper struct {
	*core.Core
	leases    *leases
	holders   *Holders
	provision *provision
	archives  *archives
	grace     time.Duration // between the last holder and the end of a sandbox
}

// Watch ends sandboxes without holders, and keeps the holders of this daemon
// alive, until ctx ends.
func (s *Reaper) Watch(ctx context.Context) {
	every := max(min(lease.Sweep, s.grace/2), time.Second)
	t := time.NewTicker(every)
	defer t.Stop()
	var swept time.Time // never: an earlier daemon may have left archives
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.holders.present.beat(ctx)
		if now := s.Store.Now(); now.Sub(swept) > tarSweep {
			swept = now
			if err := s.archives.sweepTars(ctx); err != nil && ctx.Err() == nil {
				s.Report(ctx, err)
			}
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.Report(ctx, err)
		}
	}
}

// Sweep checks every session of all tenants with a sandbox here once. It
// continues after a failure.
func (s *Reaper) Sweep(ctx context.Context) error {
	all, err := s.leases.active(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, k := range all {
		failed = append(failed, s.sweep(ctx, k))
	}
	failed = append(failed, s.archives.sweepArchives(ctx))
	return errors.Join(failed...)
}

// sweep sweeps one lease, acting for its tenant.
func (s *Reaper) sweep(ctx context.Context, k store.LeaseKey) error {
	var l lease.Lease
	var rows []store.Session
	var box store.Sandbox
	err := s.Store.View(ctx, func(tx *store.Tx) (err error) {
		if l, err = tx.Sessions().Lease(ctx, k.Tenant, k.Group); err != nil {
			return err
		}
		if rows, err = tx.Sessions().InGroup(ctx, k.Tenant, k.Group); err != nil || l.Sandbox == "" {
			return err
		}
		box, err = tx.Sandboxes().Get(ctx, k.Tenant, l.Sandbox)
		return err
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = nil
	}
	if err != nil || len(rows) == 0 || box.Node != "" && box.Node != s.Node {
		return err // the daemon with the sandbox handles it
	}
	ctx = guard.WithPrincipal(ctx, key.Principal{Tenant: k.Tenant, Verbs: []key.Verb{key.Admin}})
	row := rows[0]
	for _, other := range rows[1:] {
		row.PauseOnExit = row.PauseOnExit || other.PauseOnExit
	}
	_, _, err = s.leases.gate(ctx, k.Tenant, k.Group)
	err = errors.Join(err, s.holders.manager(row).SweepGroup(ctx, k.Group))
	if l, loadErr := s.leases.of(k.Tenant).Load(ctx, k.Group); loadErr == nil {
		err = errors.Join(err, s.provision.boxes(k.Tenant, &row).orphans(ctx, l, false))
	}
	return err
}

// Usage returns how long sandboxes of the tenant's sessions existed, per full
// hour and by "label:KEY", "group" or "provider".
func (s *Service) Usage(ctx context.Context, by string, from, to time.Time) ([]sandbox.SessionUsage, error) {
	const op = ops.UsageGet
	who, err := s.Look(ctx, op, by)
	if err != nil {
		return nil, err
	}
	value, err := grouping(by)
	if err != nil {
		return nil, core.Named(op, err)
	}
	if to.IsZero() {
		to = s.Store.Now()
	}
	all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.WarmTime, error) {
		return tx.Sessions().WarmTimes(ctx, who.Tenant, from.Truncate(time.Hour), to)
	})
	if err != nil {
		return nil, core.Named(op, err)
	}
	sums := map[string]time.Duration{}
	for _, u := range all {
		sums[value(u)] += u.Warm
	}
	out := make([]sandbox.SessionUsage, 0, len(sums))
	for _, v := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, sandbox.SessionUsage{Value: v, Warm: sums[v]})
	}
	return out, nil
}

func grouping(by string) (func(store.WarmTime) string, error) {
	if name, ok := strings.CutPrefix(by, "label:"); ok && name != "" {
		return func(u store.WarmTime) string { return u.Labels[name] }, nil
	}
	switch by {
	case "group":
		return func(u store.WarmTime) string { return u.Group }, nil
	case "provider":
		return func(u store.WarmTime) string { return u.Provider }, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "by", Message: "is not one of label:KEY, group and provider"}
}
