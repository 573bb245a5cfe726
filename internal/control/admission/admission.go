// Package admission decides how many sandboxes a machine makes at a time. Work
// beyond that waits, tenants take turns, and what would wait too long is refused
// with the time after which it is worth another try.
package admission

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/docker/go-units"

	"github.com/atoll-run/atoll/sandbox"
)

// Subject is that of the error for work that the machine cannot take on now.
// Clients may repeat a request that was refused with it.
const Subject = "machine"

// Config configures a Gate. The zero value is right for this machine.
type Config struct {
	// Slots is how many sandboxes are made at a time. Zero: four per processor.
	Slots int
	// Waiting is how many may wait for a slot in one tenant, and Total in all
	// tenants together. Zero: four and sixteen per slot.
	Waiting, Total int
	// Patience bounds the wait for a slot. Zero: 10 seconds.
	Patience time.Duration
	// Memory tells how many bytes of memory are free, and how many there are.
	// Nil: the machine's, or those of the daemon's control group if that has less.
	Memory func() (free, total int64)
}

// Each is how many bytes of memory a sandbox is expected to take while it is made.
const Each = 64 << 20

// Gate admits work. Its methods may be called concurrently. A nil Gate admits
// everything.
type Gate struct {
	cfg Config

	mu      sync.Mutex
	running int
	waiting int
	queues  map[string][]*waiter // by tenant, the oldest first
	turns   []string             // tenants with a queue, whose turn is next first
	took    time.Duration        // a moving average of how long work takes
}

// waiter waits for its slot.
type waiter struct{ admitted chan struct{} }

// New returns a Gate.
func New(cfg Config) *Gate {
	if cfg.Slots <= 0 {
		cfg.Slots = 4 * runtime.GOMAXPROCS(0)
	}
	if cfg.Waiting <= 0 {
		cfg.Waiting = 4 * cfg.Slots
	}
	if cfg.Total <= 0 {
		cfg.Total = 16 * cfg.Slots
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 10 * time.Second
	}
	if cfg.Memory == nil {
		cfg.Memory = machineMemory
	}
	return &Gate{cfg: cfg, queues: map[string][]*waiter{}, took: time.Second}
}

// Enter waits until a tenant may begin to make a sandbox. The caller calls leave
// when that is over. Work that cannot be taken on is CodeExhausted; see
// [RetryAfter].
func (g *Gate) Enter(ctx context.Context, tenant string) (leave func(), err error) {
	if g == nil {
		return func() {}, nil
	}
	w, err := g.enqueue(tenant)
	if err != nil {
		return nil, err
	}
	if w != nil {
		if err := g.await(ctx, tenant, w); err != nil {
			return nil, err
		}
	}
	if err := g.enoughMemory(); err != nil {
		g.release()
		return nil, err
	}
	began := time.Now()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		g.took += (time.Since(began) - g.took) / 8
		g.mu.Unlock()
		g.release()
	}), nil
}

// enqueue takes a slot, and returns nil, or a place in the queue.
func (g *Gate) enqueue(tenant string) (*waiter, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < g.cfg.Slots {
		g.running++
		return nil, nil
	}
	queue := g.queues[tenant]
	if len(queue) >= g.cfg.Waiting || g.waiting >= g.cfg.Total {
		return nil, g.busy()
	}
	if len(queue) == 0 {
		g.turns = append(g.turns, tenant)
	}
	w := &waiter{make(chan struct{})}
	g.queues[tenant] = append(queue, w)
	g.waiting++
	return w, nil
}

// await waits for a slot.
func (g *Gate) await(ctx context.Context, tenant string, w *waiter) (err error) {
	patience := time.NewTimer(g.cfg.Patience)
	defer patience.Stop()
	select {
	case <-w.admitted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-w.admitted:
		if err == nil {
			return nil // just in time
		}
		g.pass()
		return err
	default:
	}
	g.drop(tenant, w)
	if err == nil {
		err = g.busy()
	}
	return err
}

// drop removes a waiter from its queue. The caller holds mu.
func (g *Gate) drop(tenant string, w *waiter) {
	queue := g.queues[tenant]
	for i, other := range queue {
		if other == w {
			queue = append(queue[:i:i], queue[i+1:]...)
			break
		}
	}
	g.waiting--
	g.queues[tenant] = queue
	if len(queue) > 0 {
		return
	}
	delete(g.queues, tenant)
	for i, other := range g.turns {
		if other == tenant {
			g.turns = append(g.turns[:i:i], g.turns[i+1:]...)
			return
		}
	}
}

func (g *Gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass()
}

// pass gives a slot to the next tenant that waits, or back. The caller holds mu.
func (g *Gate) pass() {
	if len(g.turns) == 0 {
		g.running--
		return
	}
	tenant := g.turns[0]
	g.turns = g.turns[1:]
	queue := g.queues[tenant]
	g.waiting--
	close(queue[0].admitted)
	if queue = queue[1:]; len(queue) == 0 {
		delete(g.queues, tenant)
		return
	}
	g.queues[tenant] = queue
	g.turns = append(g.turns, tenant)
}

// What a refused request is told about when to try again.
const (
	minRetry = time.Second
	maxRetry = 15 * time.Second
)

// busy refuses work for which there is no place. The caller holds mu.
func (g *Gate) busy() error {
	wait := g.took * time.Duration(g.waiting+1) / time.Duration(g.cfg.Slots)
	return refuse("the machine is busy: too many sandboxes are being made", min(max(wait, minRetry), maxRetry))
}

// Bounds of what stays free.
const (
	leastFree = 256 << 20
	mostFree  = 1 << 30
)

// enoughMemory refuses work when so little memory is free that the host might end
// what runs.
func (g *Gate) enoughMemory() error {
	free, total := g.cfg.Memory()
	if total <= 0 {
		return nil // nobody knows
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	spare := min(max(total/16, leastFree), mostFree)
	if free-int64(g.running)*Each >= spare {
		return nil
	}
	return refuse(fmt.Sprintf("the machine has too little free memory: %s, of which %s stay free",
		units.BytesSize(float64(free)), units.BytesSize(float64(spare))), 5*time.Second)
}

// Stats says how much work goes on and waits.
func (g *Gate) Stats() (running, waiting int) {
	if g == nil {
		return 0, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.waiting
}

// refusal is the cause of the error for work that is refused.
type refusal struct{ after time.Duration }

func (r *refusal) Error() string { return "try again in " + r.after.String() }

func refuse(message string, after time.Duration) error {
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Subject: Subject, Message: message, Hint: "try again later, or remove sandboxes that are not needed",
		Cause: &refusal{after},
	}
}

// RetryAfter returns after what time refused work is worth another try. It reports
// false if err is not a refusal of this package.
func RetryAfter(err error) (time.Duration, bool) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		return 0, false
	}
	return r.after, true
}
