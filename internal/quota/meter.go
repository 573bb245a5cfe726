package quota

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/atoll-run/atoll/sandbox"
)

// Meter counts what comes back by itself: commands and output per second. It
// lives in the memory of one daemon, so with several daemons each grants the
// full rate; the limits that must hold together are those of [Check]. The zero
// value is not usable; a Meter may be used concurrently.
type Meter struct {
	now func() time.Time

	mu      sync.Mutex
	tenants map[string]*buckets
}

type buckets struct {
	limits       sandbox.Limits
	exec, output *rate.Limiter
	used         time.Time
}

// NewMeter makes a Meter that tells time by now; nil means time.Now.
func NewMeter(now func() time.Time) *Meter {
	if now == nil {
		now = time.Now
	}
	return &Meter{now: now, tenants: map[string]*buckets{}}
}

// Exec counts one command of a tenant with the limits l, or refuses it with
// CodeExhausted and the time after which one can start.
func (m *Meter) Exec(tenant string, l sandbox.Limits) error {
	if l.ExecRate <= 0 {
		return nil
	}
	now := m.now()
	return take(m.get(tenant, l, now).exec, now, 1, Exceeded{Resource: "execRate", Limit: l.ExecRate})
}

// Output counts n bytes that a command of the tenant wrote. It never refuses
// them, because they are written; it returns how long to wait before reading
// more, which is the back-pressure that slows the command down.
func (m *Meter) Output(tenant string, l sandbox.Limits, n int) time.Duration {
	if l.OutputRate <= 0 || n <= 0 {
		return 0
	}
	now := m.now()
	lim := m.get(tenant, l, now).output
	var wait time.Duration
	for n > 0 {
		part := min(n, lim.Burst())
		wait = max(wait, lim.ReserveN(now, part).DelayFrom(now))
		n -= part
	}
	return wait
}

// take reserves n from lim without waiting, or says how long to wait.
func take(lim *rate.Limiter, now time.Time, n int, e Exceeded) error {
	r := lim.ReserveN(now, n)
	delay := r.DelayFrom(now)
	if r.OK() && delay == 0 {
		return nil
	}
	r.CancelAt(now)
	e.Used, e.Asked, e.RetryAfter = e.Limit, float64(n), delay
	return exceeded(&e)
}

// forgetAfter is the time without use after which a tenant's buckets are
// dropped. They are full again by then unless a rate is absurdly small.
const forgetAfter = time.Hour

func (m *Meter) get(tenant string, l sandbox.Limits, now time.Time) *buckets {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.tenants[tenant]
	if b == nil {
		m.forget(now)
		b = &buckets{limits: l, exec: rate.NewLimiter(execRate(l)), output: rate.NewLimiter(outputRate(l))}
		m.tenants[tenant] = b
	}
	if b.limits != l {
		b.limits = l
		change(b.exec, now)(execRate(l))
		change(b.output, now)(outputRate(l))
	}
	b.used = now
	return b
}

// forget drops the buckets that nobody used for long.
func (m *Meter) forget(now time.Time) {
	for name, b := range m.tenants {
		if now.Sub(b.used) > forgetAfter {
			delete(m.tenants, name)
		}
	}
}

// change sets the rate of a limiter, which keeps the tokens it has.
func change(lim *rate.Limiter, now time.Time) func(rate.Limit, int) {
	return func(r rate.Limit, burst int) {
		lim.SetLimitAt(now, r)
		lim.SetBurstAt(now, burst)
	}
}

func execRate(l sandbox.Limits) (rate.Limit, int) { return bucket(l.ExecRate, float64(l.ExecBurst)) }

// minOutputBurst keeps one read of output from being cut into many parts.
const minOutputBurst = 64 << 10

func outputRate(l sandbox.Limits) (rate.Limit, int) {
	r, burst := bucket(float64(l.OutputRate), float64(l.OutputBurst))
	return r, max(burst, minOutputBurst)
}

func bucket(perSecond, burst float64) (rate.Limit, int) {
	if burst <= 0 {
		burst = math.Max(1, math.Ceil(perSecond))
	}
	return rate.Limit(perSecond), int(math.Min(burst, math.MaxInt32))
}
