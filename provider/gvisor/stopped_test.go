package gvisor_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// A file server or kernel that a signal has stopped does not block callers for
// long, not even a Wait for a command without a timeout, and Probe reports it.
// After SIGCONT the sandbox works.
func TestStoppedProcesses(t *testing.T) {
	gvisor.SetStoppedTime(4 * time.Second)
	t.Cleanup(func() { gvisor.SetStoppedTime(time.Minute) })
	p := newProvider(t, func(o *gvisor.Options) { o.Attached = false })
	in := create(t, p, sandbox.Spec{Image: "host", Mounts: []sandbox.Mount{{Source: t.TempDir(), Target: "/shared"}}})
	own := in.(*gvisor.Instance)
	for what, pid := range map[string]int{"file server": own.FileServer(), "kernel": own.Kernel()} {
		if pid == 0 {
			t.Fatalf("there is no %s", what)
		}
		running, err := in.Exec(t.Context(), &sandbox.Command{Shell: "while ! [ -e /go ]; do sleep 0.1; done; rm /go; ls /shared; exit 5"})
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		bounded := func(name string, call func(context.Context) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := call(ctx); sandbox.CodeOf(err) != sandbox.CodeUnavailable && p.ErrorCode(err) != sandbox.CodeUnavailable || ctx.Err() != nil {
				t.Errorf("with the %s stopped, %s: %v", what, name, err)
			}
		}
		bounded("exec", func(ctx context.Context) error {
			proc, err := in.Exec(ctx, &sandbox.Command{Shell: "ls /shared"})
			if err == nil {
				defer proc.Close()
				_, err = proc.Wait(ctx)
			}
			return err
		})
		bounded("a memory snapshot", func(ctx context.Context) error {
			_, err := in.(driver.Snapshotter).Snapshot(ctx, driver.SnapshotOptions{ID: "none", Memory: true})
			return err
		})
		bounded("a command that runs", func(ctx context.Context) error { _, err := running.Wait(ctx); return err })
		facts, err := p.Probe(t.Context())
		told := ""
		for _, f := range facts.Findings {
			if f.Subject == "stopped" {
				told = f.Message
			}
		}
		if err != nil || !strings.Contains(told, "its "+what) {
			t.Errorf("Probe reports %q, %v", told, err)
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if o := sh(t, in, "touch /go; echo again"); o.stdout != "again\n" {
			t.Errorf("when the %s goes on: %+v", what, o)
		}
		if exit, err := running.Wait(t.Context()); err != nil || exit.Code != 5 {
			t.Errorf("the running command ended with %+v, %v", exit, err)
		}
		_ = running.Close()
	}
}

// TestAttachAgain repeatedly attaches to a sandbox that does not answer. This
// must leave no goroutines, and the sandbox can be used once it answers.
func TestAttachAgain(t *testing.T) {
	state := t.TempDir()
	p, in := unattached(t, state, sandbox.Spec{ID: "silent", Image: "host"})
	p.Close()
	kernel := in.(*gvisor.Instance).Kernel()
	if err := syscall.Kill(kernel, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(kernel, syscall.SIGCONT) }()
	p = newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	attach := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		again, err := p.Attach(ctx, "silent")
		if err != nil {
			return
		}
		if _, err := again.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); err == nil {
			t.Error("a stopped sandbox runs commands")
		}
	}
	attach()
	before := runtime.NumGoroutine()
	for range 20 {
		attach()
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before+5; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines after 20 attempts more, and %d before", runtime.NumGoroutine(), before)
		}
	}
	if err := syscall.Kill(kernel, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	again, err := p.Attach(t.Context(), "silent")
	if err != nil {
		t.Fatal(err)
	}
	proc, err := again.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if exit, err := proc.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("afterwards: %v, %v", exit, err)
	}
}

// TestControlServerEnds lets gVisor's kernel run out of descriptors for a moment, in
// which it gets a connection. It accepts no other one afterwards. Calls that need
// it fail and say so, and commands go on.
func TestControlServerEnds(t *testing.T) {
	need.Full(t, "it waits for half a minute")
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{Image: "host"})
	own := in.(*gvisor.Instance)
	answers := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := own.Status(ctx)
		return err == nil
	}
	var usual unix.Rlimit
	if err := unix.Prlimit(own.Kernel(), unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		need.Root(t, err.Error())
		t.Fatal(err)
	}
	allow := func(files uint64) {
		if err := unix.Prlimit(own.Kernel(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: usual.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the kernel accepts no connections", func() bool {
		allow(1)
		answers(time.Second)
		allow(usual.Cur)
		return !answers(5 * time.Second)
	})
	var all sync.WaitGroup
	for what, call := range map[string]func() error{
		"pausing":  func() error { return in.(driver.Pauser).Pause(t.Context()) },
		"resizing": func() error { return in.(driver.Resizer).Resize(t.Context(), sandbox.Resources{PIDs: 100}) },
	} {
		all.Go(func() {
			err := call()
			if e, ok := errors.AsType[*sandbox.Error](err); !ok || p.ErrorCode(err) != sandbox.CodeUnavailable || e.Hint == "" {
				t.Errorf("%s: %v, want %s and a hint", what, err, sandbox.CodeUnavailable)
			}
		})
	}
	all.Wait()
	stillWorks(t, in)
}
