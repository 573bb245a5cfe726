package gvisor_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// stopGuest makes root inside stop the guest, and waits until it does not
// answer.
func stopGuest(t *testing.T, in driver.Instance) {
	t.Helper()
	proc := background(t, in, "read x; kill -STOP 1; touch /root/stopped; exec sleep 600")
	if _, err := io.WriteString(proc.Stdin(), "go\n"); err != nil {
		t.Fatal(err)
	}
	for answered := true; answered; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := in.(driver.FileSystem).Stat(ctx, "/")
		cancel()
		answered = err == nil
	}
}

// TestAttackStoppedGuest: root inside stops the guest, process 1, once or
// repeatedly. Commands end at their timeout, their processes are ended from
// outside, and the sandbox works afterwards.
func TestAttackStoppedGuest(t *testing.T) {
	p := newProvider(t, nil)
	const stopper = "import os, signal\nwhile True: os.kill(1, signal.SIGSTOP)"
	bounded := func(t *testing.T, in driver.Instance, cmd sandbox.Command) (exit sandbox.Exit, err error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // sleep 600 takes longer
		defer cancel()
		proc, err := in.Exec(ctx, &cmd)
		if err == nil {
			defer proc.Close()
			if cmd.Stdin {
				if _, err := proc.Stdin().Write([]byte("go\n")); err != nil {
					t.Fatal(err)
				}
			}
			exit, err = proc.Wait(ctx)
		}
		return exit, err
	}

	t.Run("by the command", func(t *testing.T) {
		in := create(t, p, sandbox.Spec{Image: "host"})
		exit, err := bounded(t, in, sandbox.Command{Shell: "setsid sleep 4242 & kill -STOP 1; exec sleep 600", Timeout: 2 * time.Second})
		if err != nil || exit.Reason != sandbox.ReasonTimeout {
			t.Errorf("it ended with %+v, %v", exit, err)
		}
		if o := sh(t, in, "pgrep -fx 'sleep 4242|sleep 600'"); o.exit.Code != 1 {
			t.Errorf("it has left processes: %+v", o)
		}
	})
	t.Run("before the command", func(t *testing.T) {
		in := create(t, p, sandbox.Spec{Image: "host"})
		stopGuest(t, in)
		exit, err := bounded(t, in, sandbox.Command{Shell: "exit 7", Timeout: 3 * time.Second})
		if err != nil || exit.Code != 7 {
			t.Errorf("it ended with %+v, %v", exit, err)
		}
		if o := sh(t, in, "ls /root/stopped"); o.exit.Code != 0 {
			t.Errorf("the attack did not run: %+v", o)
		}
	})
	t.Run("all the time", func(t *testing.T) {
		need.Program(t, "python3")
		in := create(t, p, sandbox.Spec{Image: "host"})
		exit, err := bounded(t, in, sandbox.Command{Args: []string{"python3", "-c", "input()\n" + stopper}, Stdin: true, Timeout: 2 * time.Second})
		if err != nil || exit.Reason != sandbox.ReasonTimeout {
			t.Errorf("it ended with %+v, %v", exit, err)
		}
		stillWorks(t, in)
	})
	t.Run("all the time by another", func(t *testing.T) {
		need.Program(t, "python3")
		in := create(t, p, sandbox.Spec{Image: "host"})
		if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", stopper}, Background: true}); err != nil {
			t.Fatal(err)
		}
		if exit, err := bounded(t, in, sandbox.Command{Shell: "exec sleep 600", Timeout: 2 * time.Second}); err == nil && exit.Reason != sandbox.ReasonTimeout || err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("it ended with %+v, %v", exit, err)
		}
	})
}
