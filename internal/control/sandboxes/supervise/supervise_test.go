package supervise_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// until waits until the record of sb-1 is as it should be.
func until(t *testing.T, r *sandboxtest.Rig, what string, is func(*store.Sandbox) bool) store.Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		b := r.Record(t, "sb-1")
		if is(&b) {
			return b
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it is %s (%q) with the exit %+v, want %s", b.State, b.Reason, b.Exit, what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// What becomes of a sandbox that ends without a request.
func TestEnded(t *testing.T) {
	for _, tt := range []struct {
		exit    sandbox.Reason
		state   sandbox.State
		reason  string
		removed bool // at the provider
	}{
		{sandbox.ReasonExited, sandbox.Stopped, "it ended: exited", false},
		{sandbox.ReasonCrashed, sandbox.Failed, "it ended: " + string(sandbox.ReasonCrashed), false},
		{sandbox.ReasonLifetime, sandbox.Gone, records.ReasonLifetime, true},
	} {
		t.Run(string(tt.exit), func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}, Exits: map[sandbox.ID]sandbox.Exit{"sb-1": {Code: 3, Reason: tt.exit}}}
			r := sandboxtest.Open(t, p)
			var b store.Sandbox
			b.ID = "sb-1"
			b = r.Add(t, b)
			sb, err := r.Records.Attach(t.Context(), &b)
			coretest.OK(t, err)
			r.Ends.Follow(coretest.Acme, sb)
			now := until(t, r, string(tt.state), func(b *store.Sandbox) bool { return b.State == tt.state })
			if now.Reason != tt.reason || now.Exit == nil || now.Exit.Code != 3 {
				t.Errorf("it ended because %q with %+v, want %q and the code 3", now.Reason, now.Exit, tt.reason)
			}
			if did := p.Did(); (did != nil) != tt.removed {
				t.Errorf("the provider was told %q, want that it is removed: %v", did, tt.removed)
			}
		})
	}
}

// What the end of a background command means for its sandbox.
func TestMainEnded(t *testing.T) {
	main := func(m sandbox.MainCommand) *sandbox.MainCommand {
		m.Args, m.Process = []string{"serve"}, "p1"
		return &m
	}
	for _, tt := range []struct {
		name    string
		main    *sandbox.MainCommand
		process string
		reason  sandbox.Reason
		held    bool // the sandbox is being stopped
		exit    bool // it is recorded as exited
		state   sandbox.State
	}{
		{name: "its main command", main: main(sandbox.MainCommand{}), process: "p1", reason: sandbox.ReasonExited, exit: true, state: sandbox.Running},
		{name: "another command", main: main(sandbox.MainCommand{}), process: "p2", reason: sandbox.ReasonExited, state: sandbox.Running},
		{name: "of a sandbox without a main command", process: "p1", reason: sandbox.ReasonExited, state: sandbox.Running},
		{name: "because the sandbox crashed", main: main(sandbox.MainCommand{}), process: "p1", reason: sandbox.ReasonCrashed, state: sandbox.Running},
		{name: "with which the sandbox goes", main: main(sandbox.MainCommand{Remove: true}), process: "p1", reason: sandbox.ReasonExited, state: sandbox.Gone},
		{name: "with which the sandbox goes, while it is stopped", main: main(sandbox.MainCommand{Remove: true}), process: "p1", reason: sandbox.ReasonExited, held: true, exit: true, state: sandbox.Running},
		{name: "that would start again, while it is stopped", main: main(sandbox.MainCommand{Restart: sandbox.RestartAlways}), process: "p1", reason: sandbox.ReasonExited, held: true, exit: true, state: sandbox.Running},
		{name: "that has started often enough", main: main(sandbox.MainCommand{Restart: sandbox.RestartAlways, MaxRestarts: 2, Restarts: 2}), process: "p1", reason: sandbox.ReasonExited, exit: true, state: sandbox.Running},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := sandboxtest.Open(t, &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}})
			s := &supervise.Mains{Core: r.Core, Records: r.Records, Remover: &remove.Remover{Core: r.Core, Records: r.Records, Workspaces: r.Workspaces}}
			var b store.Sandbox
			b.ID, b.Spec.Main = "sb-1", tt.main
			r.Add(t, b)
			if tt.held {
				defer s.Hold("sb-1")()
			}
			s.MainEnded(coretest.Acme, "sb-1", tt.process, coretest.Now, sandbox.Exit{Code: 3, Reason: tt.reason})
			until(t, r, string(tt.state), func(b *store.Sandbox) bool {
				return b.State == tt.state && (tt.state == sandbox.Gone || (b.Exit != nil) == tt.exit)
			})
		})
	}
}
