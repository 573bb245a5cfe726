package daemon_test

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// sweepsOften has leases looked at every second.
func sweepsOften(o *daemon.Options) { o.SessionGrace = 2 * time.Second }

// write counts in a file until the sandbox does not serve any more, and returns
// the last number that was acknowledged.
func write(t *testing.T, s *atoll.Session) (acked int) {
	t.Helper()
	for n := 1; ; n++ {
		res, err := s.Run(t.Context(), sandbox.Command{Shell: "echo " + strconv.Itoa(n) + " > /count"}, atoll.RunOptions{})
		if err != nil {
			wantCode(t, err, sandbox.CodeStale)
			return acked
		}
		if res.Exit.Code != 0 {
			t.Fatalf("%+v", res)
		}
		acked = n
	}
}

// replaced writes until the session has its second sandbox, and returns that and
// the last number that was acknowledged. A request that is faster than an eviction
// puts it off, and the sandbox serves again.
func replaced(t *testing.T, s *atoll.Session) (r durable.Receipt, acked int) {
	t.Helper()
	for {
		if n := write(t, s); n > 0 {
			acked = n
		}
		r, err := s.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Epoch != 1 {
			return r, acked
		}
	}
}

// A sandbox that is in use all the time is saved and replaced before its
// lifetime ends, and nothing that was acknowledged is lost. RB-58.
func TestBusySandboxesRotate(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t).Start(t, sweepsOften)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{Lifetime: sandbox.Lifetime{Timeout: 16 * time.Second}}, atoll.SessionOptions{Name: "agent", Turn: true})
	r, acked := replaced(t, s)
	if r.Epoch != 2 || r.Outcome != durable.OutcomeRebuilt {
		t.Fatalf("the receipt: %+v", r)
	}
	if got := runShell(t, s, "cat /count"); got != strconv.Itoa(acked) {
		t.Errorf("the new sandbox has %s, and %d was acknowledged", got, acked)
	}
	if all := sandboxes(t, c); len(all) != 1 || all[0].ID != r.Sandbox {
		t.Errorf("sandboxes: %+v", all)
	}
	if expired, err := logged(t, c, "sandbox.expired"); err != nil || len(expired) != 0 {
		t.Errorf("a lifetime ended: %+v, %v", expired, err)
	}
	_, text := fetch(t, d, "/metrics", "", "")
	for _, want := range []string{
		`atoll_leases\{state="warm"\} 1`, "atoll_lease_rotations_total [1-9]", "atoll_lease_evictions_total [1-9]", "atoll_lease_orphans_ended_total 0",
		`atoll_lease_acquire_seconds_count\{role="spawner"\} 2`,
	} {
		if !regexp.MustCompile("(?m)^" + want + "$").MatchString(text) {
			t.Errorf("the metrics do not have %s", want)
		}
	}
}

// A command that does not end in time for the replacement of its sandbox fails:
// what it does after the sandbox was saved would be lost. RB-58.
func TestSlowCommandIsCut(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t).Start(t, sweepsOften)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{Lifetime: sandbox.Lifetime{Timeout: 16 * time.Second}}, atoll.SessionOptions{Name: "agent", Turn: true})
	runShell(t, s, "echo before > /note")
	_, err := s.Run(t.Context(), sandbox.Command{Shell: "sleep 60; echo after > /note"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeStale)
	if r, err := s.Acquire(t.Context()); err != nil || r.Epoch != 2 || r.Outcome != durable.OutcomeRebuilt {
		t.Fatalf("the receipt: %+v, %v", r, err)
	}
	if got := runShell(t, s, "cat /note"); got != "before" {
		t.Errorf("it has %q", got)
	}
}

// A sandbox that cannot be saved before its deadline continues, and the log says so.
// RB-58.
func TestFailedCaptureIsReported(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	var broken atomic.Bool
	m.Fault = func(op string) error {
		if broken.Load() && op == "snapshot" {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no space"}
		}
		return nil
	}
	d := m.Start(t, sweepsOften)
	c := daemontest.Client(t, d)
	broken.Store(true)
	s := openSession(t, c, sandbox.Spec{Lifetime: sandbox.Lifetime{Timeout: 20 * time.Second}}, atoll.SessionOptions{Name: "agent", Turn: true})
	for deadline := time.Now().Add(19 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		events, err := logged(t, c, "lease.at_risk")
		if err != nil {
			t.Fatal(err)
		}
		if len(events) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the log says nothing")
		}
	}
	first := untilLease(t, c, "agent", "warm")
	if first.Lease.Epoch != 1 || first.Lease.Sandbox != s.Receipt().Sandbox {
		t.Fatalf("the sandbox does not serve any more: %+v", first.Lease)
	}
	runShell(t, s, "echo kept > /note")
	broken.Store(false)
	if r, _ := replaced(t, s); r.Epoch != 2 || r.Outcome != durable.OutcomeRebuilt {
		t.Fatalf("the receipt: %+v", r)
	}
	if got := runShell(t, s, "cat /note"); got != "kept" {
		t.Errorf("it has %q", got)
	}
}

