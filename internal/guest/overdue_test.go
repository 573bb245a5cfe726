package guest_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// stopGuest stops the process of a guest until the end of the test.
func stopGuest(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// TestAttackTimeoutOfStoppedGuest checks that calls to a stopped guest do not
// block much longer than the command's timeout, and that the provider ends the
// command.
func TestAttackTimeoutOfStoppedGuest(t *testing.T) {
	t.Parallel()
	refused := &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no way to end it"}
	for _, tc := range []struct {
		name    string
		overdue func(context.Context, int) (bool, error)
		want    sandbox.Reason
		message string
	}{
		{"nobody ends it", nil, sandbox.ReasonLost, "may run on"},
		{"the provider cannot", func(context.Context, int) (bool, error) { return false, refused }, sandbox.ReasonLost, "no way to end it"},
		{"the provider does", func(_ context.Context, pid int) (bool, error) { return false, syscall.Kill(pid, syscall.SIGKILL) }, sandbox.ReasonTimeout, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			conn, cmd := startGuest(t, guest.HostArgs(dir), nil)
			c := dial(t, conn, dir, guest.Options{Overdue: tc.overdue})
			ctx := testContext(t)
			p, err := c.Exec(ctx, &sandbox.Command{Shell: "echo begun; exec sleep 600", Timeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			stopGuest(t, cmd.Process.Pid)
			began := time.Now()
			out, readErr := io.ReadAll(p.Stdout())
			exit, err := p.Wait(ctx)
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			if exit.Reason != tc.want {
				t.Errorf("it ended with %+v, want %s", exit, tc.want)
			}
			if tc.message == "" {
				if err != nil || readErr != nil {
					t.Errorf("waiting: %v; reading: %v", err, readErr)
				}
				if !strings.HasPrefix("begun\n", string(out)) {
					t.Errorf("the output is %q", out)
				}
				return
			}
			var typed *sandbox.Error
			if !errors.As(err, &typed) || typed.Code != sandbox.CodeUnavailable || !strings.Contains(typed.Message, tc.message) {
				t.Errorf("the error is %v", err)
			}
			_ = syscall.Kill(-p.Info().PID, syscall.SIGKILL)
		})
	}
}

// TestAttackStartOfStoppedGuest checks the same for the start of a command.
func TestAttackStartOfStoppedGuest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conn, cmd := startGuest(t, guest.HostArgs(dir), nil)
	c := dial(t, conn, dir, guest.Options{})
	stopGuest(t, cmd.Process.Pid)
	for _, hold := range []time.Duration{0, time.Minute} {
		began := time.Now()
		_, err := c.Exec(testContext(t), &sandbox.Command{Args: []string{"true"}, Timeout: 100 * time.Millisecond, Hold: hold})
		wantCode(t, err, sandbox.CodeUnavailable)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}

// TestOverduePaused checks that Overdue is called again if the sandbox is
// paused, and that the guest's report counts when it arrives.
func TestOverduePaused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conn, cmd := startGuest(t, guest.HostArgs(dir), nil)
	asked := make(chan struct{}, 100)
	c := dial(t, conn, dir, guest.Options{Overdue: func(context.Context, int) (bool, error) {
		asked <- struct{}{}
		return true, nil
	}})
	ctx := testContext(t)
	p, err := c.Exec(ctx, &sandbox.Command{Shell: "exec sleep 600", Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	stopGuest(t, cmd.Process.Pid)
	<-asked
	<-asked
	_ = syscall.Kill(cmd.Process.Pid, syscall.SIGCONT)
	if exit, err := p.Wait(ctx); err != nil || exit.Reason != sandbox.ReasonTimeout {
		t.Errorf("it ended with %+v, %v", exit, err)
	}
}
