package tenants

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// credential is the credential of a request, which may continue while it is
// valid. Without a key, it is valid while the tenant is enabled.
type credential struct{ tenant, key string }

// requests are the requests in progress, by credential. It is safe for
// concurrent use.
type requests struct {
	mu sync.Mutex
	by map[credential]map[*request]struct{}
}

type request struct {
	end  context.CancelCauseFunc
	seen bool // by an earlier call of lasting
}

// add returns a context for a request. It ends with ctx, or when the credential
// is no longer valid.
func (r *requests) add(ctx context.Context, c credential) context.Context {
	ctx, end := context.WithCancelCause(ctx)
	one := &request{end: end}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[credential]map[*request]struct{}{}
	}
	if r.by[c] == nil {
		r.by[c] = map[*request]struct{}{}
	}
	r.by[c][one] = struct{}{}
	context.AfterFunc(ctx, func() { r.remove(c, one) })
	return ctx
}

func (r *requests) remove(c credential, one *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.by[c], one); len(r.by[c]) == 0 {
		delete(r.by, c)
	}
}

// lasting returns the credentials of requests that an earlier call has seen.
// Most requests end before that, so their credentials need no check.
func (r *requests) lasting() (found []credential) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, all := range r.by {
		lasts := false
		for one := range all {
			lasts = lasts || one.seen
			one.seen = true
		}
		if lasts {
			found = append(found, c)
		}
	}
	return found
}

// matching returns the credentials in use that match.
func (r *requests) matching(match func(credential) bool) (found []credential) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.by {
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}

func (r *requests) end(c credential, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for one := range r.by[c] {
		one.end(why)
	}
}

// As returns a context for requests of who. It ends when their key is revoked
// or expires, or when their tenant is disabled, and so end open streams and
// connections to ports. Its cause is the error for the caller.
func (s *Service) As(ctx context.Context, who key.Principal) context.Context {
	return s.KeepAlive(ctx, who, who.Tenant, who.Key)
}

// KeepAlive is As for a principal whose requests depend on another key, given
// by its public part. If keyID is empty, they depend only on the tenant.
func (s *Service) KeepAlive(ctx context.Context, who key.Principal, tenant, keyID string) context.Context {
	return guard.WithPrincipal(s.requests.add(ctx, credential{tenant, keyID}), who)
}

// keyPoll is the interval for checking the credentials of long requests. A key
// may have expired, or another daemon may have revoked it.
const keyPoll = time.Second

// WatchKeys ends requests whose credentials have become invalid, until ctx
// ends.
func (s *Service) WatchKeys(ctx context.Context) {
	tick := time.NewTicker(keyPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.review(ctx, s.requests.lasting())
		}
	}
}

// review ends requests whose credentials are no longer valid. If the store
// cannot be read, they continue.
func (s *Service) review(ctx context.Context, credentials []credential) {
	for _, c := range credentials {
		err := s.Store.View(ctx, func(tx *store.Tx) error { return s.Valid(ctx, tx, c.tenant, c.key) })
		if sandbox.CodeOf(err) == sandbox.CodeUnauthorized {
			s.requests.end(c, err)
		}
	}
}

// Valid returns CodeUnauthorized if a request with a key, given by its public
// part, would be refused now. Without a key, it checks the tenant. Other errors
// mean that the store could not be read.
func (s *Service) Valid(ctx context.Context, tx *store.Tx, tenant, keyID string) error {
	if keyID != "" {
		_, err := s.ring.Find(ctx, tx, tenant, keyID)
		return err
	}
	t, err := tx.Tenants().Get(ctx, tenant)
	if err == nil && !t.Disabled.IsZero() {
		err = &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "the tenant is disabled"}
	}
	return err
}

// Find returns the principal of a tenant's key; see key.Ring.Find.
func (s *Service) Find(ctx context.Context, tx *store.Tx, tenant, keyID string) (key.Principal, error) {
	return s.ring.Find(ctx, tx, tenant, keyID)
}

// Accepted returns the accepted keys of a tenant; see key.Ring.Accepted.
func (s *Service) Accepted(ctx context.Context, tx *store.Tx, tenant string) ([]string, error) {
	return s.ring.Accepted(ctx, tx, tenant)
}
