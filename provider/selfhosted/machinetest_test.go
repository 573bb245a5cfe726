package selfhosted_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/driver/machinetest"
	"github.com/atoll-run/atoll/sandbox"
)

// The public fake machine (RB-115): its owner can pause it, it can be switched
// off, it keeps what was asked, and fails on demand.
func TestFakeMachine(t *testing.T) {
	w := newWorld(t)
	var full atomic.Bool
	m, err := machinetest.Start(t.Context(), machinetest.Options{
		Dir: dir(t, "fake"), URL: "nats://" + w.proxy.addr(), Name: "laptop", Token: w.token(t, "acme", nil),
		Fault: func(op string) error {
			if op == "create" && full.Load() {
				return &sandbox.Error{Code: sandbox.CodeExhausted, Message: "the machine is full"}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	w.await(t, m.ID(), "online")
	p := w.open(t, m.ID(), false)
	in := create(t, p)
	if out, err := output(in, "echo kept >file; cat file"); out != "kept\n" || err != nil {
		t.Errorf("the command says %q, %v; want kept", out, err)
	}
	if seen := m.Requests(); !slices.Contains(seen, "create") || !slices.Contains(seen, "exec") {
		t.Errorf("the requests are %q, want create and exec among them", seen)
	}
	full.Store(true)
	if _, err := p.Create(t.Context(), spec("host")); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("create on a full machine: %v, want %s", err, sandbox.CodeExhausted)
	}
	full.Store(false)
	for what, do := range map[string][2]func() error{"pause": {m.Pause, m.Resume}, "switch off": {m.Disconnect, m.Connect}} {
		if err := do[0](); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		w.await(t, m.ID(), "offline")
		if _, err := output(in, "true"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("a command after %s: %v, want %s", what, err, sandbox.CodeUnavailable)
		}
		if err := do[1](); err != nil {
			t.Fatalf("the end of %s: %v", what, err)
		}
		w.await(t, m.ID(), "online")
		if out, err := output(in, "cat file"); out != "kept\n" || err != nil {
			t.Errorf("after %s: %q, %v; want kept", what, out, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(m.Close(), m.Disconnect()); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if _, err := machinetest.Start(t.Context(), machinetest.Options{Dir: dir(t, "other"), URL: "nats://" + w.proxy.addr()}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("without a token: %v, want %s", err, sandbox.CodeInvalid)
	}
}
