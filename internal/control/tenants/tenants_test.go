package tenants_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/tenants"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// open returns the service on an empty store, and the context of the owner of the
// machine.
func open(t *testing.T, opts store.Options) (*tenants.Service, context.Context) {
	t.Helper()
	s, _, owner := openWithLog(t, opts)
	return s, owner
}

// openWithLog is open, with the log that the audit goes to.
func openWithLog(t *testing.T, opts store.Options) (*tenants.Service, *eventlog.Log, context.Context) {
	t.Helper()
	db := storetest.SQLite(t, opts)
	_, err := store.Write(t.Context(), db, func(tx *store.Tx) (store.Tenant, error) {
		return tx.Tenants().Ensure(t.Context(), key.DefaultTenant)
	})
	ok(t, err)
	log := eventlog.New(db, eventlog.Options{})
	t.Cleanup(func() { ok(t, log.Close()) })
	c := core.New(core.Config{Store: db, Audit: audit.New(log, audit.Options{})})
	t.Cleanup(func() { ok(t, c.Close()) })
	return tenants.New(c), log, guard.WithPrincipal(t.Context(), key.Peer(key.DefaultTenant, 0))
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); err == nil || got != want {
		t.Errorf("error %v has code %q, want %q", err, got, want)
	}
}

// login returns a key of a tenant, and the context of a request that bears it.
func login(t *testing.T, s *tenants.Service, owner context.Context, n operator.NewKey) (operator.Key, context.Context) {
	t.Helper()
	k, err := s.CreateKey(owner, n)
	ok(t, err)
	who, err := s.Authenticate(t.Context(), k.Token)
	ok(t, err)
	return k, s.As(t.Context(), who)
}

func TestKeys(t *testing.T) {
	s, owner := open(t, store.Options{})
	k, admin := login(t, s, owner, operator.NewKey{Name: "ci", Tenant: "acme", Verbs: []string{"admin"}})
	_, reader := login(t, s, owner, operator.NewKey{Tenant: "acme", Verbs: []string{"read"}})
	_, rival := login(t, s, owner, operator.NewKey{Tenant: "rival", Verbs: []string{"admin"}})

	all, err := s.Keys(admin)
	ok(t, err)
	if len(all) != 2 || all[0].ID != k.ID || all[0].Name != "ci" || all[0].Token != "" {
		t.Errorf("Keys() = %+v, want two, the first %s without its token", all, k.ID)
	}
	_, err = s.Keys(reader)
	wantCode(t, err, sandbox.CodeDenied)
	_, err = s.CreateKey(admin, operator.NewKey{Tenant: "rival", Verbs: []string{"read"}})
	wantCode(t, err, sandbox.CodeDenied)
	_, err = s.CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read"}})
	wantCode(t, err, sandbox.CodeUnauthorized)
	wantCode(t, s.RevokeKey(rival, k.ID), sandbox.CodeNotFound)
	if err := context.Cause(admin); err != nil {
		t.Errorf("a failed attempt to revoke the key ended a request: %v", err)
	}
}

