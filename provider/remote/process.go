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

// process is a command over there.
type process struct {
	*atoll.Process
	box    *box
	hold   time.Duration // how long its caller may be away; zero: not at all
	out    [2]*replay    // of one with a Hold
	closed *sync.Once
}

var (
	_ driver.Process  = (*process)(nil)
	_ driver.Detacher = (*process)(nil)
)

func (b *box) process(p *atoll.Process, hold time.Duration) *process {
	out := &process{Process: p, box: b, closed: new(sync.Once)}
	if hold > 0 && !p.Info().Background {
		out.hold, out.out = hold, [2]*replay{{r: p.Stdout()}, {r: p.Stderr()}}
	}
	return out
}

// begin says where the streams begin.
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
func (p *process) Close() (err error) {
	p.closed.Do(func() {
		if !p.Process.Info().Background {
			ctx, cancel := context.WithTimeout(context.Background(), dying)
			defer cancel()
			if p.Process.Signal(ctx, int(syscall.SIGKILL)) == nil {
				_, _ = p.Process.Wait(ctx) // it is closed anyway
			}
		}
		err = p.Process.Close()
	})
	return err
}

// Detach implements driver.Detacher. Of a command with a Hold that has ended,
// what was not read is kept here: the other daemon has sent it.
func (p *process) Detach() (err error) {
	p.closed.Do(func() {
		if p.hold > 0 && p.Process.Info().Exit != nil {
			p.box.p.leave(p.box.key(p.Process.Info().ID), p)
			return
		}
		err = p.Process.Detach()
	})
	return err
}

// rewind makes a process of one that was left, whose output follows from the
// cursor.
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

// giveUp ends the connection of a process that was left.
func (p *process) giveUp() { _ = p.Process.Detach() }
