package host

import (
	"context"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/provider/internal/proctree"
	"github.com/atoll-run/atoll/sandbox"
)

// SetDeadline implements driver.DeadlineSetter.
func (in *Instance) SetDeadline(ctx context.Context, at time.Time) error {
	if err := in.usable(ctx); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.timer != nil {
		in.timer.Stop()
		in.timer = nil
	}
	if !at.IsZero() && !in.gone && in.ongoing == nil {
		in.timer = time.AfterFunc(time.Until(at), in.expire)
	}
	return nil
}

func (in *Instance) expire() {
	in.end(sandbox.Exit{
		Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Reason: sandbox.ReasonLifetime,
		Detail: "the sandbox reached the end of its lifetime",
	})
}

// Usage implements driver.Meter. There is no writable layer, so it reports no
// disk size.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if err := in.usable(ctx); err != nil {
		return sandbox.Usage{}, err
	}
	sum, err := proctree.Measure(in.supervisor.Process.Pid)
	if err != nil {
		return sandbox.Usage{}, err
	}
	return sandbox.Usage{CPU: sum.CPU, Memory: sum.Memory, Disk: -1, PIDs: sum.Threads, Sampled: time.Now()}, nil
}

// usable returns an error if the sandbox has ended.
func (in *Instance) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ended := in.hasEnded(); ended {
		return in.lost()
	}
	return nil
}
