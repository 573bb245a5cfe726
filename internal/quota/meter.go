package quota

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// Meter limits rates: commands and output per second. Its state is in the
// memory of one daemon, so with several daemons each grants the full rate.
// Limits that must hold across daemons are checked by [Check]. The zero value
// is not usable. A Meter is safe for concurrent use.
type Meter struct {
	now func() time.Time

	mu      sync.Mutex
	tenants map[string]*buckets
}

type buckets struct {
	limits       operator.Limits
	exec, output *rate.Limiter
	used         time.Time
}

// NewMeter returns a Meter with the clock now; nil means time.Now.
func NewMeter(now func() time.Time) *Meter {
	if now == nil {
		now = time.Now
	}
	return &Meter{now: now, tenants: map[string]*buckets{}}
}

// Exec counts one command of a tenant with the limits l, or returns
// CodeExhausted with the time after which to retry.
func (m *Meter) Exec(tenant string, l operator.Limits) error {
	if l.ExecRate <= 0 {
		return nil
	}
	now := m.now()
	return take(m.get(tenant, l, now).exec, now, 1, Exceeded{Resource: "execRate", Limit: l.ExecRate})
}

// Output counts n bytes of a tenant's command output. It returns how long to
// wait before reading more, which slows the command down.
func (m *Meter) Output(tenant string, l operator.Limits, n int) time.Duration {
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

// take takes n tokens from lim without waiting, or returns how long to wait.
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

// forgetAfter is the idle time after which a tenant's limiters are dropped. By
// then they are full again, unless a rate is extremely low.
const forgetAfter = time.Hour

func (m *Meter) get(tenant string, l operator.Limits, now time.Time) *buckets {
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

// forget drops limiters that were idle for long.
func (m *Meter) forget(now time.Time) {
	for name, b := range m.tenants {
		if now.Sub(b.used) > forgetAfter {
			delete(m.tenants, name)
		}
	}
}

// change sets the rate of a limiter, which keeps its tokens.
func change(lim *rate.Limiter, now time.Time) func(rate.Limit, int) {
	return func(r rate.Limit, burst int) {
		lim.SetLimitAt(now, r)
		lim.SetBurstAt(now, burst)
	}
}

func execRate(l operator.Limits) (rate.Limit, int) { return bucket(l.ExecRate, float64(l.ExecBurst)) }

// minOutputBurst prevents one read of output from being split into many parts.
const minOutputBurst = 64 << 10

func outputRate(l operator.Limits) (rate.Limit, int) {
	r, burst := bucket(float64(l.OutputRate), float64(l.OutputBurst))
	return r, max(burst, minOutputBurst)
}

func bucket(perSecond, burst float64) (rate.Limit, int) {
	if burst <= 0 {
		burst = math.Max(1, math.Ceil(perSecond))
	}
	return rate.Limit(perSecond), int(math.Min(burst, math.MaxInt32))
}
