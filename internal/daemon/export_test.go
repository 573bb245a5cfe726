package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// SetWall gives a daemon a clock that can be set.
func SetWall(o *Options, now func() time.Time) { o.wall = now }

// SetNow gives the store of a daemon another clock.
func (o *Options) SetNow(now func() time.Time) { o.now = now }

// SetMemory replaces the function that returns free and total memory.
func (o *Options) SetMemory(memory func() (free, total int64)) { o.memory = memory }

// IsFirst reports whether the daemon is the one that does what one of several does.
func (d *Daemon) IsFirst(ctx context.Context) (bool, error) { return d.isFirst(ctx) }

// SetSettle replaces the wait for the gateway's last decisions. The function is
// called once, and passes on decisions that were still on their way.
func (d *Daemon) SetSettle(settle func(hear func(sandbox.ID, gateway.Event))) {
	var once sync.Once
	d.egress.settle = func(context.Context) error {
		once.Do(func() { settle(d.egress.hear) })
		return nil
	}
}
