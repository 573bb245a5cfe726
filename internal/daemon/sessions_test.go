package daemon_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// openSession makes a session and its sandbox.
func openSession(t *testing.T, c *atoll.Client, spec sandbox.Spec, opts atoll.SessionOptions) *atoll.Session {
	t.Helper()
	s, err := c.Sessions().Create(t.Context(), spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// runShell runs a script and returns its output.
func runShell(t *testing.T, s *atoll.Session, script string) string {
	t.Helper()
	res, err := s.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
	if err != nil || res.Exit.Code != 0 {
		t.Fatalf("%s: %+v, %v", script, res, err)
	}
	return strings.TrimSpace(string(res.Stdout))
}

func shortGrace(o *daemon.Options) { o.SessionGrace = time.Millisecond }

// untilCold waits until the session has no sandbox.
func untilCold(t *testing.T, c *atoll.Client, name string) durable.Session {
	t.Helper()
	return untilLease(t, c, name, "cold")
}

func untilLease(t *testing.T, c *atoll.Client, name, state string) durable.Session {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := c.Sessions().Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Info().Lease.State == state {
			return s.Info()
		}
		if time.Now().After(deadline) {
			t.Fatalf("the lease is %+v, want %s", s.Info().Lease, state)
		}
	}
}

// sandboxes returns those that are not gone.
func sandboxes(t *testing.T, c *atoll.Client) (all []sandbox.Sandbox) {
	t.Helper()
	for s, err := range c.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// logged returns the records of some types.
func logged(t *testing.T, c *atoll.Client, types ...string) (all []sandbox.Event, err error) {
	t.Helper()
	for e, err := range c.Events(t.Context(), sandbox.EventQuery{Types: types}) {
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// endOutside ends a sandbox past the daemon, as a provider does that lost it.
func endOutside(t *testing.T, m *daemontest.Machine, id sandbox.ID) {
	t.Helper()
	p := m.Provider()
	defer p.Close()
	b, err := p.Attach(t.Context(), id)
	if err == nil {
		err = b.Destroy(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A session without holders is saved, then its sandbox ends. The next use has
// the files and the environment again. RB-56.
func TestDrainedSessionsAreRebuilt(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	d := m.Start(t, shortGrace)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{Env: map[string]string{"TOKEN": "sesame"}}, atoll.SessionOptions{Name: "agent", Labels: map[string]string{"team": "a"}})
	if r := s.Receipt(); r.Outcome != durable.OutcomeCreated || r.Epoch != 1 || len(r.Lost) != 0 {
		t.Errorf("the receipt: %+v", r)
	}
	runShell(t, s, "echo kept > /note")
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilCold(t, c, "agent")
	if all := sandboxes(t, c); len(all) != 0 {
		t.Errorf("sandboxes are left: %+v", all)
	}
	r, err := s.Acquire(t.Context())
	if err != nil || r.Outcome != durable.OutcomeRebuilt || r.Epoch != 2 || r.From.Archive == nil || !slices.Contains(r.Lost, durable.LostProcesses) {
		t.Fatalf("the receipt: %+v, %v", r, err)
	}
	if got := runShell(t, s, "cat /note; echo $TOKEN"); got != "kept\nsesame" {
		t.Errorf("it has %q", got)
	}
	if all := sandboxes(t, c); len(all) != 1 || all[0].Labels["team"] != "a" {
		t.Errorf("the sandbox has not the labels of the session: %+v", all)
	}
	snapshots := 0
	for _, err := range c.Snapshots(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		snapshots++
	}
	if pruned, err := c.PruneSnapshots(t.Context(), nil); err != nil || len(pruned) != 0 || snapshots != 1 {
		t.Errorf("%d snapshots; pruning took %v, %v: want the archive kept", snapshots, pruned, err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := sandboxes(t, c); len(all) != 0 {
		t.Errorf("removing the session left %+v", all)
	}
	for snap := range c.Snapshots(t.Context(), nil) {
		t.Errorf("removing the session left the snapshot %s", snap.ID)
	}
}

// Only proof that a sandbox is gone licenses another: one that cannot be reached
// is neither replaced nor forgotten. RB-51.
func TestOnlyGoneIsReplaced(t *testing.T) {
	m := daemontest.New(t)
	var broken atomic.Bool
	m.Fault = func(op string) error {
		if broken.Load() && op == "attach" {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "getaddrinfo ENOTFOUND: sandbox not found"}
		}
		return nil
	}
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := s.Receipt().Sandbox
	broken.Store(true)
	_, err := c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	broken.Store(false)
	if all := sandboxes(t, c); len(all) != 1 || all[0].ID != first {
		t.Fatalf("a sandbox that cannot be reached was replaced: %+v", all)
	}

	endOutside(t, m, first)
	r, err := s.Acquire(t.Context())
	if err != nil || r.Outcome != durable.OutcomeRebuilt || r.Sandbox == first || r.Epoch != 2 || r.Why == "" || !slices.Contains(r.Lost, durable.LostChanges) {
		t.Fatalf("after it was gone: %+v, %v; want rebuilt, and why", r, err)
	}
}

// A handle that was acquired under an earlier epoch has no effect. RB-48.
func TestStaleEpochHasNoEffect(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	old := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, old, "echo 1 > /x")
	endOutside(t, m, old.Receipt().Sandbox)
	other, err := c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if r := other.Receipt(); r.Epoch != 2 || !slices.Contains(r.Lost, durable.LostWorkspace) {
		t.Errorf("an empty sandbox in place of the old one: %+v; want everything lost", r)
	}
	_, err = old.Run(t.Context(), sandbox.Command{Shell: "echo stale > /y"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeStale)
	_, err = old.Exec(t.Context(), sandbox.Command{Shell: "echo stale > /y"})
	wantCode(t, err, sandbox.CodeStale)
	_, err = old.Files().Write(t.Context(), "/y", strings.NewReader("stale"), atoll.WriteOptions{})
	wantCode(t, err, sandbox.CodeStale)
	_, err = old.Save(t.Context())
	wantCode(t, err, sandbox.CodeStale)
	if _, err := other.Files().Stat(t.Context(), "/y"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a stale request had an effect: %v", err)
	}
	events, err := logged(t, c, "fence.refused")
	if err != nil || len(events) != 4 || events[0].Epoch != 1 || events[0].Subject != "agent" {
		t.Errorf("the log has %+v, %v; want four refusals", events, err)
	}
	if r, err := old.Acquire(t.Context()); err != nil || r.Outcome != durable.OutcomeAttached || r.Epoch != 2 {
		t.Errorf("acquired again: %+v, %v", r, err)
	}
	runShell(t, old, "echo now > /y")
}

// Many callers that acquire a new session at once share one sandbox. RB-53.
func TestOneSandboxForManyCallers(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	const callers = 50
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen, outcomes := map[sandbox.ID]int{}, map[durable.Outcome]int{}
	for range callers {
		wg.Go(func() {
			s, err := c.Sessions().Create(t.Context(), sandbox.Spec{}, atoll.SessionOptions{Name: "agent", AttachIfExists: true})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[s.Receipt().Sandbox]++
			outcomes[s.Receipt().Outcome]++
			t.Cleanup(func() { _ = s.Close() })
		})
	}
	wg.Wait()
	if len(seen) != 1 || outcomes[durable.OutcomeCreated] != 1 || outcomes[durable.OutcomeAttached] != callers-1 {
		t.Errorf("sandboxes %v, outcomes %v; want one, created once", seen, outcomes)
	}
	s, err := c.Sessions().Get(t.Context(), "agent")
	if err != nil || len(s.Info().Lease.Holders) != callers {
		t.Errorf("%d holders, %v; want %d", len(s.Info().Lease.Holders), err, callers)
	}
	if all := sandboxes(t, c); len(all) != 1 {
		t.Errorf("%d sandboxes, want 1", len(all))
	}
}

// Sessions of a group share a sandbox. It is removed with the last of them.
func TestGroupsShareASandbox(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	one := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "one", Group: "team"})
	two := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "two", Group: "team"})
	runShell(t, one, "echo shared > /x")
	if got := runShell(t, two, "cat /x"); got != "shared" {
		t.Errorf("the other sees %q", got)
	}
	if err := one.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := runShell(t, two, "cat /x"); got != "shared" {
		t.Errorf("after the first was removed the other sees %q", got)
	}
	if err := two.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := sandboxes(t, c); len(all) != 0 {
		t.Errorf("left: %+v", all)
	}
	// The name of the group is free again, and a new group does not get the old files.
	if r := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "three", Group: "team"}).Receipt(); r.Outcome != durable.OutcomeCreated {
		t.Errorf("a new group of that name: %+v", r)
	}
}

// Sandboxes survive the end of a daemon, and the next one continues.
func TestSessionsOutliveDaemons(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	s := openSession(t, daemontest.Client(t, d), sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo here > /x")
	first := s.Receipt().Sandbox
	mustClose(t, d)

	c := daemontest.Client(t, m.Start(t, nil))
	again, err := c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if r := again.Receipt(); r.Outcome != durable.OutcomeAttached || r.Sandbox != first || r.Epoch != 1 {
		t.Errorf("%+v, want attached to %s", r, first)
	}
	if got := runShell(t, again, "cat /x"); got != "here" {
		t.Errorf("it has %q", got)
	}
}

// A paused or stopped sandbox is brought back and not replaced. RB-33.
func TestStoppedIsResumed(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo kept > /x")
	for _, how := range []struct {
		rest func() error
		want durable.Outcome
	}{
		{func() error { _, err := s.Pause(t.Context(), sandbox.PauseMemory); return err }, durable.OutcomeWoken},
		{func() error { _, err := s.Pause(t.Context(), sandbox.PauseDisk); return err }, durable.OutcomeWoken},
		{func() error { _, err := s.Stop(t.Context(), 0); return err }, durable.OutcomeResumed},
	} {
		if err := how.rest(); err != nil {
			t.Fatal(err)
		}
		r, err := s.Acquire(t.Context())
		if err != nil || r.Outcome != how.want || r.Epoch != 1 {
			t.Errorf("%+v, %v; want %s", r, err, how.want)
		}
		if got := runShell(t, s, "cat /x"); got != "kept" {
			t.Errorf("it has %q", got)
		}
	}
}

// The log and the usage of a session. RB-59.
func TestSessionsAreMetered(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, shortGrace)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent", Labels: map[string]string{"team": "search"}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	untilCold(t, c, "agent")
	for by, want := range map[string]string{"label:team": "search", "provider": "fake", "group": s.ID()} {
		used, err := c.Sessions().Usage(t.Context(), by, time.Now().Add(-time.Hour), time.Time{})
		if err != nil || len(used) != 1 || used[0].Value != want || used[0].Warm <= 0 {
			t.Errorf("by %s: %+v, %v", by, used, err)
		}
	}
	_, err := c.Sessions().Usage(t.Context(), "colour", time.Time{}, time.Time{})
	wantCode(t, err, sandbox.CodeInvalid)
	var types []string
	events, err := logged(t, c, "session.created", "lease.warming", "lease.warm", "lease.draining", "lease.cold")
	for _, e := range events {
		types = append(types, e.Type)
	}
	if want := []string{"session.created", "lease.warming", "lease.warm", "lease.draining", "lease.cold"}; err != nil || !slices.Equal(types, want) {
		t.Errorf("the log has %v, %v, want %v", types, err, want)
	}
}

// RB-31: an envelope finds its sandbox where it was made, and nowhere else. RB-31.
func TestEnvelopes(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{Env: map[string]string{"TOKEN": "sesame"}}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo kept > /x")
	e, err := s.Envelope(t.Context())
	if err != nil || e.Sandbox != string(s.Receipt().Sandbox) {
		t.Fatalf("%+v, %v", e, err)
	}
	if text, _ := json.Marshal(e); strings.Contains(string(text), "sesame") {
		t.Errorf("the envelope holds a value of the environment: %s", text)
	}
	same, err := c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "other"})
	if err != nil || same.ID() != s.ID() || same.Receipt().Outcome != durable.OutcomeAttached {
		t.Fatalf("resumed where it lives: %+v, %v; want the same session", same, err)
	}
	_ = same.Close()

	changed := e
	changed.Sandbox = "sb-another"
	_, err = c.Sessions().Resume(t.Context(), changed, atoll.SessionOptions{})
	wantCode(t, err, sandbox.CodeNotFound)

	// Another installation does not have the sandbox, which says nothing about it.
	elsewhere := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	_, err = elsewhere.Sessions().Resume(t.Context(), e, atoll.SessionOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	if all := sandboxes(t, elsewhere); len(all) != 0 {
		t.Errorf("a sandbox was made from an envelope of elsewhere: %+v", all)
	}

	// An archive alone is enough.
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e, err = s.Envelope(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Sandbox, e.State = "", nil
	copied, err := c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "copy"})
	if err != nil || copied.Receipt().Outcome != durable.OutcomeRebuilt {
		t.Fatalf("from the archive: %+v, %v", copied, err)
	}
	defer copied.Close()
	if got := runShell(t, copied, "cat /x"); got != "kept" {
		t.Errorf("the copy has %q", got)
	}
}

