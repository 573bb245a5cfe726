package gvisor_test

import (
	"bufio"
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// hog starts a command and returns when it has allocated memory.
func hog(t *testing.T, in driver.Instance) driver.Process {
	t.Helper()
	need.Program(t, "python3")
	proc, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", `
import time
b = bytearray(b"x") * (8 << 20)
print("holds", flush=True)
while True: time.sleep(0.01)
`}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proc.Close() })
	if line, err := bufio.NewReader(proc.Stdout()).ReadString('\n'); line != "holds\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	return proc
}

// TestAllProcessesAreLimited creates sandboxes concurrently. All stubs must be
// in the control group that limits them and must be what the host kills first.
func TestAllProcessesAreLimited(t *testing.T) {
	p := newProvider(t, nil)
	limited(t, p, "memory")
	var group sync.WaitGroup
	for i := range 24 {
		group.Go(func() {
			in, err := p.Create(t.Context(), &sandbox.Spec{ID: sandbox.ID("limited-" + strconv.Itoa(i)), Image: "host"})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() {
				if err := in.Destroy(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			list := in.(*gvisor.Instance).Stubs()
			if len(list) < 2 || list[0].Spared || !slices.ContainsFunc(list, func(s gvisor.Stub) bool { return s.Spared }) {
				t.Errorf("the control group has %+v, want the stub that all are forked from, and the guest's, which is spared", list)
			}
		})
	}
	group.Wait()
}

// TestLargestMakesRoom runs out of memory, as the provider detects it. A
// program must be killed, and not the guest, whose own program is larger, or
// the sandbox.
func TestLargestMakesRoom(t *testing.T) {
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 192 << 20})
	limited(t, p, "memory")
	in := victim.(*gvisor.Instance)
	proc := hog(t, victim)
	in.MakeRoom()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if exit, err := proc.Wait(ctx); err != nil || exit.Reason != sandbox.ReasonMemory {
		t.Errorf("the command's Wait = %+v, %v; want reason %s", exit, err, sandbox.ReasonMemory)
	}
	stillWorks(t, neighbour)
	recovers(t, victim)
}

// TestBarrenSandboxEnds lets the host kill the stub that all others are forked
// from. No command could be started any more, so the sandbox must end.
func TestBarrenSandboxEnds(t *testing.T) {
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 192 << 20})
	limited(t, p, "memory")
	in := victim.(*gvisor.Instance)
	proc := hog(t, victim)
	if err := unix.Kill(in.Stubs()[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	in.MakeRoom()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if exit, err := proc.Wait(ctx); err == nil && exit.Reason != sandbox.ReasonMemory {
		t.Errorf("the command's Wait = %+v, %v; want reason %s", exit, err, sandbox.ReasonMemory)
	}
	if exit, err := victim.Wait(ctx); err != nil || exit.Reason != sandbox.ReasonMemory {
		t.Errorf("the sandbox's Wait = %+v, %v; want reason %s", exit, err, sandbox.ReasonMemory)
	}
	stillWorks(t, neighbour)
}
