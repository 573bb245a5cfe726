package e2bapi

import (
	"context"
	"slices"
	"sync"
)

// Bounds of the builds that go on at once. The first of a tenant does not wait for
// those of others, unless as many tenants as maxBuildsOfAll are building.
const (
	maxBuildsAtOnce = 2
	maxBuildsOfAll  = 16
)

// turns decides which builds go on: the tenant with the fewest comes first, and of
// its builds the one that has waited longest. The zero value is ready.
type turns struct {
	mu      sync.Mutex
	total   int
	running map[string]int // by tenant
	waiting []*turn        // the longest first
}

// turn is a build that waits.
type turn struct {
	tenant string
	come   chan struct{} // closed when it is its turn
}

// take waits for a turn of a tenant, which the caller gives back with done. It
// fails when ctx ends first.
func (t *turns) take(ctx context.Context, tenant string) error {
	w := &turn{tenant: tenant, come: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.admit()
	t.mu.Unlock()
	select {
	case <-w.come:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, w); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	} else {
		t.free(tenant) // it came at the same time
	}
	return ctx.Err()
}

// done gives a turn back.
func (t *turns) done(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free(tenant)
}

// free counts one build less, and lets others go on. The lock is held.
func (t *turns) free(tenant string) {
	t.total--
	if t.running[tenant]--; t.running[tenant] == 0 {
		delete(t.running, tenant)
	}
	t.admit()
}

// admit lets go on who may. The lock is held.
func (t *turns) admit() {
	for {
		next := -1
		for i, w := range t.waiting {
			if next < 0 || t.running[w.tenant] < t.running[t.waiting[next].tenant] {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := t.waiting[next]
		if t.total >= maxBuildsOfAll || t.total >= maxBuildsAtOnce && t.running[w.tenant] > 0 {
			return
		}
		if t.running == nil {
			t.running = map[string]int{}
		}
		t.waiting = slices.Delete(t.waiting, next, next+1)
		t.running[w.tenant]++
		t.total++
		close(w.come)
	}
}
