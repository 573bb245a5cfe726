package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestSessionsEnded: the server ends all sessions during work. Only callers in
// the middle of a commit get an error, and nothing is done twice or lost.
func TestSessionsEnded(t *testing.T) {
	ctx := context.Background()
	address := storetest.Postgres(t)
	s, err := store.Open(ctx, address, store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	tenants(t, s, "acme")
	const n = 60
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, unknown := map[sandbox.ID]bool{}, 0
	for w := range 3 {
		wg.Go(func() {
			for i := range n {
				b := labelled(fmt.Sprintf("b%d-%d", w, i))
				_, _, err := create(s, "acme", b, store.Create{IdempotencyKey: b.Name})
				mu.Lock()
				if err == nil {
					made[b.ID] = true
				} else if unknown++; sandbox.CodeOf(err) != sandbox.CodeUnavailable {
					t.Errorf("%v (%v)", err, sandboxCause(err))
				}
				mu.Unlock()
			}
		})
	}
	for range 10 {
		storetest.Disconnect(t, address)
	}
	wg.Wait()
	there := map[sandbox.ID]bool{}
	all := listAll(t, s, "acme", store.Filter{}, 1000)
	for _, id := range all {
		there[id] = true
	}
	for id := range made {
		if !there[id] {
			t.Errorf("%s was acknowledged and is lost", id)
		}
	}
	if len(all) > len(made)+unknown {
		t.Errorf("%d are there, %d were made and %d may have been", len(all), len(made), unknown)
	}
}

// proxy forwards connections to a server. On request, it cuts one when the
// client sends a certain word.
type proxy struct {
	net.Listener

	mu     sync.Mutex
	target string
	cutAt  string

	stall sync.RWMutex // while it is held for writing, no answer comes through
}

func newProxy(t *testing.T, address string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(address)
	ok(t, err)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	ok(t, err)
	p := &proxy{Listener: l, target: filepath.Join(u.Query().Get("host"), ".s.PGSQL.5432")}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.pass(c) })
		}
	})
	t.Cleanup(func() {
		ok(t, l.Close())
		wg.Wait()
	})
	q := u.Query()
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	return p, u.String()
}

func (p *proxy) cut(word string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt = word
}

// pass cuts the connection when the client sends the word. The word reaches the
// server, but the answer does not reach the client.
func (p *proxy) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.Dial("unix", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	cutting := make(chan struct{})
	var once sync.Once
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			p.stall.RLock()
			p.stall.RUnlock() //nolint:staticcheck // it only waits
			select {
			case <-cutting: // drop the answer
				_ = client.Close()
				return
			default:
			}
			if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
				_ = client.Close()
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.cutAt != "" && bytes.Contains(bytes.ToLower(buf[:n]), bytes.ToLower([]byte(p.cutAt))) {
			p.cutAt = ""
			once.Do(func() { close(cutting) })
		}
		p.mu.Unlock()
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestAnswerLost cuts the connection at a statement, so that its answer is
// lost.
func TestAnswerLost(t *testing.T) {
	ctx := context.Background()
	direct := storetest.Postgres(t)
	p, address := newProxy(t, direct)
	s, err := store.Open(ctx, address, store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	tenants(t, s, "acme")

	// In the middle of a transaction it is safe to retry.
	p.cut("INSERT INTO sandbox_labels")
	runs := 0
	err = s.Update(ctx, func(tx *store.Tx) error {
		runs++
		_, _, err := tx.Sandboxes().Create(ctx, "acme", labelled("a"), store.Create{})
		return err
	})
	ok(t, err)
	if runs != 2 {
		t.Errorf("run %d times, want 2", runs)
	}

	// At the commit it is not: the sandbox is stored, but the caller was not told.
	p.cut("commit")
	runs = 0
	err = s.Update(ctx, func(tx *store.Tx) error {
		runs++
		_, _, err := tx.Sandboxes().Create(ctx, "acme", labelled("b"), store.Create{IdempotencyKey: "key"})
		return err
	})
	wantCode(t, err, sandbox.CodeUnavailable)
	var e *sandbox.Error
	if runs != 1 || !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("run %d times: %+v", runs, e)
	}
	_, replayed, err := create(s, "acme", labelled("b"), store.Create{IdempotencyKey: "key"})
	ok(t, err)
	if !replayed {
		t.Error("the repetition made another sandbox")
	}
	if got := listAll(t, s, "acme", store.Filter{}, 10); len(got) != 2 {
		t.Errorf("there are %v", got)
	}

	// A reader notices nothing.
	p.cut("SELECT id, tenant")
	_, err = get(s, "acme", "id-a")
	ok(t, err)
}

// TestServerGone: without a server, calls fail soon.
func TestServerGone(t *testing.T) {
	ctx := context.Background()
	p, address := newProxy(t, storetest.Postgres(t))
	s, err := store.Open(ctx, address, store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	tenants(t, s, "acme")
	p.cut("begin")
	p.mu.Lock()
	p.target += ".gone"
	p.mu.Unlock()
	wantCode(t, s.Ping(ctx), sandbox.CodeUnavailable)
	_, _, err = create(s, "acme", testSandbox("web"), store.Create{})
	wantCode(t, err, sandbox.CodeUnavailable)
}

// TestServerStopped: the wait for a server that keeps connections but does not
// answer is limited, at each point of a transaction.
func TestServerStopped(t *testing.T) {
	ctx := context.Background()
	p, address := newProxy(t, storetest.Postgres(t))
	s, err := store.OpenPatient(ctx, address, 200*time.Millisecond)
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	tenants(t, s, "acme")
	stopped := func(what string, f func() error) {
		t.Helper()
		p.stall.Lock()
		defer p.stall.Unlock()
		over := make(chan error, 1)
		go func() { over <- f() }()
		select {
		case err := <-over:
			if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: no end", what)
		}
	}
	stopped("a connection or its first statement", func() error { return s.Ping(ctx) })
	for range 3 { // also on existing connections
		stopped("a write", func() error {
			_, _, err := create(s, "acme", testSandbox("web"), store.Create{})
			return err
		})
	}
	stopped("a query", func() error {
		return s.View(ctx, func(tx *store.Tx) error { _, err := tx.Sandboxes().Get(ctx, "acme", "id-web"); return err })
	})
	var ended error
	ok(t, s.View(ctx, func(*store.Tx) error { return nil })) // a connection that is there
	ended = s.Update(ctx, func(tx *store.Tx) error {
		p.stall.Lock()
		_, err := tx.Tenants().Lock(ctx, "acme")
		return err
	})
	p.stall.Unlock()
	wantCode(t, ended, sandbox.CodeUnavailable)
	// All is well again.
	_, _, err = create(s, "acme", testSandbox("web"), store.Create{})
	ok(t, err)
}
