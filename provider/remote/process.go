package remote

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// process is a command over there.
type process struct {
	*atoll.Process
	box    *box
	closed sync.Once
}

var _ driver.Process = (*process)(nil)

// Signal implements driver.Process.
func (p *process) Signal(ctx context.Context, sig int) error {
	return p.box.explain(ctx, p.Process.Signal(ctx, sig))
}

// Resize implements driver.Process.
func (p *process) Resize(ctx context.Context, size sandbox.WindowSize) error {
	return p.box.explain(ctx, p.Process.Resize(ctx, size))
}

// Wait implements driver.Process.
func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := p.Process.Wait(ctx)
	return exit, p.box.explain(ctx, err)
}

// dying bounds how long Close waits until a command that it kills has ended. One
// that takes longer ends with the connection.
const dying = 5 * time.Second

// Close implements driver.Process. A command that it kills has ended when it
// returns, so that Wait knows how.
func (p *process) Close() error {
	p.closed.Do(func() {
		if p.Process.Info().Background {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), dying)
		defer cancel()
		if p.Process.Signal(ctx, int(syscall.SIGKILL)) == nil {
			_, _ = p.Process.Wait(ctx) // it is closed anyway
		}
	})
	return p.Process.Close()
}
