package engine

import (
	"context"
	"fmt"
	"io"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

const maxSignal = 64 // SIGRTMAX

func validateSignal(sig int) error {
	if sig < 1 || sig > maxSignal {
		return invalid("", "signal", fmt.Sprintf("%d is not between 1 and %d", sig, maxSignal), "")
	}
	return nil
}

// process forwards to the driver's process and wraps its errors. Output and
// input are passed through unchanged for speed, and so are their errors.
type process struct {
	driver.Process
	sandbox *Sandbox
}

func (p *process) action(op ops.Op) Action { return p.sandbox.action(op, p.Info().ID) }

func (p *process) Signal(ctx context.Context, sig int) error {
	return p.sandbox.e.do(ctx, p.action(ops.ProcessSignal), func(ctx context.Context) error {
		if err := validateSignal(sig); err != nil {
			return err
		}
		return p.Process.Signal(ctx, sig)
	})
}

func (p *process) Resize(ctx context.Context, size sandbox.WindowSize) error {
	cmd := sandbox.Command{Args: []string{"-"}, TTY: &size}
	if err := cmd.Validate(); err != nil {
		return p.sandbox.e.wrap(p.action(ops.ProcessResize), err)
	}
	return p.sandbox.e.wrap(p.action(ops.ProcessResize), p.Process.Resize(ctx, size))
}

func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := p.Process.Wait(ctx)
	return exit, p.sandbox.e.wrap(p.action(ops.ProcessWait), err)
}

func (p *process) Close() error {
	return p.sandbox.e.wrap(p.action(ops.ProcessClose), p.Process.Close())
}

// Unwrap returns the driver's process.
func (p *process) Unwrap() any { return p.Process }

type logReader struct {
	driver.LogReader
	sandbox *Sandbox
	id      string
}

func (r *logReader) Next() (sandbox.LogChunk, error) {
	chunk, err := r.LogReader.Next()
	if err == io.EOF {
		return chunk, err
	}
	return chunk, r.sandbox.e.wrap(r.sandbox.action(ops.ProcessLogs, r.id), err)
}
