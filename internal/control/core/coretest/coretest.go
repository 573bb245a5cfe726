// Package coretest helps to test single control services: it opens a core on an
// empty store, and makes the contexts of requests.
package coretest

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// Node is the daemon of the core, and Acme and Rival are tenants that exist.
const (
	Node  = "here"
	Acme  = "acme"
	Rival = "rival"
)

// Now returns the time of the store's clock.
var Now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Open returns a core on an empty store whose clock stands still. It is closed
// with the test.
func Open(t testing.TB) *core.Core {
	t.Helper()
	return OpenWith(t, func() time.Time { return Now })
}

// OpenWith is Open with a clock, which must be safe for concurrent use.
func OpenWith(t testing.TB, now func() time.Time) *core.Core {
	t.Helper()
	db := storetest.SQLite(t, store.Options{Now: now})
	for _, tenant := range []string{key.DefaultTenant, Acme, Rival} {
		_, err := store.Write(t.Context(), db, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Ensure(t.Context(), tenant) })
		OK(t, err)
	}
	log := eventlog.New(db, eventlog.Options{})
	t.Cleanup(func() { OK(t, log.Close()) })
	c := core.New(core.Config{Store: db, Audit: audit.New(log, audit.Options{}), Node: Node, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	t.Cleanup(func() { OK(t, c.Close()) })
	return c
}

// As returns the context of a request with a key of a tenant that has some
// rights.
func As(t testing.TB, tenant string, verbs ...key.Verb) context.Context {
	return guard.WithPrincipal(t.Context(), key.Principal{Tenant: tenant, Key: "key-" + tenant, Verbs: verbs})
}

// Owner returns the context of a request of the owner of the machine.
func Owner(t testing.TB) context.Context {
	return guard.WithPrincipal(t.Context(), key.Peer(key.DefaultTenant, 0))
}

// Add records a sandbox of a tenant. It runs on Node unless it says otherwise.
func Add(t testing.TB, c *core.Core, tenant string, b store.Sandbox) store.Sandbox {
	t.Helper()
	if b.Name == "" {
		b.Name = string(b.ID)
	}
	if b.Node == "" {
		b.Node = Node
	}
	if b.State == "" {
		b.State = sandbox.Running
	}
	b, err := store.Write(t.Context(), c.Store, func(tx *store.Tx) (store.Sandbox, error) {
		b, _, err := tx.Sandboxes().Create(t.Context(), tenant, b, store.Create{})
		return b, err
	})
	OK(t, err)
	return b
}

// OK ends a test because of an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// WantCode fails a test unless an error has a code. Empty: no error.
func WantCode(t testing.TB, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want || (err == nil) != (want == "") {
		t.Errorf("the error is %v with the code %q, want the code %q", err, got, want)
	}
}
