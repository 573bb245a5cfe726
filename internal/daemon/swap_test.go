package daemon_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/faults"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// harbour is a daemon with the providers one, the default, and two.
type harbour struct {
	*atoll.Client
	machine *daemontest.Machine
	one     faults.Injector
	two     faults.Injector
	// fault is called for each operation of the provider two.
	fault atomic.Pointer[func(op string) error]
}

func newHarbour(t *testing.T) *harbour {
	t.Helper()
	h := &harbour{machine: daemontest.New(t)}
	worlds := [2]fake.World{}
	fault := func(op string) error {
		if f := h.fault.Load(); f != nil {
			return (*f)(op)
		}
		return nil
	}
	entry := func(name string, world *fake.World, i *faults.Injector, fault func(string) error) providerset.Entry {
		return providerset.Entry{Name: name, Open: func(providerset.Host) (driver.Provider, error) {
			return faults.Provider(fake.New(fake.Options{World: world, Binding: name, Limited: true, Fault: fault}), i), nil
		}}
	}
	machine := providerset.Entry{Name: "machine", Open: func(providerset.Host) (driver.Provider, error) {
		return sharing{fake.New(fake.Options{Binding: "machine", Limited: true})}, nil
	}}
	laptop := providerset.Entry{Name: "laptop", Open: func(providerset.Host) (driver.Provider, error) {
		return owned{sharing{fake.New(fake.Options{Binding: "laptop", Limited: true})}}, nil
	}}
	d := h.machine.Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{entry("one", &worlds[0], &h.one, nil), entry("two", &worlds[1], &h.two, fault), machine, laptop}
		o.SessionGrace = 2 * time.Second // sweeps every second
	})
	h.Client = daemontest.Client(t, d)
	return h
}

// sharing is a provider with sandboxes that use the files of the machine.
type sharing struct{ *fake.Provider }

func (s sharing) Probe(ctx context.Context) (driver.Facts, error) {
	facts, err := s.Provider.Probe(ctx)
	facts.SharesFiles = true
	return facts, err
}

// owned is a provider whose sandboxes are the machine of a person.
type owned struct{ sharing }

func (owned) Permanent() bool { return true }

func mustSwap(t *testing.T, s *atoll.Session, target string) durable.Receipt {
	t.Helper()
	out, err := s.Swap(t.Context(), target)
	if err != nil || !out.Swapped || out.Receipt == nil {
		t.Fatalf("swap to %s: %+v, %v; want it moved, with a receipt", target, out, err)
	}
	return *out.Receipt
}

// alone waits until exactly one sandbox is there.
func (h *harbour) alone(t *testing.T) sandbox.Sandbox {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		all := sandboxes(t, h.Client)
		if len(all) == 1 {
			return all[0]
		}
		if len(all) == 0 || time.Now().After(deadline) {
			t.Fatalf("there are %d sandboxes, want one: %+v", len(all), all)
		}
	}
}

// A session moves with its files, environment and labels, and back. RB-97.
func TestSwapThereAndBack(t *testing.T) {
	h := newHarbour(t)
	s := openSession(t, h.Client, sandbox.Spec{Env: map[string]string{"TOKEN": "sesame"}}, atoll.SessionOptions{Name: "agent", Labels: map[string]string{"team": "a"}})
	runShell(t, s, "mkdir -p /workspace/sub; echo kept > /workspace/sub/note")
	first := s.Receipt()

	if r := mustSwap(t, s, "one"); r.Epoch != 1 || r.Sandbox != first.Sandbox {
		t.Errorf("a swap to where it is: %+v; want no new epoch", r)
	}
	r := mustSwap(t, s, "two")
	if r.Outcome != durable.OutcomeMoved || r.Provider != "two" || r.Epoch != 2 || r.Sandbox == first.Sandbox || !slices.Contains(r.Lost, durable.LostProcesses) {
		t.Errorf("the receipt is %+v, want it moved to another sandbox of two in epoch 2, without processes", r)
	}
	if got := runShell(t, s, "cat /workspace/sub/note; echo $TOKEN"); got != "kept\nsesame" {
		t.Errorf("after the move it has %q, want its file and its environment", got)
	}
	if sb := h.alone(t); sb.Provider != "two" || sb.Labels["team"] != "a" {
		t.Errorf("the sandbox is %+v, want one of two with the label of the session", sb)
	}
	runShell(t, s, "echo more > /workspace/more; rm /workspace/sub/note")
	if r := mustSwap(t, s, "default"); r.Provider != "one" || r.Epoch != 3 {
		t.Errorf("the receipt of the way back is %+v, want one in epoch 3", r)
	}
	if got := runShell(t, s, "cat /workspace/more; ls /workspace/sub"); got != "more" {
		t.Errorf("back it has %q, want %q", got, "more")
	}
	if sb := h.alone(t); sb.Provider != "one" {
		t.Errorf("the sandbox is %+v, want one of one", sb)
	}
	events, err := logged(t, h.Client, "route.swapped")
	if err != nil || len(events) != 2 || events[0].Epoch != 2 || events[1].Epoch != 3 || events[0].Subject != "agent" {
		t.Errorf("the log has %+v, %v; want two moves", events, err)
	}
	_, err = s.Swap(t.Context(), "nowhere")
	wantCode(t, err, sandbox.CodeInvalid)
}

