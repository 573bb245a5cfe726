package fake

import (
	"context"
	"errors"
	"math"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.Dialer         = (*instance)(nil)
	_ driver.Resizer        = (*instance)(nil)
	_ driver.DeadlineSetter = (*instance)(nil)
	_ driver.Meter          = (*instance)(nil)
)

// Dial connects to a port on which a program inside listens.
func (i *instance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if err := i.begin(ctx, "dial"); err != nil {
		return nil, err
	}
	conn, err := i.kernel.Dial(ctx, port)
	if errors.Is(err, syscall.ECONNREFUSED) {
		if err := i.gone("dial"); err != nil {
			return nil, err
		}
		return nil, fail(sandbox.CodeUnavailable, "dial", strconv.Itoa(int(port)), "nothing listens on this port inside the sandbox")
	}
	return conn, err
}

// Resize changes the one limit that the fake has.
func (i *instance) Resize(ctx context.Context, want sandbox.Resources) error {
	if err := errors.Join(i.provider.begin(ctx, "resize"), i.gone("resize")); err != nil {
		return err
	}
	if want.CPUs != 0 || want.Memory != 0 || want.Disk != 0 {
		return fail(sandbox.CodeUnsupported, "resize", string(i.spec.ID), "the fake limits the number of processes only")
	}
	i.limit(want.PIDs)
	return nil
}

// limit bounds the number of processes; 0 changes nothing.
func (b *box) limit(pids int64) {
	switch {
	case pids > 0:
		b.kernel.Limit(int(min(pids, math.MaxInt32)))
	case pids < 0:
		b.kernel.Limit(math.MaxInt32)
	}
}

// SetDeadline moves the end of the sandbox.
func (i *instance) SetDeadline(ctx context.Context, at time.Time) error {
	if err := errors.Join(i.provider.begin(ctx, "deadline"), i.gone("deadline")); err != nil {
		return err
	}
	i.endAt(at)
	return nil
}

// endAt replaces the time at which the sandbox ends; the zero time is never.
func (b *box) endAt(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lifetime != nil {
		b.lifetime.Stop()
		b.lifetime = nil
	}
	if at.IsZero() || b.exit != nil {
		return
	}
	b.lifetime = time.AfterFunc(time.Until(at), func() {
		b.end(sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonLifetime, Detail: "the lifetime is over"})
	})
}

// Usage counts processes; nothing else of them is known here.
func (i *instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if err := errors.Join(i.provider.begin(ctx, "usage"), i.gone("usage")); err != nil {
		return sandbox.Usage{}, err
	}
	return sandbox.Usage{CPU: -1, Memory: -1, Disk: -1, PIDs: int64(i.kernel.Count()), Sampled: time.Now()}, nil
}
