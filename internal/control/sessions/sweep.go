package sessions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Reaper ends sandboxes without holders, finishes removals, and removes unused archives.
type Reaper struct {
	*core.Core
	leases    *leases
	holders   *Holders
	provision *provision
	archives  *archives
	sessions  *Service
	grace     time.Duration // between the last holder and the end of a sandbox
}

// Recover ends what an earlier process of this daemon was doing when it was
// killed, so that nobody waits for it. Call it before requests are served.
func (s *Reaper) Recover(ctx context.Context) error {
	all, err := s.leases.active(ctx)
	failed := []error{err}
	op := lease.Restart{Spawner: s.holders.present.daemon(), Own: s.holders.present.ownID}
	for _, k := range all {
		_, _, err := s.leases.of(k.Tenant).Apply(ctx, k.Group, op)
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// Watch ends sandboxes without holders, and keeps the holders of this daemon
// alive, until ctx ends.
func (s *Reaper) Watch(ctx context.Context) {
	every := max(min(lease.Sweep, s.grace/2), time.Second)
	var beating sync.WaitGroup
	defer beating.Wait()
	beating.Go(func() { s.beat(ctx, every) })
	t := time.NewTicker(every)
	defer t.Stop()
	var swept time.Time // never: an earlier daemon may have left archives
	for first := true; ; first = false {
		if !first { // an earlier process may have been ending sandboxes that callers wait for
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
		}
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

// beat keeps the holders of this daemon alive, until ctx ends. Sweeps may wait for
// a node that does not answer, for longer than holders live.
func (s *Reaper) beat(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		s.holders.present.beat(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
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
	var sb store.Sandbox
	err := s.Store.View(ctx, func(tx *store.Tx) (err error) {
		if l, err = tx.Sessions().Lease(ctx, k.Tenant, k.Group); err != nil {
			return err
		}
		if rows, err = tx.Sessions().InGroup(ctx, k.Tenant, k.Group); err != nil || l.Sandbox == "" {
			return err
		}
		sb, err = tx.Sandboxes().Get(ctx, k.Tenant, l.Sandbox)
		return err
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = nil
	}
	if err != nil || len(rows) == 0 || sb.Node != "" && sb.Node != s.Node {
		return err // the daemon with the sandbox handles it
	}
	ctx = guard.WithOwner(ctx, k.Tenant)
	removed, err := s.finish(ctx, rows)
	if err != nil || removed {
		return err
	}
	row := rows[0]
	for _, other := range rows[1:] {
		row.PauseOnExit = row.PauseOnExit || other.PauseOnExit
	}
	_, _, err = s.leases.gate(ctx, k.Tenant, k.Group)
	err = errors.Join(err, s.holders.manager(row).SweepGroup(ctx, k.Group))
	if l, loadErr := s.leases.of(k.Tenant).Load(ctx, k.Group); loadErr == nil {
		err = errors.Join(err, s.provision.sandboxesOf(k.Tenant, &row).orphans(ctx, l, false))
	}
	return err
}

// finish continues removals that nobody finished, because a daemon was killed.
func (s *Reaper) finish(ctx context.Context, rows []store.Session) (removed bool, err error) {
	for _, row := range rows {
		if !row.Removing {
			continue
		}
		removed = true
		if failed := s.sessions.remove(ctx, row); sandbox.CodeOf(failed) != sandbox.CodeNotFound { // another caller was faster
			err = errors.Join(err, failed)
		}
	}
	return removed, err
}

// Usage returns how long the tenant's sandboxes ran, and for how long sessions
// had one, in full hours and by "label:KEY", "group" or "provider".
func (s *Service) Usage(ctx context.Context, by string, from, to time.Time) (_ []durable.SessionUsage, err error) {
	const op = ops.UsageGet
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, by)
	if err != nil {
		return nil, err
	}
	value, err := grouping(by)
	if err != nil {
		return nil, err
	}
	if to.IsZero() {
		to = s.Store.Now()
	}
	sums := map[string]time.Duration{}
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		clear(sums)
		warm, err := tx.Sessions().WarmTimes(ctx, who.Tenant, from.Truncate(time.Hour), to)
		if err != nil {
			return err
		}
		others, err := tx.Sandboxes().Times(ctx, who.Tenant, from, to)
		for _, u := range append(warm, others...) {
			if u.Warm > 0 {
				sums[value(u)] += u.Warm
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]durable.SessionUsage, 0, len(sums))
	for _, v := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, durable.SessionUsage{Value: v, Warm: sums[v]})
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
	return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "by", Message: fmt.Sprintf("%.80q is not one of label:KEY, group and provider", by)}
}
