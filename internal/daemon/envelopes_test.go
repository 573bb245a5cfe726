package daemon_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// installed starts a daemon with its own store. Its provider uses an account
// that other installations may share.
func installed(t *testing.T, world *fake.World, account string) *daemon.Daemon {
	t.Helper()
	m := daemontest.New(t)
	return m.Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{{Name: "service", Open: func(h providerset.Host) (driver.Provider, error) {
			return fake.New(fake.Options{World: world, Binding: account, Limited: true, SnapshotDir: h.Snapshots}), nil
		}}}
	})
}

// RB-36: an envelope of one installation leads another one with the same
// account to the same sandbox. One with another account refuses it. Nothing is
// created. RB-36.
func TestEnvelopesLeaveTheInstallation(t *testing.T) {
	t.Parallel()
	world := new(fake.World)
	m := &daemontest.Machine{World: world}
	d := installed(t, world, "account-1") // before there is a sandbox that it would find by itself
	third := daemontest.Client(t, installed(t, world, "account-1"))
	first := daemontest.Client(t, installed(t, world, "account-1"))
	s := openSession(t, first, sandbox.Spec{Env: map[string]string{"TOKEN": "sesame"}}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo kept > /x")
	e, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(e); err != nil || strings.Contains(string(text), "sesame") {
		t.Errorf("the envelope holds a value of the environment: %s, %v", text, err)
	}

	_, err = bearer(t, d, "default", "admin").Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "agent"})
	wantCode(t, err, sandbox.CodeDenied)

	second := daemontest.Client(t, d)
	taken, err := second.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if r := taken.Receipt(); r.Outcome != durable.OutcomeAttached || r.Sandbox != s.Receipt().Sandbox {
		t.Errorf("the receipt: %+v; want the sandbox %s", r, s.Receipt().Sandbox)
	}
	if got := runShell(t, taken, "cat /x; echo more >> /x; echo $TOKEN"); got != "kept\nsesame" {
		t.Errorf("it has %q", got)
	}
	if got := runShell(t, s, "cat /x"); got != "kept\nmore" {
		t.Errorf("the first installation sees %q", got)
	}
	if all := running(t, m); len(all) != 1 {
		t.Errorf("there are %d sandboxes, want one", len(all))
	}
	if saved, err := taken.Save(t.Context()); err != nil || saved.Archive == nil {
		t.Errorf("saved %+v, %v", saved, err)
	}

	other := daemontest.Client(t, installed(t, new(fake.World), "account-2"))
	_, err = other.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "agent"})
	wantCode(t, err, sandbox.CodeUnavailable)
	if all := sandboxes(t, other); len(all) != 0 {
		t.Errorf("with another account there are %+v", all)
	}

	// The sandbox ends. Its archive is the first installation's, and the third
	// cannot pass an empty sandbox off as it.
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e, err = s.Envelope(t.Context()); err != nil || e.Archive == nil {
		t.Fatalf("%+v, %v; want an archive in it", e, err)
	}
	endOutside(t, m, s.Receipt().Sandbox)
	_, err = third.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "agent"})
	wantCode(t, err, sandbox.CodeUnavailable)
	if all := sandboxes(t, third); len(all) != 0 {
		t.Errorf("without the archive there are %+v", all)
	}
	e.Archive = nil
	empty, err := third.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if r := empty.Receipt(); r.Outcome != durable.OutcomeCreated || !slices.Contains(r.Lost, durable.LostWorkspace) || r.Why == "" {
		t.Errorf("the receipt: %+v; want a new sandbox, and that everything is lost", r)
	}
}

// If an upgrade renames the binding of an account, sandboxes stay usable, and
// envelopes from before and after the upgrade lead to them.
func TestFormerBindings(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	open := func(binding string, former ...string) (*atoll.Client, *daemon.Daemon) {
		return with(t, m, providerset.Entry{Name: "service", Open: func(h providerset.Host) (driver.Provider, error) {
			return fake.New(fake.Options{World: m.World, Binding: binding, Former: former, Limited: true, SnapshotDir: h.Snapshots}), nil
		}})
	}
	c, d := open("before")
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo kept > /x")
	old, err := s.Envelope(t.Context())
	if err != nil || !strings.HasSuffix(old.Binding, "/before") {
		t.Fatalf("the binding is %s, %v", old.Binding, err)
	}
	mustClose(t, d)

	c, d = open("after", "long before", "before")
	resumed, err := c.Sessions().Resume(t.Context(), old, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Close()
	if r := resumed.Receipt(); string(r.Sandbox) != old.Sandbox {
		t.Errorf("the receipt is %+v, want that of %s", r, old.Sandbox)
	}
	if got := runShell(t, resumed, "cat /x"); got != "kept" {
		t.Errorf("it has %q", got)
	}
	e, err := resumed.Envelope(t.Context())
	if err != nil || !strings.HasSuffix(e.Binding, "/after") || e.Sandbox != old.Sandbox {
		t.Errorf("the envelope has %s of %s, %v", e.Sandbox, e.Binding, err)
	}
	again, err := c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{})
	if err != nil || again.Receipt().Sandbox != resumed.Receipt().Sandbox {
		t.Fatalf("with the new envelope: %+v, %v", again, err)
	}
	defer again.Close()
	mustClose(t, d)

	// Another account has neither.
	c, _ = open("other")
	if _, err = c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("in another account: %v, want unavailable", err)
	}
	if all := running(t, m); len(all) != 1 {
		t.Errorf("there are %d sandboxes, want one", len(all))
	}
}