// Attempts of another tenant with a session, and with a stolen envelope.
func TestAttackSessionOfAnotherTenant(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	victim := bearer(t, d, "acme", "admin")
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "evil", Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	attacker := daemontest.Bearer(t, d, k.Token)
	s := openSession(t, victim, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo secret > /x")
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"agent", s.ID()} {
		_, err := attacker.Sessions().Get(t.Context(), ref)
		wantCode(t, err, sandbox.CodeNotFound)
		wantCode(t, attacker.Sessions().Remove(t.Context(), ref), sandbox.CodeNotFound)
		for _, path := range []string{"acquire", "heartbeat", "release", "save", "envelope", "exec", "files", "files/stat?path=/x", "stop", "fork", "snapshots", "port-tokens"} {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
				if got := statusOf(t, d, k.Token, method, "/v1/sessions/"+ref+"/"+path); got == http.StatusOK || got >= http.StatusInternalServerError {
					t.Errorf("%s %s of another tenant: %d", method, path, got)
				}
			}
		}
	}
	if all, err := attacker.Sessions().List(t.Context(), nil); err != nil || len(all) != 0 {
		t.Errorf("he sees %+v, %v", all, err)
	}
	// The envelope names a sandbox that does not exist for him, and an archive
	// that he cannot read.
	_, err = attacker.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "theft"})
	wantCode(t, err, sandbox.CodeNotFound)
	forged := e
	forged.Sandbox = ""
	forged.Spec.Mounts = []sandbox.Mount{{Source: "/", Target: "/host"}}
	for name, c := range map[string]*atoll.Client{"the attacker": attacker, "the owner of the machine": daemontest.Client(t, d)} {
		if _, err := c.Sessions().Resume(t.Context(), forged, atoll.SessionOptions{}); sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("%s resumed an envelope that shows the machine's files: %v", name, err)
		}
	}
	if all := sandboxes(t, attacker); len(all) != 0 {
		t.Errorf("he got %+v", all)
	}
	if got := runShell(t, s, "cat /x"); got != "secret" {
		t.Errorf("the victim has %q", got)
	}
}

