package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func on(address string) func(*daemon.Options) {
	return func(o *daemon.Options) { o.Store = address }
}

func openStore(t *testing.T, address string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), address, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Two daemons on one PostgreSQL share names, keys and events, and each has its
// own sandboxes, which the other leaves alone.
func TestSharedStore(t *testing.T) {
	address := storetest.Postgres(t)
	m1, m2 := daemontest.New(t), daemontest.New(t)
	d1, d2 := m1.Start(t, on(address)), m2.Start(t, on(address))
	k, err := daemontest.Client(t, d1).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	c1, c2 := daemontest.Bearer(t, d1, k.Token), daemontest.Bearer(t, d2, k.Token)

	one := create(t, c1, sandbox.Spec{Name: "one"})
	_, err = c2.Create(t.Context(), sandbox.Spec{Name: "one"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeAlreadyExists)
	two := create(t, c2, sandbox.Spec{Name: "two"})
	if one.Info().Node == two.Info().Node || one.Info().Node == "" {
		t.Errorf("on %q and %q", one.Info().Node, two.Info().Node)
	}
	for e, err := range c2.FollowEvents(t.Context(), sandbox.EventQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "sandbox.created" && e.Name == "one" {
			break
		}
	}

	// A sandbox of another daemon is listed, cannot be used, and does not count as gone.
	far, err := c2.Get(t.Context(), "one")
	if err != nil || far.Info().State != sandbox.Running {
		t.Fatalf("%+v %v", far, err)
	}
	_, err = far.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	if !strings.Contains(err.Error(), one.Info().Node) {
		t.Errorf("where? %v", err)
	}
	wantCode(t, far.Destroy(t.Context()), sandbox.CodeUnavailable)
	_, err = far.Stop(t.Context(), 0)
	wantCode(t, err, sandbox.CodeUnavailable)
	_, err = far.Pause(t.Context(), sandbox.PauseMemory)
	wantCode(t, err, sandbox.CodeUnavailable)
	if err := d2.Close(); err != nil {
		t.Fatal(err)
	}
	c2 = daemontest.Bearer(t, m2.Start(t, on(address)), k.Token) // it reconciles
	for _, c := range []*atoll.Client{c1, c2} {
		for _, name := range []string{"one", "two"} {
			if s, err := c.Get(t.Context(), name); err != nil || s.Info().State != sandbox.Running {
				t.Errorf("%s: %+v %v", name, s.Info(), err)
			}
		}
	}
	if _, err := one.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
		t.Errorf("the one that was meddled with: %v", err)
	}
	if r, err := c1.Admin().VerifyAudit(t.Context()); err != nil || !r.Sound {
		t.Errorf("%+v %v", r, err)
	}
	if len(running(t, m1)) != 1 || len(running(t, m2)) != 1 {
		t.Error("a sandbox is not where it was made")
	}
}

// A quota holds for all daemons together, however hard they try.
func TestSharedQuota(t *testing.T) {
	address := storetest.Postgres(t)
	m1, m2 := daemontest.New(t), daemontest.New(t)
	d1, d2 := m1.Start(t, on(address)), m2.Start(t, on(address))
	acme := bearer(t, d1, "acme", "write")
	k, err := daemontest.Client(t, d2).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "acme", Verbs: []string{"write"}})
	if err != nil {
		t.Fatal(err)
	}
	other := daemontest.Bearer(t, d2, k.Token)
	if err := openStore(t, address).Update(t.Context(), func(tx *store.Tx) error {
		return tx.Tenants().SetLimits(t.Context(), "acme", operator.Limits{Sandboxes: 3})
	}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 12 {
		c := acme
		if i%2 == 0 {
			c = other
		}
		wg.Go(func() {
			if _, err := c.Create(context.Background(), sandbox.Spec{}, atoll.CreateOptions{}); err != nil {
				wantCode(t, err, sandbox.CodeExhausted)
			}
		})
	}
	wg.Wait()
	if n := len(running(t, m1)) + len(running(t, m2)); n != 3 {
		t.Errorf("%d were made", n)
	}
}

