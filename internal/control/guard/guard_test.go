package guard_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// open returns a guard whose records are in a log.
func open(t *testing.T) (*guard.Guard, *eventlog.Log) {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "atoll.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"acme", key.DefaultTenant} {
		_, err = store.Write(t.Context(), db, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Ensure(t.Context(), tenant) })
		if err != nil {
			t.Fatal(err)
		}
	}
	log := eventlog.New(db, eventlog.Options{})
	t.Cleanup(func() {
		if err := errors.Join(log.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return &guard.Guard{Audit: audit.New(log, audit.Options{}), Note: func(_ context.Context, err error) { t.Error(err) }}, log
}

func records(t *testing.T, log *eventlog.Log) (types []eventlog.Type) {
	t.Helper()
	for _, tenant := range []string{"acme", key.DefaultTenant} {
		all, err := log.Read(t.Context(), tenant, eventlog.Filter{}, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			types = append(types, e.Type)
		}
	}
	return types
}

func TestDo(t *testing.T) {
	uid := uint32(0)
	reader := key.Principal{Tenant: "acme", Key: "r", Verbs: []key.Verb{key.Read}}
	writer := key.Principal{Tenant: "acme", Key: "w", Verbs: []key.Verb{key.Write}}
	owner := key.Principal{Tenant: key.DefaultTenant, UID: &uid, Verbs: []key.Verb{key.Admin}}
	acting := key.Peer("acme", uid)
	bearer := key.Bearer("acme", "sb-1")
	for name, tt := range map[string]struct {
		who     *key.Principal
		op      ops.Op
		sandbox sandbox.ID
		owner   bool // what only the owner may do
		want    sandbox.Code
		records int
	}{
		"nobody":                          {nil, ops.SandboxList, "", false, sandbox.CodeUnauthorized, 0},
		"a reader lists":                  {&reader, ops.SandboxList, "", false, "", 0},
		"a reader creates":                {&reader, ops.SandboxCreate, "", false, sandbox.CodeDenied, 1},
		"a writer creates":                {&writer, ops.SandboxCreate, "", false, "", 2},
		"a writer lists":                  {&writer, ops.SandboxList, "", false, sandbox.CodeDenied, 1},
		"a writer makes a key":            {&writer, ops.KeyCreate, "", false, sandbox.CodeDenied, 1},
		"a token inside its sandbox":      {&bearer, ops.FilesWrite, "sb-1", false, "", 2},
		"a token inside another":          {&bearer, ops.FilesWrite, "sb-2", false, sandbox.CodeDenied, 1},
		"a token ends its sandbox":        {&bearer, ops.SandboxDestroy, "sb-1", false, sandbox.CodeDenied, 1},
		"the owner makes a tenant":        {&owner, ops.TenantCreate, "", true, "", 2},
		"an unknown operation by a key":   {&writer, "never.heard", "", false, sandbox.CodeDenied, 1},
		"a key does what is the owner's":  {&writer, ops.TenantList, "", true, sandbox.CodeDenied, 1},
		"the owner looks at the machine":  {&owner, ops.TenantList, "", true, "", 0},
		"the owner, acting in a tenant":   {&acting, ops.TenantList, "", true, sandbox.CodeInvalid, 1},
		"a reader reads in the own token": {&reader, ops.FilesRead, "sb-1", false, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			g, log := open(t)
			ctx := t.Context()
			if tt.who != nil {
				ctx = guard.WithPrincipal(ctx, *tt.who)
			}
			do, calls := g.Do, 0
			if tt.owner {
				do = g.Operate
			}
			err := do(ctx, tt.op, guard.Subject{Sandbox: tt.sandbox, Subject: "it"}, func(context.Context) error { calls++; return nil })
			if sandbox.CodeOf(err) != tt.want {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if allowed := tt.want == ""; (calls == 1) != allowed {
				t.Errorf("it was done %d times, want once: %v", calls, allowed)
			}
			if got := records(t, log); len(got) != tt.records {
				t.Errorf("records %v, want %d", got, tt.records)
			}
		})
	}
}

// The caller records admitted actions; the guard records refusals.
func TestAdmit(t *testing.T) {
	g, log := open(t)
	who := key.Principal{Tenant: "acme", Key: "w", Verbs: []key.Verb{key.Write}}
	ctx := guard.WithPrincipal(t.Context(), who)
	got, action, err := g.Admit(ctx, ops.SandboxCreate, guard.Subject{Name: "box"})
	if err != nil || got.Key != "w" || action.Op != ops.SandboxCreate || action.Name != "box" || action.Tenant != "acme" || len(records(t, log)) != 0 {
		t.Errorf("admitted is %+v for %+v, %v; want key w of acme for box, and no record yet", got, action, err)
	}
	refusal := &sandbox.Error{Code: sandbox.CodeDenied, Message: "not so"}
	_, _, err = g.Admit(ctx, ops.SandboxCreate, guard.Subject{Name: "box"}, func(key.Principal) error { return refusal })
	if !errors.Is(err, refusal) || len(records(t, log)) != 1 {
		t.Errorf("the error is %v with the records %v, want %v and one record", err, records(t, log), refusal)
	}
}

// The meter refuses commands. It is not called for anything else.
func TestMeter(t *testing.T) {
	g, _ := open(t)
	g.Meter = func(context.Context, string) error { return &sandbox.Error{Code: sandbox.CodeExhausted} }
	ctx := guard.WithPrincipal(t.Context(), key.Principal{Tenant: "acme", Verbs: []key.Verb{key.Admin}})
	done := func(context.Context) error { return nil }
	if err := g.Do(ctx, ops.ProcessExec, guard.Subject{}, done); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("the error of a command is %v, want exhausted", err)
	}
	if err := g.Do(ctx, ops.FilesRead, guard.Subject{}, done); err != nil {
		t.Errorf("the error of reading a file is %v, want none", err)
	}
}

// Change records what fn says was made.
func TestChange(t *testing.T) {
	g, log := open(t)
	ctx := guard.WithPrincipal(t.Context(), key.Principal{Tenant: "acme", Verbs: []key.Verb{key.Admin}})
	err := g.Change(ctx, ops.KeyCreate, guard.Subject{Subject: "ci"}, func(context.Context) (string, error) { return "key-1", nil })
	if err != nil {
		t.Fatal(err)
	}
	all, err := log.Read(t.Context(), "acme", eventlog.Filter{}, 0, 10)
	if err != nil || len(all) != 2 || all[1].Subject != "key-1" {
		t.Errorf("the log has %+v, %v; want two records, the second of key-1", all, err)
	}
}