// Keys do with sessions what their verbs allow.
func TestSessionsNeedPermission(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner, reader, runner := bearer(t, d, "acme", "admin"), bearer(t, d, "acme", "read"), bearer(t, d, "acme", "read", "exec")
	_, err := reader.Sessions().Create(t.Context(), sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	wantCode(t, err, sandbox.CodeDenied)
	s := openSession(t, owner, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	for _, c := range []*atoll.Client{reader, runner} {
		if _, err := c.Sessions().Get(t.Context(), "agent"); err != nil {
			t.Error(err)
		}
		wantCode(t, c.Sessions().Remove(t.Context(), "agent"), sandbox.CodeDenied)
	}
	held, err := runner.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	runShell(t, held, "true")
	_, err = held.Save(t.Context())
	wantCode(t, err, sandbox.CodeDenied)
	looked, err := reader.Sessions().Get(t.Context(), s.Name())
	if err != nil {
		t.Fatal(err)
	}
	_, err = looked.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeDenied)
	if _, err := looked.Files().Stat(t.Context(), "/"); err != nil {
		t.Errorf("who may read cannot look at a file of a session that has a sandbox: %v", err)
	}
}

// statusOf returns the status of a request that no library of ours would send.
func statusOf(t *testing.T, d *daemon.Daemon, key, method, path string) int {
	t.Helper()
	return statusWith(t, d, key, method, path, "{}")
}

func statusWith(t *testing.T, d *daemon.Daemon, key, method, path, body string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://atoll"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	transport := d.Memory().Transport()
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// Hostile values where a session is named or fenced.
func TestAttackHostileSessionRequests(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	transport := d.Memory().Transport()
	defer transport.CloseIdleConnections()
	for i, tt := range []struct {
		method, path, epoch, body string
		want                      int
	}{
		{"POST", "/v1/sessions/agent/exec", "", `{"shell":"true"}`, 200},
		{"POST", "/v1/sessions/agent/exec", "1", `{"shell":"true"}`, 200},
		{"POST", "/v1/sessions/agent/exec", "2", `{"shell":"true"}`, 409},
		{"POST", "/v1/sessions/agent/exec", "-1", `{"shell":"true"}`, 400},
		{"POST", "/v1/sessions/agent/exec", "x", `{"shell":"true"}`, 400},
		{"POST", "/v1/sessions/agent/unknown", "", "", 404},
		{"POST", "/v1/sessions/agent/files/unknown", "", "", 404},
		{"POST", "/v1/sessions/agent/exec/../../../tenants", "", "", 307},
		{"POST", "/v1/sessions/agent/exec/..%2f..%2ftenants", "", "", 404},
		{"GET", "/v1/sessions/..%2f..%2fetc", "", "", 400},
		{"POST", "/v1/sessions", "", `{"name":"../x"}`, 400},
		{"POST", "/v1/sessions", "", `{"name":"x","group":"a b"}`, 400},
		{"POST", "/v1/sessions", "", `{"name":"x","ifExists":"steal"}`, 400},
		{"POST", "/v1/sessions", "", `{"name":"x","labels":{"atoll.session-archive":"y"}}`, 400},
		{"POST", "/v1/sessions/agent/acquire", "", `{"kind":"root","holder":"h"}`, 400},
		{"POST", "/v1/sessions/agent/acquire", "", `{"holder":""}`, 400},
		{"POST", "/v1/sessions/resume", "", `{"envelope":{"version":9,"backend":"fake","spec":{}}}`, 400},
		{"POST", "/v1/sessions/resume", "", `{"envelope":{"version":1,"backend":"fake","box":"sb-x","spec":{}}}`, 503},
		{"GET", "/v1/usage", "", "", 400},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, "http://atoll"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if tt.epoch != "" {
			r.Header.Set("Atoll-Epoch", tt.epoch)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("%d: %s %s with epoch %q and %s: %d, want %d", i, tt.method, tt.path, tt.epoch, tt.body, resp.StatusCode, tt.want)
		}
	}
	if all := sandboxes(t, c); len(all) != 1 {
		t.Errorf("%d sandboxes, want that of the session only", len(all))
	}
}
