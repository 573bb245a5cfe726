package host

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// chargedFor reports whether the service behind a provider charges for
// sandboxes.
func chargedFor(provider string) bool {
	return slices.ContainsFunc(catalog.Known(), func(d catalog.Descriptor) bool { return d.Name == provider && d.Price == catalog.PriceUse })
}

const (
	// checkLife limits how long a sandbox of a check can cost money if it is not
	// removed.
	checkLife = time.Hour
	// checkNotice says what a check costs at most. The number is what the suite
	// makes, rounded up.
	checkNotice = "the service may charge for this: check makes up to 200 sandboxes, most for seconds and none for more than an hour, and up to 50 snapshots, and removes all of them\n"
	// sweeping limits the removal of leftovers.
	sweeping = 2 * time.Minute
)

// onAccount makes a check safe on a real account: it warns about the cost,
// limits the lifetime of sandboxes, and finish removes leftovers.
func (a providerCommands) onAccount(ctx context.Context, h *drivertest.Harness) (finish func() error, err error) {
	p, err := h.New(ctx)
	if err != nil {
		return nil, err
	}
	before, err := foundIDs(ctx, p)
	if err := errors.Join(err, p.Close()); err != nil {
		return nil, err
	}
	if err := term.Writef(a.Stderr, checkNotice); err != nil {
		return nil, err
	}
	spec := h.Spec
	h.Slow = true
	h.Spec = func() sandbox.Spec {
		s := spec()
		s.Lifetime.Timeout = checkLife
		return s
	}
	open := h.New
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweeping)
		defer cancel()
		p, err := open(ctx)
		if err != nil {
			return err
		}
		return errors.Join(a.removeLeft(ctx, p, before), p.Close())
	}, nil
}

func foundIDs(ctx context.Context, p driver.Provider) (ids []sandbox.ID, err error) {
	for f, err := range p.List(ctx) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, f.ID)
	}
	return ids, nil
}

// removeLeft removes the sandboxes and snapshots of a check that are still there.
func (a providerCommands) removeLeft(ctx context.Context, p driver.Provider, before []sandbox.ID) error {
	now, err := foundIDs(ctx, p)
	failed := []error{err}
	remove := func(id string, err error) {
		if err == nil {
			a.Notef("removed %s, which the suite left\n", id)
		}
		failed = append(failed, err)
	}
	for _, id := range now {
		if slices.Contains(before, id) || !strings.HasPrefix(string(id), drivertest.IDPrefix) {
			continue
		}
		in, err := p.Attach(ctx, id)
		if err == nil {
			err = in.Destroy(ctx)
		}
		remove(string(id), err)
	}
	if keeper, ok := driver.As[driver.SnapshotKeeper](p); ok {
		for s, err := range keeper.Snapshots(ctx) {
			if err == nil && strings.HasPrefix(s.ID, drivertest.IDPrefix) {
				remove(s.ID, keeper.RemoveSnapshot(ctx, s.Ref))
			}
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
