package services_test

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/sandbox"
)

// watchedEnd is a provider that calls ending before it destroys anything.
type watchedEnd struct {
	driver.Provider
	ending func(sandbox.ID) error
}

func (p *watchedEnd) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	in, err := p.Provider.Create(ctx, spec)
	return watchedInstance{in, p}, err
}

func (p *watchedEnd) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	in, err := p.Provider.Attach(ctx, id)
	return watchedInstance{in, p}, err
}

type watchedInstance struct {
	driver.Instance
	p *watchedEnd
}

func (i watchedInstance) Destroy(ctx context.Context) error {
	if err := i.p.ending(i.ID()); err != nil {
		return err
	}
	return i.Instance.Destroy(ctx)
}

// A client whose stream breaks asks at once whether its sandbox still runs. So a
// sandbox is gone for new callers before its streams end.
func TestGoneBeforeStreamsEnd(t *testing.T) {
	watched := &watchedEnd{}
	wrap := func(p driver.Provider) driver.Provider {
		watched.Provider = p
		return watched
	}
	onFakeTimeWith(t, wrap, func(t *testing.T, p *services.Services, ctx context.Context) {
		enter := func(id sandbox.ID) error {
			_, _, err := p.Sandboxes.Entrance.Enter(ctx, id, "")
			return err
		}
		asked := 0
		watched.ending = func(id sandbox.ID) error {
			asked++
			wantCode(t, enter(id), sandbox.CodeGone)
			return nil
		}
		b := create(t, p, ctx, sandbox.Spec{Name: "one"})
		if err := enter(b.ID); err != nil {
			t.Fatal(err)
		}
		if err := p.Sandboxes.Remover.Destroy(ctx, "one"); err != nil || asked != 1 {
			t.Errorf("Destroy: %v after %d calls of the provider", err, asked)
		}

		// A sandbox that could not be removed is visible again.
		b = create(t, p, ctx, sandbox.Spec{Name: "two"})
		watched.ending = func(sandbox.ID) error { return &sandbox.Error{Code: sandbox.CodeUnavailable} }
		wantCode(t, p.Sandboxes.Remover.Destroy(ctx, "two"), sandbox.CodeUnavailable)
		if err := enter(b.ID); err != nil {
			t.Errorf("after a removal that failed: %v", err)
		}
		watched.ending = func(sandbox.ID) error { return nil }
		if err := p.Sandboxes.Public().Destroy(ctx, "two"); err != nil {
			t.Error(err)
		}
	})
}
