package daemon_test

import (
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Only the owner of the machine can prune. Pruning is recorded, and the log is
// valid afterwards, until events are removed from the database.
func TestPruneAudit(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	for range 3 {
		s := create(t, c, sandbox.Spec{Name: "one"})
		if err := s.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil { // the head is kept
		t.Fatal(err)
	}
	d = m.Start(t, nil)
	c = daemontest.Client(t, d)
	for _, tenant := range []string{"", "default"} {
		_, err := bearer(t, d, "acme", "admin").Admin().PruneAudit(t.Context(), operator.AuditPrune{Tenant: tenant, UpTo: 1})
		wantCode(t, err, sandbox.CodeDenied)
	}
	_, err := c.Admin().PruneAudit(t.Context(), operator.AuditPrune{})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = c.Admin().PruneAudit(t.Context(), operator.AuditPrune{Tenant: "nobody", UpTo: 1})
	wantCode(t, err, sandbox.CodeNotFound)
	done, err := c.Admin().PruneAudit(t.Context(), operator.AuditPrune{UpTo: 4})
	if err != nil || done != (operator.AuditPruned{Removed: 4, Through: 4}) {
		t.Fatalf("%+v %v", done, err)
	}
	report, err := c.Admin().VerifyAudit(t.Context())
	if err != nil || !report.Sound || report.Pruned != 4 || report.PrunedAt.IsZero() {
		t.Errorf("%+v %v", report, err)
	}
	told := 0
	for e, err := range c.Events(t.Context(), sandbox.EventQuery{Types: []string{"audit.pruned"}}) {
		if err != nil || e.Subject != "1-4" || e.UID == nil || e.Request == "" {
			t.Errorf("%+v %v", e, err)
		}
		told++
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	if _, err := openSQL(t, m.Dir+"/atoll.db").Exec("DROP TRIGGER events_append_only_delete; DELETE FROM events WHERE tenant = 'default' AND seq <= 6"); err != nil {
		t.Fatal(err)
	}
	if report, err = c.Admin().VerifyAudit(t.Context()); err != nil || report.Sound || report.FaultSeq != 5 {
		t.Errorf("nobody notices: %+v %v", report, err)
	}
	_, err = c.Admin().PruneAudit(t.Context(), operator.AuditPrune{UpTo: 100})
	wantCode(t, err, sandbox.CodeConflict)
}

// With a retention, a daemon prunes old events when it starts.
func TestRetention(t *testing.T) {
	m := daemontest.New(t)
	first := m.Start(t, nil)
	create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one"})
	create(t, daemontest.Client(t, first), sandbox.Spec{Name: "two"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) { o.AuditKeep = time.Nanosecond }))
	for e, err := range c.FollowEvents(t.Context(), sandbox.EventQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "audit.pruned" {
			if e.Subject != "1-3" || e.UID != nil || e.Key != "" {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	if report, err := c.Admin().VerifyAudit(t.Context()); err != nil || !report.Sound || report.Pruned != 3 {
		t.Errorf("%+v %v", report, err)
	}
}
