package remote

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// process is a command of the other daemon.
type process struct {
	*atoll.Process
	sandbox *remoteSandbox
	hold    time.Duration // how long its caller may be disconnected; zero: not at all
	out     [2]*replay    // output of a command with a Hold
	closed  *sync.Once
}

var (
	_ driver.Process  = (*process)(nil)
	_ driver.Detacher = (*process)(nil)
)

func (s *remoteSandbox) process(p *atoll.Process, hold time.Duration) *process {
	out := &process{Process: p, sandbox: s, closed: new(sync.Once)}
	if hold > 0 && !p.Info().Background {
		out.hold, out.out = hold, [2]*replay{{r: p.Stdout()}, {r: p.Stderr()}}
	}
	return out
}

// begin sets where the streams begin.
func (p *process) begin(at driver.Cursor) {
	if p.hold > 0 {
		p.out[0].at, p.out[1].at = at.Stdout, at.Stderr
	}
}

// Stdout implements driver.Process.
func (p *process) Stdout() io.Reader {
	if p.hold > 0 {
		return p.out[0]
	}
	return p.Process.Stdout()
}

// Stderr implements driver.Process.
func (p *process) Stderr() io.Reader {
	if p.hold > 0 {
		return p.out[1]
	}
	return p.Process.Stderr()
}

// Signal implements driver.Process. The news that the command has ended with its
// sandbox may still be on the way.
func (p *process) Signal(ctx context.Context, sig int) error {
	if p.sandbox.ended.Load() {
		return p.sandbox.gone()
	}
	return p.sandbox.explain(ctx, p.Process.Signal(ctx, sig))
}

// Resize implements driver.Process.
func (p *process) Resize(ctx context.Context, size sandbox.WindowSize) error {
	return p.sandbox.explain(ctx, p.Process.Resize(ctx, size))
}

// Wait implements driver.Process.
func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := p.Process.Wait(ctx)
	return exit, p.sandbox.explain(ctx, err)
}

// dying limits how long Close waits for the end of a command that it kills. A
// slower command ends when the connection closes.
const dying = 5 * time.Second

// Close implements driver.Process. It waits for the end of a command that it
// kills, so that Wait returns the exit status.
func (p *process) Close() (err error) {
	p.closed.Do(func() {
		if !p.Process.Info().Background {
			ctx, cancel := context.WithTimeout(context.Background(), dying)
			defer cancel()
			if p.Process.Signal(ctx, int(syscall.SIGKILL)) == nil {
				_, _ = p.Process.Wait(ctx) // Close ignores the result
			}
		}
		err = p.Process.Close()
	})
	return err
}

// Detach implements driver.Detacher. For an ended command with a Hold, the
// unread output is kept here, because the other daemon has already sent it.
func (p *process) Detach() (err error) {
	p.closed.Do(func() {
		if p.hold > 0 && p.Process.Info().Exit != nil {
			p.sandbox.p.leave(p.sandbox.key(p.Process.Info().ID), p)
			return
		}
		err = p.Process.Detach()
	})
	return err
}

// rewind returns a process for one that was detached, whose output continues at
// the cursor.
func (p *process) rewind(from driver.Cursor) (*process, error) {
	if !p.out[0].rewind(from.Stdout) || !p.out[1].rewind(from.Stderr) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeExhausted, Op: "process.rejoin", Subject: p.Process.Info().ID, Message: "output after that point is no longer kept",
		}
	}
	again := *p
	again.closed = new(sync.Once)
	return &again, nil
}

// giveUp closes the connection of a detached process.
func (p *process) giveUp() { _ = p.Process.Detach() }
