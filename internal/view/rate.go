package view

import (
	"cmp"
	"context"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"
)

const (
	// defaultRate is how many bytes per second a stream carries in a direction.
	defaultRate = 8 << 20
	// burst is how many seconds of its rate a stream carries at once.
	burst = 2
	// ofTenant is how many times as much all streams of a tenant carry together.
	ofTenant = 8
	// fullAgain is after how long without streams a tenant's bucket is full in any
	// case.
	fullAgain = time.Minute
)

// Held counts what streams were too fast for.
type Held struct {
	Bytes int64         // that waited
	Time  time.Duration // that they waited, all together
}

// rates are the buckets of bytes of the streams of a daemon. A stream that is too
// fast is held up, and loses nothing.
type rates struct {
	mu      sync.Mutex
	tenants map[string]*shares
	held    Held
}

// shares are the buckets of a tenant.
type shares struct {
	buckets
	used time.Time
}

// buckets are those of both directions.
type buckets struct{ up, down *rate.Limiter }

func newBuckets(perSecond int64) buckets {
	one := func() *rate.Limiter { return rate.NewLimiter(rate.Limit(perSecond), int(burst*perSecond)) }
	return buckets{up: one(), down: one()}
}

// tenant returns the buckets that all streams of a tenant share.
func (r *rates) tenant(name string, perSecond int64) buckets {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for other, s := range r.tenants {
		if now.Sub(s.used) > fullAgain {
			delete(r.tenants, other)
		}
	}
	s := r.tenants[name]
	if s == nil {
		if r.tenants == nil {
			r.tenants = map[string]*shares{}
		}
		s = &shares{buckets: newBuckets(ofTenant * perSecond)}
		r.tenants[name] = s
	}
	s.used = now
	return s.buckets
}

// pass takes n bytes from buckets, and waits as long as they have not so many.
func (r *rates) pass(ctx context.Context, n int, from ...*rate.Limiter) error {
	now := time.Now()
	var wait time.Duration
	for _, lim := range from {
		for left := n; left > 0; {
			part := min(left, lim.Burst())
			wait = max(wait, lim.ReserveN(now, part).DelayFrom(now))
			left -= part
		}
	}
	if wait == 0 {
		return nil
	}
	r.mu.Lock()
	r.held.Bytes, r.held.Time = r.held.Bytes+int64(n), r.held.Time+wait
	r.mu.Unlock()
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-late.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Held returns what streams were held up since the daemon was started.
func (s *Service) Held() Held {
	s.rates.mu.Lock()
	defer s.rates.mu.Unlock()
	return s.rates.held
}

// pacedSocket is the socket of a viewer, with the rates of its stream and tenant.
type pacedSocket struct {
	*websocket.Conn
	rates       *rates
	own, tenant buckets
}

func (s *Service) pace(ws *websocket.Conn, o *opened) *pacedSocket {
	perSecond := cmp.Or(s.cfg.Rate, defaultRate)
	return &pacedSocket{Conn: ws, rates: &s.rates, own: o.buckets, tenant: s.rates.tenant(o.who.Tenant, perSecond)}
}

// Write sends a message, when the stream may.
func (p *pacedSocket) Write(ctx context.Context, kind websocket.MessageType, b []byte) error {
	if err := p.rates.pass(ctx, len(b), p.own.down, p.tenant.down); err != nil {
		return err
	}
	return p.Conn.Write(ctx, kind, b)
}

// Reader returns a reader of the next message. What was read too fast is handed on
// later, so that the viewer has to wait.
func (p *pacedSocket) Reader(ctx context.Context) (websocket.MessageType, io.Reader, error) {
	kind, r, err := p.Conn.Reader(ctx)
	return kind, pacedReader{ctx, p, r}, err
}

type pacedReader struct {
	ctx  context.Context
	p    *pacedSocket
	from io.Reader
}

func (r pacedReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	if failed := r.p.rates.pass(r.ctx, n, r.p.own.up, r.p.tenant.up); failed != nil {
		return n, failed
	}
	return n, err
}
