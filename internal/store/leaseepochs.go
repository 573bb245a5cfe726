package store

import (
	"context"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// noteEpochs records which sandbox serves a group since when, and why the
// previous one ended.
func (ss Sessions) noteEpochs(ctx context.Context, tenant string, op lease.Op, before, after lease.Lease) error {
	why := ""
	switch o := op.(type) {
	case lease.Lost:
		why = "it was gone"
	case lease.Arrive:
		why = "the session moved to " + o.Provider
	case lease.Confirm:
		switch {
		case o.Paused:
			why = "paused: it was unused"
		case before.Rotating:
			why = "its lifetime was about to end"
		default:
			why = "it was unused"
		}
	case lease.Commit:
	default:
		return nil
	}
	if why != "" {
		if err := ss.endEpoch(ctx, tenant, before, why); err != nil {
			return err
		}
	}
	if after.Epoch == before.Epoch {
		return nil
	}
	_, err := ss.tx.exec(ctx, "INSERT INTO lease_epochs (tenant, grp, epoch, provider, sandbox, holders, began, ended, why) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, '')",
		tenant, after.Group, after.Epoch, after.Provider, string(after.Sandbox), strings.Join(holderNames(after), "\n"), nanos(after.Began))
	return err
}

// endEpoch records the end of the present epoch of a lease.
func (ss Sessions) endEpoch(ctx context.Context, tenant string, l lease.Lease, why string) error {
	var known string
	err := ss.tx.queryRow(ctx, "SELECT holders FROM lease_epochs WHERE tenant = $1 AND grp = $2 AND epoch = $3 AND ended = 0", tenant, l.Group, l.Epoch).Scan(&known)
	if sandbox.CodeOf(missing(err, "epoch", l.Group)) == sandbox.CodeNotFound {
		return nil // it began with an earlier version, or has ended
	}
	if err != nil {
		return err
	}
	holders := slices.DeleteFunc(append(strings.Split(known, "\n"), holderNames(l)...), func(s string) bool { return s == "" })
	slices.Sort(holders)
	_, err = ss.tx.exec(ctx, "UPDATE lease_epochs SET ended = $1, why = $2, holders = $3 WHERE tenant = $4 AND grp = $5 AND epoch = $6",
		nanos(ss.tx.Now()), why, strings.Join(slices.Compact(holders), "\n"), tenant, l.Group, l.Epoch)
	return err
}

func holderNames(l lease.Lease) (names []string) {
	for _, h := range l.Holders {
		names = append(names, string(h.Kind)+" "+h.ID)
	}
	return names
}

// Epochs lists the epochs of a group, the latest first.
func (ss Sessions) Epochs(ctx context.Context, tenant, group string, limit int) ([]durable.Epoch, error) {
	rows, err := ss.tx.query(ctx, "SELECT epoch, provider, sandbox, holders, began, ended, why FROM lease_epochs WHERE tenant = $1 AND grp = $2 ORDER BY epoch DESC LIMIT $3", tenant, group, limit)
	return collect(rows, err, func(row scanner) (e durable.Epoch, err error) {
		var holders string
		var began, ended int64
		if err := row.Scan(&e.Epoch, &e.Provider, &e.Sandbox, &holders, &began, &ended, &e.Why); err != nil {
			return e, err
		}
		e.Began = timeOf(began)
		if ended != 0 {
			e.Ended = timeOf(ended)
		}
		if holders != "" {
			e.Holders = strings.Split(holders, "\n")
		}
		return e, nil
	})
}
