package gvisor_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
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

// forker starts processes that use memory as fast as it can.
const forker = `
import os, time
for i in range(2): os.fork()
while True:
    try: pid = os.fork()
    except OSError: continue
    if pid == 0:
        b = bytearray(b"x") * (%d << 20)
        time.sleep(%g)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except OSError: pass
`

// TestUnfinishedProgramIsSpared stops gVisor's kernel while it sets up programs.
// They are not killed to make room: that would end the sandbox.
func TestUnfinishedProgramIsSpared(t *testing.T) {
	need.Program(t, "python3")
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 4 << 30, PIDs: 1000})
	limited(t, p, "memory")
	in := victim.(*gvisor.Instance)
	// The kernel reuses stubs, so these processes must not end.
	proc, err := victim.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", fmt.Sprintf(forker, 1, 600.0)}})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	for found := 0; found < 3; {
		if exit, ended := hasEnded(t.Context(), victim); ended {
			t.Fatalf("the sandbox has ended: %+v; %s", exit, in.LimitState())
		}
		release := in.Hold()
		if release == nil {
			t.Fatal("the kernel does not stop")
		}
		for _, pid := range in.Unfinished() {
			found++
			if in.EndStopped(pid) {
				t.Errorf("process %d was killed while the kernel sets it up", pid)
			}
		}
		release(true)
		time.Sleep(5 * time.Millisecond) // in which it sets up others
	}
	proc.Close()
	recovers(t, victim)
	stillWorks(t, neighbour)
}

// TestKernelOfKilledProcessContinues attaches to a sandbox whose kernel was stopped
// by a process that was killed before it continued it.
func TestKernelOfKilledProcessContinues(t *testing.T) {
	state := t.TempDir()
	first, in := unattached(t, state, sandbox.Spec{ID: "held", Image: "host", Resources: sandbox.Resources{Memory: 192 << 20}})
	limited(t, first, "memory")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "boxes", "held", "held"), []byte("."), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(in.(*gvisor.Instance).Kernel(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, in = attached(t, state, "held")
	stillWorks(t, in)
}

// TestAttackForksAtLimit reaches the memory limit with many processes that start
// others all the time. Programs are killed while gVisor's kernel sets up others.
// The kernel may end if the host gives it no memory for one: with version 1 it
// does not wait for that. The sandbox then ends with its reason. Or it is full.
func TestAttackForksAtLimit(t *testing.T) {
	need.Program(t, "python3")
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 192 << 20, PIDs: 256})
	limited(t, p, "memory")
	in := victim.(*gvisor.Instance)
	for want := shorter(200, 40); in.Killed() < want; {
		proc, err := victim.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", fmt.Sprintf(forker, 6, 60.0)}, Timeout: 5 * time.Second})
		if err == nil {
			_, err = proc.Wait(t.Context())
			proc.Close()
		}
		if exit, ended := hasEnded(t.Context(), victim); ended {
			if exit.Reason != sandbox.ReasonMemory {
				t.Errorf("the sandbox ended with %+v, want reason %s; %s", exit, sandbox.ReasonMemory, in.LimitState())
			}
			t.Logf("the kernel ended at the limit after %d programs: %s", in.Killed(), in.LimitState())
			stillWorks(t, neighbour)
			return
		}
		if in.Full() {
			t.Logf("full after %d programs", in.Killed())
			stillWorks(t, neighbour)
			return
		}
		if err != nil {
			recovers(t, victim)
		}
	}
	recovers(t, victim)
	stillWorks(t, neighbour)
}
