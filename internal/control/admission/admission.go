// Package admission limits how many sandboxes a machine creates at once.
// Further requests wait in queues that are served per tenant in turn. A request
// that would wait too long is refused with the time after which to retry.
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

// Subject is the subject of the error for refused requests. Clients may retry a
// request that was refused with it.
const Subject = "machine"

// Config configures a Gate. The zero value suits this machine.
type Config struct {
	// Slots is the number of sandboxes created at once. Zero: four per processor.
	Slots int
	// Waiting is the maximum number of requests of one tenant that wait for a
	// slot, and Total that of all tenants. Zero: four and sixteen per slot.
	Waiting, Total int
	// Patience is the maximum wait for a slot. Zero: 10 seconds.
	Patience time.Duration
	// Memory returns the bytes of free memory and of total memory. Nil: those of
	// the machine, or of the daemon's control group if that has less.
	Memory func() (free, total int64)
}

// Each is the memory, in bytes, that creating a sandbox is expected to use.
const Each = 64 << 20

// Gate admits requests. It is safe for concurrent use. A nil Gate admits
// everything.
type Gate struct {
	cfg Config

	mu      sync.Mutex
	running int
	waiting int
	queues  map[string][]*waiter // by tenant, oldest first
	turns   []string             // tenants with a queue, the next one first
	took    time.Duration        // a moving average of the duration of creations
}

// waiter waits for a slot.
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

// Enter waits until a tenant may start to create a sandbox. The caller calls
// leave after the creation. A refused request gets CodeExhausted; see
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

// enqueue takes a free slot and returns nil, or adds a waiter to the queue.
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
			return nil // admitted at the last moment
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

// pass gives a slot to the next waiting tenant, or frees it. The caller holds
// mu.
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

// Limits of the retry time in a refusal.
const (
	minRetry = time.Second
	maxRetry = 15 * time.Second
)

// busy returns the refusal if the queue is full. The caller holds mu.
func (g *Gate) busy() error {
	wait := g.took * time.Duration(g.waiting+1) / time.Duration(g.cfg.Slots)
	return refuse("the machine is busy: too many sandboxes are being created", min(max(wait, minRetry), maxRetry))
}

// Limits of the memory that must stay free.
const (
	leastFree = 256 << 20
	mostFree  = 1 << 30
)

// enoughMemory refuses a request if so little memory is free that the kernel
// might kill running sandboxes.
func (g *Gate) enoughMemory() error {
	free, total := g.cfg.Memory()
	if total <= 0 {
		return nil // free memory is unknown
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

// Stats returns the number of running and waiting requests.
func (g *Gate) Stats() (running, waiting int) {
	if g == nil {
		return 0, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.waiting
}

// refusal is the cause of the error for a refused request.
type refusal struct{ after time.Duration }

func (r *refusal) Error() string { return "try again in " + r.after.String() }

func refuse(message string, after time.Duration) error {
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Subject: Subject, Message: message, Hint: "try again later, or remove sandboxes that are not needed",
		Cause: &refusal{after},
	}
}

// RetryAfter returns when to retry a refused request. It returns false if err
// is not a refusal of this package.
func RetryAfter(err error) (time.Duration, bool) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		return 0, false
	}
	return r.after, true
}
