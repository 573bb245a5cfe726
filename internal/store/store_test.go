package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Unix(1_800_000_000, 0).UTC()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != code {
		t.Fatalf("the error is %q (%v), want %q", got, err, code)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		var e *sandbox.Error
		errors.As(err, &e)
		t.Fatalf("%v (%+v)", err, e)
	}
}

func tenants(t *testing.T, s *store.Store, names ...string) {
	t.Helper()
	for _, name := range names {
		ok(t, s.Update(context.Background(), func(tx *store.Tx) error {
			_, err := tx.Tenants().Ensure(context.Background(), name)
			return err
		}))
	}
}

func testSandbox(name string) store.Sandbox {
	return store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: sandbox.ID("id-" + name), Name: name, Provider: "fake", Node: "n1"}}, Spec: sandbox.Spec{Name: name, Image: "host"}}
}

func create(s *store.Store, tenant string, b store.Sandbox, c store.Create) (out store.Sandbox, replayed bool, err error) {
	ctx := context.Background()
	err = s.Update(ctx, func(tx *store.Tx) (err error) {
		out, replayed, err = tx.Sandboxes().Create(ctx, tenant, b, c)
		return err
	})
	return out, replayed, err
}

func mustCreate(t *testing.T, s *store.Store, tenant string, b store.Sandbox) store.Sandbox {
	t.Helper()
	out, _, err := create(s, tenant, b, store.Create{})
	ok(t, err)
	return out
}

func get(s *store.Store, tenant string, id sandbox.ID) (store.Sandbox, error) {
	return store.Read(context.Background(), s, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Get(context.Background(), tenant, id)
	})
}

func update(s *store.Store, tenant string, id sandbox.ID, want store.Expect, change func(*store.Sandbox)) (store.Sandbox, error) {
	return store.Write(context.Background(), s, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(context.Background(), tenant, id, want, change)
	})
}

func setState(st sandbox.State) func(*store.Sandbox) {
	return func(b *store.Sandbox) { b.State = st }
}

func TestCreateAndGet(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme")
		in := testSandbox("web")
		in.Labels = map[string]string{"team": "red", "ünï": "cöde"}
		in.Resources = sandbox.Resources{CPUs: 0.5, Memory: 1 << 30, Disk: 2 << 30, PIDs: 100}
		in.Expires = clk.now().Add(time.Hour)
		in.Idle = store.Idle{After: time.Minute, Action: "pause"}
		in.Spec.Env = map[string]string{"TOKEN": "canary-8d2f"}
		in.Spec.Mounts = []sandbox.Mount{{Source: "/src", Target: "/dst", ReadOnly: true}}
		made := mustCreate(t, s, "acme", in)
		if in.Spec.Env["TOKEN"] != "canary-8d2f" {
			t.Error("the caller's spec was changed")
		}
		got, err := get(s, "acme", "id-web")
		ok(t, err)
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", made) {
			t.Errorf("got\n%+v, want\n%+v", got, made)
		}
		if v, found := got.Spec.Env["TOKEN"]; v != "" || !found {
			t.Errorf("the environment is %q: the name is kept and the value is not", got.Spec.Env)
		}
		if got.State != sandbox.Creating || got.Version != 1 || got.Image != "host" || !got.Created.Equal(clk.now()) {
			t.Errorf("wrong beginnings: %+v", got)
		}
		byName, err := store.Read(context.Background(), s, func(tx *store.Tx) (store.Sandbox, error) {
			return tx.Sandboxes().Find(context.Background(), "acme", "web")
		})
		ok(t, err)
		if byName.ID != "id-web" {
			t.Errorf("the name leads to %s", byName.ID)
		}
		_, err = get(s, "acme", "id-nothing")
		wantCode(t, err, sandbox.CodeNotFound)
	})
}