// A request ends when its credential does, and no other request ends with it.
func TestRequestsEnd(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s, owner := open(t, store.Options{Now: func() time.Time { return now }})
	revoked, one := login(t, s, owner, operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
	_, two := login(t, s, owner, operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
	_, other := login(t, s, owner, operator.NewKey{Tenant: "rival", Verbs: []string{"admin"}})
	inside := s.KeepAlive(t.Context(), key.Bearer("acme", "id"), "acme", "")

	wantEnded := func(what string, want map[string]bool) {
		t.Helper()
		for name, ctx := range map[string]context.Context{"one": one, "two": two, "inside": inside, "other": other} {
			if ended := ctx.Err() != nil; ended != want[name] {
				t.Errorf("%s: request %q ended: %t, want %t", what, name, ended, want[name])
			} else if ended && sandbox.CodeOf(context.Cause(ctx)) != sandbox.CodeUnauthorized {
				t.Errorf("%s: request %q ended with %v, want %s", what, name, context.Cause(ctx), sandbox.CodeUnauthorized)
			}
		}
	}
	ok(t, s.RevokeKey(two, revoked.ID))
	wantEnded("one key was revoked", map[string]bool{"one": true})
	off := true
	changed, err := s.UpdateTenant(owner, "acme", operator.TenantChange{Disabled: &off})
	ok(t, err)
	if changed.Disabled.IsZero() {
		t.Error("the tenant is not disabled")
	}
	wantEnded("the tenant was disabled", map[string]bool{"one": true, "two": true, "inside": true})
}

func TestTenants(t *testing.T) {
	s, owner := open(t, store.Options{})
	want := operator.Limits{Sandboxes: 3, ExecRate: 1, ExecBurst: 2}
	made, err := s.CreateTenant(owner, operator.NewTenant{ID: "acme", Limits: want})
	ok(t, err)
	if made.ID != "acme" || made.Limits != want {
		t.Errorf("CreateTenant() = %+v, want acme with %+v", made, want)
	}
	_, err = s.CreateTenant(owner, operator.NewTenant{ID: "acme"})
	wantCode(t, err, sandbox.CodeAlreadyExists)
	_, admin := login(t, s, owner, operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
	if own, err := s.OwnTenant(admin); err != nil || own.Limits != want {
		t.Errorf("OwnTenant() = %+v, %v, want %+v", own, err, want)
	}
	for what, call := range map[string]func() error{
		"list":   func() error { _, err := s.Tenants(admin); return err },
		"get":    func() error { _, err := s.Tenant(admin, "acme"); return err },
		"create": func() error { _, err := s.CreateTenant(admin, operator.NewTenant{ID: "mine"}); return err },
		"update": func() error {
			_, err := s.UpdateTenant(admin, "acme", operator.TenantChange{Limits: &operator.LimitsChange{Sandboxes: new(int64(9))}})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) { wantCode(t, call(), sandbox.CodeDenied) })
	}
	all, err := s.Tenants(owner)
	ok(t, err)
	if len(all) != 2 || all[0].ID != "acme" || all[1].ID != key.DefaultTenant {
		t.Errorf("Tenants() = %+v, want acme and %s", all, key.DefaultTenant)
	}
}

func TestMeterExec(t *testing.T) {
	s, owner := open(t, store.Options{Now: func() time.Time { return time.Unix(1_800_000_000, 0) }})
	_, err := s.CreateTenant(owner, operator.NewTenant{ID: "acme", Limits: operator.Limits{ExecRate: 1, ExecBurst: 2}})
	ok(t, err)
	ok(t, s.MeterExec(t.Context(), "acme"))
	ok(t, s.MeterExec(t.Context(), "acme"))
	err = s.MeterExec(t.Context(), "acme")
	wantCode(t, err, sandbox.CodeExhausted)
	if after, known := quota.RetryAfter(err); !known || after != time.Second {
		t.Errorf("try again after %v (%t), want 1s", after, known)
	}
	ok(t, s.MeterExec(s.WithLimits(t.Context(), operator.Limits{}), "acme"))
	ok(t, s.MeterExec(t.Context(), key.DefaultTenant))
}

// The key of --key-file is valid while the flag names it; each change is audited.
func TestImportKey(t *testing.T) {
	s, log, owner := openWithLog(t, store.Options{})
	other, foreign := open(t, store.Options{})
	var tokens [2]string
	var ids [2]string
	for i := range tokens {
		k, err := other.CreateKey(foreign, operator.NewKey{Verbs: []string{"read"}})
		ok(t, err)
		tokens[i], ids[i] = k.Token, k.ID
	}
	var seen int64
	for _, step := range []struct {
		token  string
		valid  [2]bool
		record string // of the step, "" for none
	}{
		{"", [2]bool{}, ""},
		{tokens[0], [2]bool{true, false}, "key.create " + ids[0]},
		{tokens[0], [2]bool{true, false}, ""}, // at every start
		{tokens[1], [2]bool{false, true}, "key.revoke " + ids[0] + " key.create " + ids[1]},
		{"", [2]bool{}, "key.revoke " + ids[1]},
		{tokens[1], [2]bool{false, true}, "key.create " + ids[1]}, // the flag is back
	} {
		ok(t, s.ImportKey(owner, step.token))
		for i, token := range tokens {
			if _, err := s.Authenticate(t.Context(), token); (err == nil) != step.valid[i] {
				t.Errorf("key %d after the import of %q: %v, want valid %v", i, step.token, err, step.valid[i])
			}
		}
		events, err := log.Read(t.Context(), key.DefaultTenant, eventlog.Filter{Types: []eventlog.Type{eventlog.KeyCreated, eventlog.KeyRevoked}}, seen, 100)
		ok(t, err)
		var got []string
		for i := range events {
			got, seen = append(got, events[i].Op, events[i].Subject), events[i].Seq
		}
		if strings.Join(got, " ") != step.record {
			t.Errorf("audit of the import of %q: %q, want %q", step.token, got, step.record)
		}
	}
	ok(t, s.RevokeKey(owner, ids[1]))
	wantCode(t, s.ImportKey(owner, tokens[1]), sandbox.CodeInvalid)
	_, err := s.CreateKey(owner, operator.NewKey{Name: "of --key-file", Verbs: []string{"read"}})
	wantCode(t, err, sandbox.CodeInvalid)
}
