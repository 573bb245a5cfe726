package events_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/events"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open returns the service over logs of two tenants, and the context of the owner
// of the machine. The log of acme holds ten events.
func open(t *testing.T, otlp events.WriteOTLP) (*events.Service, context.Context) {
	t.Helper()
	db := storetest.SQLite(t, store.Options{})
	ok(t, db.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Tenants().Ensure(t.Context(), "acme")
		if err == nil {
			_, err = tx.Tenants().Ensure(t.Context(), key.DefaultTenant)
		}
		return err
	}))
	log := eventlog.New(db, eventlog.Options{CutKey: []byte("key")})
	t.Cleanup(func() { ok(t, log.Close()) })
	recorder := audit.New(log, audit.Options{Node: "local"})
	c := core.New(core.Config{Store: db, Audit: recorder})
	t.Cleanup(func() { ok(t, c.Close()) })
	for range 10 {
		ok(t, recorder.Fact(t.Context(), audit.Action{Tenant: "acme", Op: ops.ProcessExec, Actor: eventlog.Actor{Key: "k"}}, eventlog.ExecEnded, func(e *eventlog.Event) {
			exit := 3
			e.Duration, e.Exit = 1500*time.Millisecond, &exit
		}))
	}
	return events.New(c, log, otlp), guard.WithPrincipal(t.Context(), key.Peer(key.DefaultTenant, 0))
}

func tenant(t *testing.T, name string, verbs ...key.Verb) context.Context {
	return guard.WithPrincipal(t.Context(), key.Principal{Tenant: name, Key: "k", Verbs: verbs})
}

func TestRead(t *testing.T) {
	s, owner := open(t, nil)
	acme := tenant(t, "acme", key.Read)
	page, err := s.Events(acme, sandbox.EventQuery{After: 2, Page: 3, Types: []string{"exec.ended"}})
	ok(t, err)
	if len(page) != 3 || page[0].Seq != 3 {
		t.Fatalf("Events() = %+v, want three from number 3", page)
	}
	if e := page[0]; e.Key != "k" || e.Node != "local" || e.Op != "process.exec" || e.Duration != 1500*time.Millisecond || e.Exit == nil || *e.Exit != 3 {
		t.Errorf("event %+v is not the one that was recorded", e)
	}
	if mine, err := s.Events(owner, sandbox.EventQuery{}); err != nil || len(mine) != 0 {
		t.Errorf("another tenant reads %+v, %v, want nothing", mine, err)
	}
	for what, q := range map[string]sandbox.EventQuery{
		"unknown type": {Types: []string{"nothing"}},
		"times":        {Since: time.Unix(2, 0), Until: time.Unix(1, 0)},
		"beyond":       {After: 1 << 40},
	} {
		if _, err := s.Events(acme, q); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: error %v, want %s", what, err, sandbox.CodeInvalid)
		}
	}
	if _, err := s.Events(tenant(t, "acme", key.Exec), sandbox.EventQuery{}); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("a key without read: error %v, want %s", err, sandbox.CodeDenied)
	}
	ctx, cancel := context.WithCancel(acme)
	defer cancel()
	following, err := s.FollowEvents(ctx, sandbox.EventQuery{After: 7, Types: []string{"exec.ended"}})
	ok(t, err)
	var seen []int64
	for e, err := range following {
		ok(t, err)
		if seen = append(seen, e.Seq); e.Seq == 10 {
			cancel()
		}
	}
	if len(seen) != 3 || seen[0] != 8 {
		t.Errorf("FollowEvents() yields %v, want 8, 9 and 10", seen)
	}
}

func TestExport(t *testing.T) {
	var otlp int
	s, _ := open(t, func(_ io.Writer, page []eventlog.Record) error {
		otlp += len(page)
		return nil
	})
	acme := tenant(t, "acme", key.Read)
	var out bytes.Buffer
	ok(t, s.ExportEvents(acme, sandbox.EventQuery{Types: []string{"exec.ended"}}, &out))
	if n := strings.Count(out.String(), `{"hash":"`); n != 10 {
		t.Errorf("%d lines with a hash, want 10:\n%s", n, out.String())
	}
	ok(t, s.ExportOTLP(acme, sandbox.EventQuery{Types: []string{"exec.ended"}}, io.Discard))
	if otlp != 10 {
		t.Errorf("%d events as OTLP, want 10", otlp)
	}
	without, _ := open(t, nil)
	if err := without.ExportOTLP(acme, sandbox.EventQuery{}, io.Discard); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("ExportOTLP() without a writer: %v, want %s", err, sandbox.CodeUnsupported)
	}
	broken := errors.New("disk full")
	s, _ = open(t, func(io.Writer, []eventlog.Record) error { return broken })
	if err := s.ExportOTLP(acme, sandbox.EventQuery{}, io.Discard); !errors.Is(err, broken) {
		t.Errorf("ExportOTLP() = %v, want the error of the writer", err)
	}
}

func TestPrune(t *testing.T) {
	s, owner := open(t, nil)
	admin := tenant(t, "acme", key.Admin)
	if _, err := s.PruneAudit(admin, operator.AuditPrune{UpTo: 4}); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("a tenant prunes its log: %v, want %s", err, sandbox.CodeDenied)
	}
	if _, err := s.PruneAudit(owner, operator.AuditPrune{Tenant: "acme"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("nothing selected: %v, want %s", err, sandbox.CodeInvalid)
	}
	if _, err := s.PruneAudit(owner, operator.AuditPrune{Tenant: "nobody", UpTo: 1}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("no such tenant: %v, want %s", err, sandbox.CodeNotFound)
	}
	done, err := s.PruneAudit(owner, operator.AuditPrune{Tenant: "acme", UpTo: 4})
	ok(t, err)
	if done.Removed != 4 || done.Through != 4 {
		t.Errorf("PruneAudit() = %+v, want 4 removed", done)
	}
	report, err := s.VerifyAudit(admin)
	ok(t, err)
	if !report.Sound || report.Pruned != 4 || report.PrunedAt.IsZero() {
		t.Errorf("VerifyAudit() = %+v, want a sound log without its first 4 records", report)
	}
}