// RB-97: targets come with reasons, one that cannot serve leaves the pointer, and
// run-on never moves it. RB-97.
func TestTargetsAndRunOn(t *testing.T) {
	h := newHarbour(t)
	s := openSession(t, h.Client, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace; echo here > /workspace/x")
	all, err := s.Targets(t.Context())
	if err != nil || len(all) < 3 || !all[0].Current || all[0].Provider != "one" || !all[1].Fits || all[1].Provider != "two" || all[1].Carries != "/workspace" {
		t.Fatalf("the targets are %+v, %v; want one, where it is, and then two, which takes /workspace", all, err)
	}
	at := slices.IndexFunc(all, func(target durable.SessionTarget) bool { return target.Provider == "machine" })
	if at < 0 || all[at].Fits || !strings.Contains(strings.Join(all[at].Reasons, " "), "has no root file system of its own") {
		t.Errorf("the targets: %+v; want the machine refused, whose own /workspace would be overwritten", all)
	}
	if out, err := s.Swap(t.Context(), "machine"); err != nil || out.Swapped || !strings.Contains(out.Reason, "has no root file system of its own") {
		t.Errorf("swap to the machine: %+v, %v; want a refusal", out, err)
	}
	_, err = s.RunOn(t.Context(), "machine", sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	// RB-115: nothing is copied to a person's machine by itself.
	const instead = "belongs to the machine's owner, and a move would overwrite files there; copy the files that you need with atoll session cp, to a session that begins there: atoll session create --provider laptop"
	if out, err := s.Swap(t.Context(), "laptop"); err != nil || out.Swapped || !strings.Contains(out.Reason, instead) {
		t.Errorf("swap to a person's machine: %+v, %v; want a refusal that says why, and what to do", out, err)
	}
	if last := all[len(all)-1]; last.Fits || len(last.Reasons) == 0 {
		t.Errorf("a target that does not fit: %+v; want why", last)
	}
	res, err := s.RunOn(t.Context(), "two", sandbox.Command{Shell: "cat /workspace/x; echo there > /workspace/x; exit 7"}, atoll.RunOptions{})
	if err != nil || string(res.Stdout) != "here\n" || res.Exit.Code != 7 {
		t.Errorf("run-on gave %+v, %v; want the file of the session and the exit 7", res, err)
	}
	if got := runShell(t, s, "cat /workspace/x"); got != "here" || h.alone(t).Provider != "one" {
		t.Errorf("after run-on the session has %q, want %q on one", got, "here")
	}

	h.two.Add(faults.Fault{Op: faults.Probe, Err: &faults.Error{Code: sandbox.CodeUnavailable, Text: "sandbox not found"}})
	out, err := s.Swap(t.Context(), "two")
	if err != nil || out.Swapped || !strings.Contains(out.Reason, "not available") {
		t.Errorf("swap to a provider that is offline: %+v, %v; want the reason that it is not available", out, err)
	}
	if got, err := h.Sessions().Get(t.Context(), "agent"); err != nil || got.Info().Lease.Epoch != 1 || got.Info().Lease.Provider != "one" {
		t.Errorf("the pointer: %+v, %v; want it unchanged", got.Info().Lease, err)
	}
}

// RB-93, RB-94: a client that keeps writing while its session moves there and
// back loses nothing that was acknowledged, and its handle follows. RB-94.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	h := newHarbour(t)
	s := openSession(t, h.Client, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace; echo 0 > /workspace/count")
	mover, err := h.Sessions().Get(t.Context(), "agent")
	if err != nil {
		t.Fatal(err)
	}
	moved, written, wrote := make(chan struct{}), make(chan int), make(chan struct{})
	go func() {
		n := 0
		for {
			select {
			case <-moved:
				written <- n
				return
			default:
			}
			script := "echo " + strconv.Itoa(n+1) + " > /workspace/count; cat /workspace/count >> /workspace/log"
			res, err := s.Run(context.Background(), sandbox.Command{Shell: script}, atoll.RunOptions{})
			if err != nil || res.Exit.Code != 0 {
				t.Errorf("write %d ended with %+v, %v; want 0", n+1, res, err)
				close(wrote)
				<-moved
				written <- n
				return
			}
			n++
			select {
			case wrote <- struct{}{}:
			default:
			}
		}
	}()
	for _, target := range []string{"two", "one", "two", "one"} {
		mustSwap(t, mover, target)
		<-wrote // a request follows at most three moves
	}
	close(moved)
	n := <-written
	if got := runShell(t, s, "cat /workspace/count"); got != strconv.Itoa(n) || n == 0 {
		t.Errorf("the counter is %s, want %d, the number of acknowledged writes", got, n)
	}
	lines := strings.Fields(runShell(t, s, "cat /workspace/log"))
	if len(lines) != n {
		t.Errorf("the log has %d lines, want %d, the number of acknowledged writes", len(lines), n)
	}
	for i, line := range lines {
		if line != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %s: a write was lost or done twice", i+1, line)
		}
	}
	t.Logf("%d writes", n)
}

// RB-94: only a move is followed. A sandbox that was replaced without its files
// is fenced, and a request without leave to follow too. RB-94.
func TestOnlyMovesAreFollowed(t *testing.T) {
	h := newHarbour(t)
	s := openSession(t, h.Client, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	other, err := h.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	mustSwap(t, s, "two")
	runShell(t, other, "echo follows > /workspace-note") // its epoch is 1
	if err := h.Remove(t.Context(), string(h.alone(t).ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = other.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeStale)
}

// After a failure of any step, one sandbox is left: the old one, or the new one
// if the pointer was already moved. RB-97.
func TestFailuresLeaveOneSandbox(t *testing.T) {
	broken := &faults.Error{Code: sandbox.CodeUnavailable, Text: "the sandbox does not exist"}
	at := func(op string) func(*harbour) {
		return func(h *harbour) {
			f := func(got string) error {
				if got == op {
					return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "broken at " + op}
				}
				return nil
			}
			h.fault.Store(&f)
		}
	}
	tests := map[string]struct {
		inject func(h *harbour)
		moves  bool
	}{
		"import":             {inject: at("archive.import")},
		"ending the old one": {inject: func(h *harbour) { h.one.Add(faults.Fault{Op: faults.Destroy, Err: broken, Times: 1}) }, moves: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarbour(t)
			s := openSession(t, h.Client, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
			runShell(t, s, "mkdir -p /workspace; echo kept > /workspace/note")
			first := s.Receipt().Sandbox
			tt.inject(h)
			out, err := s.Swap(t.Context(), "two")
			if (err == nil && out.Swapped) != tt.moves {
				t.Fatalf("the swap: %+v, %v; want moved %v", out, err, tt.moves)
			}
			if sb := h.alone(t); (sb.ID == first) == tt.moves {
				t.Errorf("left is %s of %s, want the first, %s: %v", sb.ID, sb.Provider, first, !tt.moves)
			}
			if got := runShell(t, s, "cat /workspace/note"); got != "kept" {
				t.Errorf("it has %q, want %q", got, "kept")
			}
			h.one.Clear()
			h.two.Clear()
			h.fault.Store(nil)
			if r := mustSwap(t, s, "two"); r.Provider != "two" {
				t.Errorf("the receipt of the next swap is %+v, want one of two", r)
			}
			if got := runShell(t, s, "cat /workspace/note"); got != "kept" || h.alone(t).Provider != "two" {
				t.Errorf("then it has %q, want %q on two", got, "kept")
			}
		})
	}
}