func TestOneNameOneSandbox(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		stores := []*store.Store{open(store.Options{}), open(store.Options{})}
		tenants(t, stores[0], "acme")
		const n = 50
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				b := testSandbox("web")
				b.ID = sandbox.ID(fmt.Sprintf("id-%d", i))
				_, _, errs[i] = create(stores[i%2], "acme", b, store.Create{})
			})
		}
		wg.Wait()
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
				continue
			}
			wantCode(t, err, sandbox.CodeAlreadyExists)
			if !strings.Contains(err.Error(), "web") {
				t.Errorf("%q does not name what is taken", err)
			}
		}
		if made != 1 {
			t.Errorf("%d of %d were made, want 1", made, n)
		}
	})
}

func TestNameIsFreeWhenGone(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		mustCreate(t, s, "acme", testSandbox("web"))
		for _, st := range []sandbox.State{sandbox.Stopped, sandbox.Lost, sandbox.Failed} {
			_, err := update(s, "acme", "id-web", store.Expect{}, setState(st))
			ok(t, err)
			again := testSandbox("web")
			again.ID = "id-other"
			_, _, err = create(s, "acme", again, store.Create{})
			wantCode(t, err, sandbox.CodeAlreadyExists)
		}
		_, err := update(s, "acme", "id-web", store.Expect{}, setState(sandbox.Gone))
		ok(t, err)
		again := testSandbox("web")
		again.ID = "id-other"
		mustCreate(t, s, "acme", again)
		old, err := get(s, "acme", "id-web")
		ok(t, err)
		if old.State != sandbox.Gone {
			t.Errorf("the old one is %s", old.State)
		}
		_, err = update(s, "acme", "id-web", store.Expect{}, setState(sandbox.Running))
		wantCode(t, err, sandbox.CodeGone)
	})
}

func TestExpectations(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		b := mustCreate(t, s, "acme", testSandbox("web"))
		for _, tt := range []struct {
			name string
			want store.Expect
			code sandbox.Code
		}{
			{"state", store.Expect{States: []sandbox.State{sandbox.Running, sandbox.Paused}}, sandbox.CodeConflict},
			{"version", store.Expect{Version: b.Version + 1}, sandbox.CodeConflict},
			{"node", store.Expect{Node: "n2"}, sandbox.CodeStale},
			{"epoch", store.Expect{Epoch: 7}, sandbox.CodeStale},
			{"all hold", store.Expect{States: []sandbox.State{sandbox.Creating}, Version: 1, Node: "n1"}, ""},
		} {
			_, err := update(s, "acme", b.ID, tt.want, setState(sandbox.Running))
			if got := sandbox.CodeOf(err); got != tt.code {
				t.Errorf("%s: %v", tt.name, err)
			}
			if tt.name == "state" && err.Error() != "web: is creating, not running or paused" {
				t.Errorf("the refusal says %q", err)
			}
		}
		now, err := get(s, "acme", b.ID)
		ok(t, err)
		if now.Version != 2 || now.State != sandbox.Running {
			t.Errorf("after one change: %+v", now)
		}
	})
}

func TestCompareAndSet(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		stores := []*store.Store{open(store.Options{}), open(store.Options{})}
		tenants(t, stores[0], "acme")
		mustCreate(t, stores[0], "acme", testSandbox("web"))
		_, err := update(stores[0], "acme", "id-web", store.Expect{}, setState(sandbox.Running))
		ok(t, err)
		const n = 20
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				_, errs[i] = update(stores[i%2], "acme", "id-web", store.Expect{States: []sandbox.State{sandbox.Running}}, setState(sandbox.Pausing))
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
				continue
			}
			wantCode(t, err, sandbox.CodeConflict)
		}
		if won != 1 {
			t.Errorf("%d won, want 1", won)
		}
	})
}

