package e2bapi

import (
	"context"
	"slices"
	"sync"
)

// Limits of concurrent builds. The first build of a tenant does not wait for
// other tenants, unless maxBuildsOfAll tenants are building.
const (
	maxBuildsAtOnce = 2
	maxBuildsOfAll  = 16
)

// buildQueue decides which builds run: the tenant with the fewest comes first,
// and of its builds the oldest. The zero value is ready to use.
type buildQueue struct {
	mu      sync.Mutex
	total   int
	running map[string]int // by tenant
	waiting []*queuedBuild // the longest first
}

// queuedBuild is a build that waits.
type queuedBuild struct {
	tenant string
	come   chan struct{} // closed when it may run
}

// take waits for a slot for a tenant's build. The caller returns it with done.
// It fails when ctx ends first.
func (q *buildQueue) take(ctx context.Context, tenant string) error {
	w := &queuedBuild{tenant: tenant, come: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	q.admit()
	q.mu.Unlock()
	select {
	case <-w.come:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, w); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	} else {
		q.free(tenant) // it was admitted at the same time
	}
	return ctx.Err()
}

// done returns a slot.
func (q *buildQueue) done(tenant string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free(tenant)
}

// free releases a slot and admits waiting builds. The lock is held.
func (q *buildQueue) free(tenant string) {
	q.total--
	if q.running[tenant]--; q.running[tenant] == 0 {
		delete(q.running, tenant)
	}
	q.admit()
}

// admit starts the builds that may run. The lock is held.
func (q *buildQueue) admit() {
	for {
		next := -1
		for i, w := range q.waiting {
			if next < 0 || q.running[w.tenant] < q.running[q.waiting[next].tenant] {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := q.waiting[next]
		if q.total >= maxBuildsOfAll || q.total >= maxBuildsAtOnce && q.running[w.tenant] > 0 {
			return
		}
		if q.running == nil {
			q.running = map[string]int{}
		}
		q.waiting = slices.Delete(q.waiting, next, next+1)
		q.running[w.tenant]++
		q.total++
		close(w.come)
	}
}
