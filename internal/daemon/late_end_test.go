package daemon_test

import (
	"context"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// lingering is a provider that answers late that it has removed a sandbox.
type lingering struct {
	*fake.Provider
	once             sync.Once
	removed, answers chan struct{}
	missed           chan struct{} // receives when somebody looks for the sandbox after that
}

func (p *lingering) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	in, err := p.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return lingers{in, p}, nil
}

func (p *lingering) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	in, err := p.Provider.Attach(ctx, id)
	if err != nil {
		select {
		case p.missed <- struct{}{}:
		default:
		}
		return nil, err
	}
	return lingers{in, p}, nil
}

type lingers struct {
	driver.Instance
	p *lingering
}

// Unwrap implements driver.Unwrapper.
func (i lingers) Unwrap() any { return i.Instance }

func (i lingers) Destroy(ctx context.Context) error {
	err := i.Instance.Destroy(ctx)
	i.p.once.Do(func() {
		close(i.p.removed)
		<-i.p.answers
	})
	return err
}

// Whoever asks how a sandbox ended while the daemon removes it, because its
// lifetime is over, gets that reason: that it is missing does not replace it.
func TestEndsByLifetimeWhileAskedFor(t *testing.T) {
	p := &lingering{Provider: fake.New(fake.Options{Limited: true}), removed: make(chan struct{}), answers: make(chan struct{}), missed: make(chan struct{}, 1)}
	d := daemontest.New(t).Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{{Name: "lingers", Open: func(providerset.Host) (driver.Provider, error) { return p, nil }}}
	})
	c := daemontest.Client(t, d)
	sb := create(t, c, sandbox.Spec{Name: "box", Lifetime: sandbox.Lifetime{Timeout: 1}})
	<-p.removed
	type end struct {
		exit sandbox.Exit
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		exit, err := sb.Wait(t.Context())
		ended <- end{exit, err}
	}()
	<-p.missed
	close(p.answers)
	if got := <-ended; got.err != nil || got.exit.Reason != sandbox.ReasonLifetime {
		t.Errorf("it ended with %+v, %v, want reason %s", got.exit, got.err, sandbox.ReasonLifetime)
	}
	if now, err := c.Get(t.Context(), string(sb.ID())); err != nil || now.Info().State != sandbox.Gone || now.Info().Exit == nil || now.Info().Exit.Reason != sandbox.ReasonLifetime {
		t.Errorf("the record is %+v, %v, want reason %s", now.Info(), err, sandbox.ReasonLifetime)
	}
}