// Two daemons never act as one node, and one that crashed gets its place back
// at once.
func TestOneDaemonPerNode(t *testing.T) {
	address := storetest.Postgres(t)
	m := daemontest.New(t)
	d := m.Start(t, on(address))
	file := filepath.Join(m.Dir, "node.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crashed struct{ Node, Instance string }
	if err := json.Unmarshal(text, &crashed); err != nil {
		t.Fatal(err)
	}
	clone := daemontest.New(t)
	forged := strings.Replace(string(text), crashed.Instance, "an-earlier-run", 1)
	if err := os.WriteFile(filepath.Join(clone.Dir, "node.json"), []byte(forged), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := clone.Options()
	opts.Store = address
	_, err = daemon.Start(t.Context(), opts)
	wantCode(t, err, sandbox.CodeConflict)

	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := openStore(t, address).Update(t.Context(), func(tx *store.Tx) error { // as a crash would have left it
		return tx.Operator().Register(t.Context(), store.Node{ID: crashed.Node, Instance: crashed.Instance}, 0)
	}); err != nil {
		t.Fatal(err)
	}
	d = m.Start(t, on(address))
	create(t, daemontest.Client(t, d), sandbox.Spec{Name: "one"})
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	opts = m.Options()
	opts.Store = address
	_, err = daemon.Start(t.Context(), opts)
	wantCode(t, err, sandbox.CodeInternal)
}

// The address of a database is a secret: it is in no error.
func TestAttackStoreAddressStaysOut(t *testing.T) {
	const canary = "canary-77ab1"
	for _, address := range []string{
		"postgres://atoll:" + canary + "@127.0.0.1:1/atoll?connect_timeout=1",
		"postgres://atoll:" + canary + "@127.0.0.1:notaport/atoll",
		"postgres://atoll@127.0.0.1:1/atoll?connect_timeout=1&password=" + canary,
		"mysql://atoll:" + canary + "@127.0.0.1/atoll",
	} {
		opts := daemontest.New(t).Options()
		opts.Store = address
		_, err := daemon.Start(t.Context(), opts)
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), canary) {
				t.Errorf("told: %v", e)
			}
		}
		if code := sandbox.CodeOf(err); code != sandbox.CodeUnavailable && code != sandbox.CodeInvalid {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// The connection to the database is cut repeatedly, and for a while, while
// clients work. All acknowledged changes exist, and no others.
func TestStoreConnectionIsCut(t *testing.T) {
	address := storetest.Postgres(t)
	m := daemontest.New(t)
	d := m.Start(t, on(address))
	c := daemontest.Client(t, d)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	kept := map[string]sandbox.ID{}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := "w" + strconv.Itoa(worker) + "-" + strconv.Itoa(i)
				s, err := c.Create(context.Background(), sandbox.Spec{Name: name}, atoll.CreateOptions{})
				if err != nil {
					wantCode(t, err, sandbox.CodeUnavailable)
					continue
				}
				if _, err := s.Run(context.Background(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
					wantCode(t, err, sandbox.CodeUnavailable)
				}
				mu.Lock()
				kept[name] = s.ID()
				mu.Unlock()
				select {
				case done <- struct{}{}:
				case <-ctx.Done():
				}
				if i%2 == 0 {
					mu.Lock()
					delete(kept, name) // it may be there or not
					mu.Unlock()
					_ = s.Destroy(context.Background())
				}
			}
		})
	}
	progress := func() {
		for range 8 {
			<-done
		}
	}
	for range 10 {
		storetest.Disconnect(t, address)
		progress()
	}
	restore := storetest.Refuse(t, address)
	_, err := c.Create(t.Context(), sandbox.Spec{}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	restore()
	progress()
	cancel()
	wg.Wait()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c = daemontest.Client(t, m.Start(t, on(address)))
	agree(t, m, c)
	for name, id := range kept {
		if s, err := c.Get(t.Context(), name); err != nil || s.ID() != id || s.Info().State != sandbox.Running {
			t.Errorf("%s was acknowledged: %v", name, err)
		}
	}
}
