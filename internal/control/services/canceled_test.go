package services_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// slowCleanup is a provider whose cleanup after a canceled creation takes
// longer than its caller waits. The daemon dies before it is over.
type slowCleanup struct {
	driver.Provider
	cancel context.CancelFunc
}

func (p slowCleanup) Unwrap() any { return p.Provider }

func (p slowCleanup) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if _, err := p.Provider.Create(ctx, spec); err != nil {
		return nil, err
	}
	p.cancel()
	return nil, ctx.Err()
}

// The sandbox of a canceled creation is removed by the next daemon, if the one
// that created it died before its provider had removed it.
func TestCanceledCreationAndDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		var cancel context.CancelFunc
		m.provider = func(p driver.Provider) driver.Provider {
			return slowCleanup{p, func() { cancel() }}
		}
		p, ctx, stop := m.start(t)
		ctx, cancel = context.WithCancel(ctx)
		defer func() { cancel() }()
		_, err := p.Sandboxes.Creator.Create(ctx, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "one"}}})
		wantCode(t, err, sandbox.CodeCanceled)
		stop()
		left := func() (n int) {
			for _, err := range fake.New(fake.Options{World: m.world}).List(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			return n
		}
		if left() != 1 {
			t.Fatalf("%d sandboxes are left, want 1", left())
		}
		m.provider = nil
		p, ctx, stop = m.start(t) // which reconciles
		if n := left(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
		all, _, err := p.Sandboxes.Reader.List(ctx, store.Filter{}, store.Page{})
		if err != nil || len(all) != 0 {
			t.Errorf("%v %v", all, err)
		}
		stop()
	})
}