func TestTenantsAreIsolated(t *testing.T) {
	ctx := context.Background()
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme", "rival")
		b := testSandbox("web")
		b.Labels = map[string]string{"a": "b"}
		mustCreate(t, s, "acme", b)
		same := testSandbox("web")
		same.ID = "id-rival"
		mustCreate(t, s, "rival", same) // tenants may use the same name

		missing := func(_ store.Sandbox, err error) error { return err }
		unknown := missing(get(s, "rival", "id-nothing"))
		foreign := missing(get(s, "rival", "id-web"))
		if strings.ReplaceAll(foreign.Error(), "id-web", "id-nothing") != unknown.Error() {
			t.Errorf("another tenant's sandbox answers %q, one that never was %q", foreign, unknown)
		}
		_, err := update(s, "rival", "id-web", store.Expect{}, setState(sandbox.Gone))
		wantCode(t, err, sandbox.CodeNotFound)
		wantCode(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Sandboxes().Touch(ctx, "rival", "id-web", tx.Now()) }), sandbox.CodeNotFound)

		acme := listAll(t, s, "acme", store.Filter{}, 10)
		rival := listAll(t, s, "rival", store.Filter{}, 10)
		if len(acme) != 1 || acme[0] != "id-web" || len(rival) != 1 || rival[0] != "id-rival" {
			t.Errorf("listings: %v and %v", acme, rival)
		}
		if got := listAll(t, s, "rival", store.Filter{Labels: b.Labels}, 10); len(got) != 0 {
			t.Errorf("labels lead to %v", got)
		}
		_, _, err = create(s, "nobody", testSandbox("x"), store.Create{})
		wantCode(t, err, sandbox.CodeNotFound)
	})
}

func TestIdempotencyKeys(t *testing.T) {
	ctx := context.Background()
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		stores := []*store.Store{open(store.Options{Now: clk.now}), open(store.Options{Now: clk.now})}
		s := stores[0]
		tenants(t, s, "acme", "rival")
		req := store.Create{IdempotencyKey: "k1", Request: []byte(`{"env":{"A":"secret"}}`)}

		const n = 20
		ids := make([]sandbox.ID, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				b := testSandbox("web")
				b.ID = sandbox.ID(fmt.Sprintf("id-%d", i))
				out, _, err := create(stores[i%2], "acme", b, req)
				if err != nil {
					t.Error(err)
				}
				ids[i] = out.ID
			})
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("repetitions made different sandboxes: %v", ids)
			}
		}
		out, replayed, err := create(s, "acme", testSandbox("web"), req)
		ok(t, err)
		if !replayed || out.ID != ids[0] {
			t.Errorf("a repetition gives %s, replayed %v", out.ID, replayed)
		}
		other := req
		other.Request = []byte(`{"env":{"A":"another"}}`)
		_, _, err = create(s, "acme", testSandbox("web"), other)
		wantCode(t, err, sandbox.CodeConflict)
		out, replayed, err = create(s, "rival", testSandbox("web"), req)
		ok(t, err)
		if replayed || out.ID != "id-web" {
			t.Error("a key of one tenant is known to another")
		}
		long := req
		long.IdempotencyKey = strings.Repeat("k", 256)
		_, _, err = create(s, "acme", testSandbox("long"), long)
		wantCode(t, err, sandbox.CodeInvalid)

		clk.advance(25 * time.Hour)
		forgotten, err := store.Write(ctx, s, func(tx *store.Tx) (int64, error) {
			return tx.Operator().ForgetIdempotencyKeys(ctx, clk.now().Add(-24*time.Hour))
		})
		ok(t, err)
		if forgotten != 2 {
			t.Errorf("%d keys forgotten, want 2", forgotten)
		}
		_, _, err = create(s, "acme", testSandbox("web"), req)
		wantCode(t, err, sandbox.CodeAlreadyExists) // the key is new, the name is not
	})
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	ctx := context.Background()
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		boom := errors.New("boom")
		committed := false
		err := s.Update(ctx, func(tx *store.Tx) error {
			tx.OnCommit(func() { committed = true })
			if _, _, err := tx.Sandboxes().Create(ctx, "acme", testSandbox("web"), store.Create{IdempotencyKey: "k"}); err != nil {
				return err
			}
			return boom
		})
		if err == nil || committed {
			t.Fatalf("err %v, committed %v", err, committed)
		}
		if got := listAll(t, s, "acme", store.Filter{}, 10); len(got) != 0 {
			t.Errorf("left behind: %v", got)
		}
		_, replayed, err := create(s, "acme", testSandbox("web"), store.Create{IdempotencyKey: "k"})
		ok(t, err)
		if replayed {
			t.Error("the key of a create that was undone is remembered")
		}
	})
}

