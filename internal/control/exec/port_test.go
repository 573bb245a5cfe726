package exec_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// running are the sandboxes of a rig. Their output is not redacted.
type running struct{ *sandboxtest.Rig }

func (r running) Use(ctx context.Context, ref string) (u exec.Use, err error) {
	if u.Who, err = guard.Principal(ctx); err != nil {
		return u, err
	}
	if u.Record, err = r.Records.Find(ctx, u.Who.Tenant, ref); err != nil {
		return u, err
	}
	u.Inner, err = r.Records.Attach(ctx, &u.Record)
	u.Sandbox = u.Inner
	return u, err
}

func (running) MainEnded(string, sandbox.ID, string, time.Time, sandbox.Exit) {}

func (running) Redactor(context.Context, *store.Sandbox) (*secret.Redactor, error) { return nil, nil }

// open returns a Service with the sandbox web of acme, which is sb-1, another one, and one
// of the same name of the rival, which is sb-2.
func open(t *testing.T) (*exec.Service, *sandboxtest.Rig) {
	t.Helper()
	r := sandboxtest.Open(t, &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}})
	var mine, theirs store.Sandbox
	mine.ID, mine.Name = "sb-1", "web"
	r.Add(t, mine)
	other := mine
	other.ID, other.Name = "sb-3", "other"
	r.Add(t, other)
	theirs.ID, theirs.Name = "sb-2", "web"
	coretest.Add(t, r.Core, coretest.Rival, theirs)
	return exec.New(r.Core, exec.Config{Sandboxes: running{r}, Redactors: running{r}, Tenants: r.Tenants, Passes: key.NewPasses(key.NewPassKey())}), r
}

// Which tokens for ports can be made, and for how long they are valid.
func TestSharePorts(t *testing.T) {
	s, _ := open(t)
	for _, tt := range []struct {
		name  string
		verbs key.Verb
		ports []uint16
		life  time.Duration
		ends  time.Duration
		code  sandbox.Code
	}{
		{name: "a day, if nothing else is said", verbs: key.Exec, ends: 24 * time.Hour},
		{name: "an hour", verbs: key.Exec, ports: []uint16{80}, life: time.Hour, ends: time.Hour},
		{name: "two years", verbs: key.Exec, life: 2 * 365 * 24 * time.Hour, code: sandbox.CodeInvalid},
		{name: "in the past", verbs: key.Exec, life: -time.Hour, code: sandbox.CodeInvalid},
		{name: "too many ports", verbs: key.Exec, ports: make([]uint16, 65), code: sandbox.CodeInvalid},
		{name: "without the right", verbs: key.Read, code: sandbox.CodeDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			token, ends, err := s.SharePorts(coretest.As(t, coretest.Acme, tt.verbs), "web", tt.ports, tt.life)
			coretest.WantCode(t, err, tt.code)
			if (token != "") != (tt.code == "") {
				t.Errorf("the token is %q, want one: %v", token, tt.code == "")
			}
			if tt.code == "" && !ends.Equal(coretest.Now.Add(tt.ends)) {
				t.Errorf("it is valid until %v, want %v from now", ends, tt.ends)
			}
		})
	}
}

// A token opens the ports that it names, of the sandbox that it was made for, as long
// as its maker may. All else is refused in the same way.
func TestEnterPort(t *testing.T) {
	s, r := open(t)
	made, err := r.Tenants.CreateKey(coretest.As(t, coretest.Acme, key.Admin), operator.NewKey{Name: "ci", Verbs: []string{"exec"}})
	coretest.OK(t, err)
	as := guard.WithPrincipal(t.Context(), key.Principal{Tenant: coretest.Acme, Key: made.ID, Verbs: []key.Verb{key.Exec}})
	one, _, err := s.SharePorts(as, "web", []uint16{80}, time.Hour)
	coretest.OK(t, err)
	all, _, err := s.SharePorts(as, "web", nil, time.Hour)
	coretest.OK(t, err)
	for _, tt := range []struct {
		name, token, ref string
		port             uint16
		code             sandbox.Code
	}{
		{"its port", one, "web", 80, ""},
		{"its port, by the id", one, "sb-1", 80, ""},
		{"another port", one, "web", 81, sandbox.CodeUnauthorized},
		{"any port", all, "web", 81, ""},
		{"another sandbox", all, "other", 81, sandbox.CodeUnauthorized},
		{"a sandbox of another tenant", all, "sb-2", 81, sandbox.CodeUnauthorized},
		{"no sandbox", all, "none", 81, sandbox.CodeUnauthorized},
		{"no name", all, "../web", 81, sandbox.CodeUnauthorized},
		{"no token", "atoll", "web", 80, sandbox.CodeUnauthorized},
		{"a changed token", one[:len(one)-2] + "xx", "web", 80, sandbox.CodeUnauthorized},
	} {
		ctx, id, err := s.EnterPort(t.Context(), tt.token, tt.ref, tt.port)
		if sandbox.CodeOf(err) != tt.code || (err == nil) != (tt.code == "") {
			t.Errorf("%s: the error is %v, want the code %q", tt.name, err, tt.code)
			continue
		}
		if err != nil {
			continue
		}
		who, err := guard.Principal(ctx)
		if err != nil || id != "sb-1" || who.Tenant != coretest.Acme {
			t.Errorf("%s: it opens %s for %+v, %v; want sb-1 of acme", tt.name, id, who, err)
		}
	}
	coretest.OK(t, r.Tenants.RevokeKey(coretest.As(t, coretest.Acme, key.Admin), made.ID))
	_, _, err = s.EnterPort(t.Context(), all, "web", 80)
	coretest.WantCode(t, err, sandbox.CodeUnauthorized)
}
