package create

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// underway are the requests with an idempotency key that are being served. The
// zero value is usable. It is safe for concurrent use.
type underway struct {
	mu        sync.Mutex
	attempts  map[asked]map[*attempt]struct{}
	abandoned map[asked]time.Time
}

// asked names the request that a key belongs to.
type asked struct{ tenant, key string }

type attempt struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// late is how long a request may arrive after the one that abandons it: its
// connection was closed before.
const late = time.Minute

// begin registers a request. Its context ends with ctx, and when the caller
// abandons the request. end is called when it was served.
func (u *underway) begin(ctx context.Context, of asked) (_ context.Context, end func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at, ok := u.abandoned[of]; ok && time.Since(at) < late {
		return ctx, nil, &sandbox.Error{Code: sandbox.CodeCanceled, Subject: "idempotency key", Message: "its request was abandoned"}
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &attempt{cancel, make(chan struct{})}
	if u.attempts == nil {
		u.attempts = map[asked]map[*attempt]struct{}{}
	}
	if u.attempts[of] == nil {
		u.attempts[of] = map[*attempt]struct{}{}
	}
	u.attempts[of][a] = struct{}{}
	return ctx, func() {
		cancel()
		u.mu.Lock()
		defer u.mu.Unlock()
		if delete(u.attempts[of], a); len(u.attempts[of]) == 0 {
			delete(u.attempts, of)
		}
		close(a.done)
	}, nil
}

// abandon ends the requests with a key, refuses those that come late, and waits
// until none is served.
func (u *underway) abandon(ctx context.Context, of asked) error {
	u.mu.Lock()
	for one, at := range u.abandoned {
		if time.Since(at) >= late {
			delete(u.abandoned, one)
		}
	}
	if u.abandoned == nil {
		u.abandoned = map[asked]time.Time{}
	}
	u.abandoned[of] = time.Now()
	var all []*attempt
	for a := range u.attempts[of] {
		a.cancel()
		all = append(all, a)
	}
	u.mu.Unlock()
	for _, a := range all {
		select {
		case <-a.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// abandon ends the earlier request with an idempotency key, whose caller has
// gone, and returns the sandbox that it made. CodeNotFound and CodeGone: there is
// none, and will be none.
func (s *Creator) abandon(ctx context.Context, req sandbox.CreateRequest) (Made, error) {
	if req.IdempotencyKey == "" {
		return Made{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "idempotency key", Message: "is missing: it names the request to abandon"}
	}
	who, _, err := s.Core.Admit(ctx, opCreate, guard.Subject{Name: req.Spec.Name, Subject: req.Spec.Name},
		func(who key.Principal) error { return guard.AllowSpec(who, &req.Spec) })
	if err != nil {
		return Made{}, err
	}
	if err := s.underway.abandon(ctx, asked{who.Tenant, req.IdempotencyKey}); err != nil {
		return Made{}, err
	}
	sb, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Made(ctx, who.Tenant, req.IdempotencyKey)
	})
	if err != nil {
		return Made{}, err
	}
	return s.replay(ctx, sb)
}