func TestBadInput(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		for _, change := range []func(*store.Sandbox){
			func(b *store.Sandbox) { b.Name = "" },
			func(b *store.Sandbox) { b.Name = "a'; DROP TABLE sandboxes; --" },
			func(b *store.Sandbox) { b.ID = "" },
			func(b *store.Sandbox) { b.ID = "../x" },
			func(b *store.Sandbox) { b.Labels = map[string]string{"": "x"} },
			func(b *store.Sandbox) { b.Labels = map[string]string{"x": "a\x00b"} },
		} {
			b := testSandbox("web")
			change(&b)
			_, _, err := create(s, "acme", b, store.Create{})
			wantCode(t, err, sandbox.CodeInvalid)
		}
		ctx := context.Background()
		for _, name := range []string{"", "A", "a/b", "a\x00", strings.Repeat("a", 64)} {
			wantCode(t, s.Update(ctx, func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(ctx, name); return err }), sandbox.CodeInvalid)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, "junk"), []byte(strings.Repeat("not a database", 1000)), 0o600))
	for url, code := range map[string]sandbox.Code{
		"":                            sandbox.CodeInvalid,
		"sqlite:":                     sandbox.CodeInvalid,
		":memory:":                    sandbox.CodeInvalid,
		"mysql://h/db":                sandbox.CodeInvalid,
		"postgres://u:canary@h:x/db":  sandbox.CodeInvalid,
		"sqlite:" + dir + "/junk":     sandbox.CodeInternal,
		"sqlite:" + dir:               sandbox.CodeUnavailable,
		"sqlite:" + dir + "/junk/x":   sandbox.CodeUnavailable,
		"postgres:///db?host=" + dir:  sandbox.CodeUnavailable,
		"postgresql:///x?host=" + dir: sandbox.CodeUnavailable,
	} {
		s, err := store.Open(context.Background(), url, store.Options{})
		if s != nil {
			_ = s.Close()
		}
		if sandbox.CodeOf(err) != code {
			t.Errorf("%s: %v, want %s", url, err, code)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%q holds the password", err)
		}
	}
}

func TestOddPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a b", "a?mode=memory", "a#b", "a%20b", "ä:ö", "file:x"} {
		path := filepath.Join(dir, name, "atoll.db")
		s, err := store.Open(context.Background(), path, store.Options{})
		ok(t, err)
		tenants(t, s, "acme")
		ok(t, s.Close())
		ok(t, s.Close())
		info, err := os.Stat(path)
		ok(t, err)
		if info.Mode().Perm() != 0o600 || info.Size() == 0 {
			t.Errorf("%s has mode %v and %d bytes", path, info.Mode(), info.Size())
		}
	}
}

// TestCanceled: a canceled caller returns at once and its changes are undone.
// The store serves the next one.
func TestCanceled(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		for code, stop := range map[sandbox.Code]func() (context.Context, context.CancelFunc){
			sandbox.CodeTimeout: func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), 20*time.Millisecond)
			},
			sandbox.CodeCanceled: func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(20*time.Millisecond, cancel)
				return ctx, cancel
			},
		} {
			for name, do := range map[string]func(context.Context, func(*store.Tx) error) error{"update": s.Update, "view": s.View} {
				ctx, cancel := stop()
				err := do(ctx, func(tx *store.Tx) error {
					if name == "update" {
						// The context may already end here.
						if _, _, err := tx.Sandboxes().Create(ctx, "acme", testSandbox("web"), store.Create{}); err != nil {
							return err
						}
					}
					return tx.Spin(ctx)
				})
				cancel()
				if sandbox.CodeOf(err) != code {
					t.Errorf("%s: %v (%v), want %s", name, err, sandboxCause(err), code)
				}
			}
		}
		if got := listAll(t, s, "acme", store.Filter{}, 10); len(got) != 0 {
			t.Errorf("left behind: %v", got)
		}
		mustCreate(t, s, "acme", testSandbox("web"))
	})
}
