package daemon_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// When a tenant has used up its warm time, sandboxes without turns are
// released, and no new ones are created. Turns in progress keep their
// sandboxes. The gate opens when the quota is raised. RB-59.
func TestGateClosesAtTheQuota(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t).Start(t, shortGrace)
	c := daemontest.Client(t, d)
	quota := func(hours float64) {
		t.Helper()
		change := operator.TenantChange{Limits: &operator.LimitsChange{WarmHours: &hours}}
		if _, err := c.Admin().UpdateTenant(t.Context(), "default", change); err != nil {
			t.Fatal(err)
		}
	}
	acquire := func(session, kind, id string) int {
		t.Helper()
		body := `{"kind":"` + kind + `","holder":"` + id + `"}`
		return statusWith(t, d, "", http.MethodPost, "/v1/sessions/"+session+"/acquire", body)
	}
	turn := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "turn", Turn: true})
	idle := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "idle"})
	if got := acquire("turn", "viewer", "v"); got != http.StatusOK {
		t.Fatalf("a viewer before the limit: status %d", got)
	}
	runShell(t, idle, "echo kept > /note")
	quota(1e-7)             // less than a millisecond
	untilCold(t, c, "idle") // although it has a holder

	_, err := idle.Acquire(t.Context())
	wantCode(t, err, sandbox.CodeExhausted)
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || !strings.Contains(e.Hint, "larger quota") || !strings.Contains(e.Message, "warmHours") {
		t.Errorf("the refusal does not say what to do: %#v", err)
	}
	_, err = c.Sessions().Create(t.Context(), sandbox.Spec{}, atoll.SessionOptions{Name: "new", Turn: true})
	wantCode(t, err, sandbox.CodeExhausted)
	if used, err := c.Admin().Tenant(t.Context()); err != nil || used.Usage.WarmHours < used.Limits.WarmHours {
		t.Errorf("the tenant: %+v, %v", used, err)
	}

	for holder, want := range map[string]int{"turn": http.StatusTooManyRequests, "viewer": http.StatusTooManyRequests, "operator": http.StatusOK} {
		if got := acquire("turn", holder, "another-"+holder); got != want {
			t.Errorf("another %s beside the turn: status %d, want %d", holder, got, want)
		}
	}
	runShell(t, turn, "true")
	if r, err := turn.Acquire(t.Context()); err != nil || r.Epoch != 1 {
		t.Errorf("the turn does not go on: %+v, %v", r, err)
	}
	if err := turn.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilCold(t, c, "turn") // although an operator is there

	quota(0)
	if _, err := idle.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := runShell(t, idle, "cat /note"); got != "kept" {
		t.Errorf("it has %q", got)
	}
	if got := acquire("idle", "viewer", "v"); got != http.StatusOK {
		t.Errorf("a viewer after the limit: status %d", got)
	}
}

// An orphan of an attempt that is over is ended, and counted. RB-56.
func TestOrphansAreCounted(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	orphan, err := c.Create(t.Context(), sandbox.Spec{}, atoll.CreateOptions{IdempotencyKey: "crew.1"}) // as the first attempt names it
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Sessions().Create(t.Context(), sandbox.Spec{}, atoll.SessionOptions{Name: "first", Group: "crew"})
	if err == nil {
		t.Fatal("the first attempt made a sandbox under a key that is taken")
	}
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "second", Group: "crew"})
	if all := sandboxes(t, c); len(all) != 1 || all[0].ID != s.Receipt().Sandbox || all[0].ID == orphan.ID() {
		t.Errorf("sandboxes: %+v", all)
	}
	if _, text := fetch(t, d, "/metrics", "", ""); !strings.Contains(text, "\natoll_lease_orphans_ended_total 1\n") {
		t.Error("the metrics do not count it")
	}
}