// A turn whose sandbox could not be made gets the same error for every request.
// Another turn tries again. RB-43.
func TestFailedRecoveryIsRemembered(t *testing.T) {
	m := daemontest.New(t)
	var creates atomic.Int64
	var broken atomic.Bool
	m.Fault = func(op string) error {
		if op == "create" && broken.Load() {
			creates.Add(1)
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "no such machine"}
		}
		return nil
	}
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent", Turn: true})
	broken.Store(true)
	endOutside(t, m, s.Receipt().Sandbox)
	_, err := s.Acquire(t.Context())
	wantCode(t, err, sandbox.CodeUnsupported)
	tried := creates.Load()
	if tried == 0 {
		t.Fatal("nothing was tried")
	}
	_, err = s.Acquire(t.Context())
	wantCode(t, err, sandbox.CodeUnsupported)
	_, err = s.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeUnsupported)
	_, err = s.Save(t.Context())
	wantCode(t, err, sandbox.CodeUnsupported)
	if n := creates.Load(); n != tried {
		t.Errorf("the provider was asked %d times more", n-tried)
	}
	broken.Store(false)
	other, err := c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{Turn: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Errorf("with a sandbox: %v", err)
	}
}

// pausing is a provider that pauses a sandbox while it takes a snapshot.
type pausing struct{ driver.Provider }

func (pausing) SnapshotPauses() bool { return true }

// A sandbox that its provider pauses while it is saved serves no command then:
// those that run end first, others wait, and a viewer keeps it from happening.
// RB-47.
func TestExclusiveCapture(t *testing.T) {
	m := daemontest.New(t)
	var running, captures, hits atomic.Int64
	fault := func(op string) error {
		switch op {
		case "exec":
			running.Add(1)
		case "snapshot":
			captures.Add(1)
			before := running.Load()
			time.Sleep(300 * time.Millisecond) // the service takes its time
			hits.Add(running.Load() - before)
		}
		return nil
	}
	d := m.Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{{Name: "pausing", Open: func(providerset.Host) (driver.Provider, error) {
			return pausing{fake.New(fake.Options{World: m.World, Fault: fault, Limited: true, SnapshotDir: m.Dir + "/snapshots"})}, nil
		}}}
	})
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent", Turn: true})
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			if res, err := s.Run(t.Context(), sandbox.Command{Shell: "echo x >> /log"}, atoll.RunOptions{}); err != nil || res.Exit.Code != 0 {
				t.Errorf("a command met the capture: %+v, %v", res, err)
			}
			n++
		}
	}()
	for range 3 {
		if saved, err := s.Save(t.Context()); err != nil || saved.Archive == nil {
			t.Errorf("saving: %+v, %v", saved, err)
		}
	}
	close(stop)
	written := <-done
	if captures.Load() != 3 || hits.Load() != 0 {
		t.Errorf("%d captures, %d commands in a paused sandbox", captures.Load(), hits.Load())
	}
	if got := runShell(t, s, "cat /log"); strings.Count(got, "x") != written {
		t.Errorf("%d lines, %d were written", strings.Count(got, "x"), written)
	}

	watch := func(path string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://atoll/v1/sessions/agent/"+path, strings.NewReader(`{"kind":"viewer","holder":"someone"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := d.Memory().Transport().RoundTrip(req)
		if err != nil || res.StatusCode >= 300 {
			t.Fatalf("%s: %+v, %v", path, res, err)
		}
		res.Body.Close()
	}
	watch("acquire")
	_, err := s.Save(t.Context())
	wantCode(t, err, sandbox.CodeConflict)
	if captures.Load() != 3 || untilLease(t, c, "agent", "warm").Lease.Epoch != 1 {
		t.Error("somebody viewed the sandbox, and it was captured or replaced")
	}
	runShell(t, s, "echo more >> /log")
	watch("release")
	if _, err := s.Save(t.Context()); err != nil {
		t.Error(err)
	}
}
