package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// A kernel can stop answering without a pause: its process was stopped by a
// signal, or it hangs. It has not ended and may continue at any time. Callers
// must not block on it meanwhile, so they check the kernel after silentAfter.
const (
	silentAfter = 3 * time.Second
	// proofTime is how long a running kernel may take to answer the simplest
	// request. It is long because the machine may be busy.
	proofTime = 20 * time.Second
)

var errSilent = errors.New("the sandbox does not answer")

// frozen is the error of calls on a sandbox that does not answer.
func (in *Instance) frozen() error {
	how := "its guest is stopped or its kernel hangs"
	if in.memory.full.Load() {
		how = "its memory is full of data that no program holds, such as extended attributes; it goes on when it has more: atoll update --memory SIZE"
	} else if what := in.rec.stopped(); what != "" {
		how = "its " + what + " is stopped by a signal"
	}
	return &providerError{sandbox.CodeUnavailable, fmt.Sprintf("sandbox %s cannot be reached: %s", in.rec.ID, how), errSilent}
}

// stuck reports whether the sandbox is known not to answer.
func (in *Instance) stuck() bool {
	return in.memory.full.Load() || in.rec.stopped() != "" && !in.stateDir.held()
}

// stopped names the process of the sandbox that is stopped by a signal. Without
// its file server, a kernel blocks forever on shared files.
func (r *record) stopped() string {
	for what, p := range map[string]processRef{"kernel": r.Kernel, "file server": r.Gofer} {
		if p.PID != 0 && p.stopped() {
			return fmt.Sprintf("%s, process %d,", what, p.PID)
		}
	}
	return ""
}

// stoppedTime is how long a process of the sandbox may be stopped before
// callers that wait for a command get an error.
var stoppedTime = time.Minute

// awaitUnlessStopped waits for a command and gives up when the sandbox is
// stopped for too long. The command continues with the sandbox unless the
// caller closes it.
func (in *Instance) awaitUnlessStopped(ctx context.Context, wait func(context.Context) (sandbox.Exit, error)) (sandbox.Exit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var since time.Time
	var t *time.Timer
	armed := make(chan struct{})
	t = time.AfterFunc(silentAfter, func() {
		<-armed
		switch {
		case ctx.Err() != nil:
			return
		case !in.stuck():
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= stoppedTime:
			cancel(in.frozen())
			return
		}
		t.Reset(silentAfter)
	})
	close(armed)
	defer t.Stop()
	exit, err := wait(ctx)
	return exit, answer(ctx, err)
}

// probeStopped reports sandboxes that are stopped by a signal.
func probeStopped(sandboxes string) []driver.Finding {
	entries, _ := os.ReadDir(sandboxes) // unreadable directories are not reported
	var names []string
	for _, e := range entries {
		b := stateDir{filepath.Join(sandboxes, e.Name())}
		if r, err := b.load(); err == nil {
			if what := r.stopped(); what != "" && !b.held() {
				names = append(names, e.Name()+" (its "+strings.TrimSuffix(what, ",")+")")
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []driver.Finding{{
		Severity: driver.Warning, Subject: "stopped",
		Message: "a signal has stopped sandboxes, which do not answer: " + strings.Join(names, ", "), Fix: "kill -CONT the process, or remove the sandbox",
	}}
}

// cancelWhenSilent cancels a context when the kernel does not answer, until stop is
// called. With ask it also checks the guest, unless the sandbox is paused, else
// that the kernel accepts calls.
func (in *Instance) cancelWhenSilent(ctx context.Context, cancel context.CancelCauseFunc, ask bool) (stop func() bool) {
	var t *time.Timer
	armed := make(chan struct{})
	t = time.AfterFunc(silentAfter, func() {
		<-armed
		rest, err := in.stateDir.rest()
		switch {
		case ctx.Err() != nil:
		case in.stuck(), ask && err == nil && rest == awake && in.silent(ctx):
			cancel(in.frozen())
		case !ask && in.deaf(ctx):
			cancel(in.deafError())
		default:
			t.Reset(silentAfter)
		}
	})
	close(armed)
	return t.Stop
}

// silent reports whether the guest does not answer, even after the kernel has
// sent it SIGCONT.
func (in *Instance) silent(ctx context.Context) bool {
	in.mu.Lock()
	client := in.client
	in.mu.Unlock()
	if client == nil {
		return false
	}
	ask, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	_ = withKernel(ask, in.stateDir.dir, func(conn *urpc.Client) error { return contGuest(conn, in.rec.Inside) })
	client.Ping(ask)
	return ask.Err() != nil && ctx.Err() == nil
}

// deaf reports whether the kernel accepts no calls although it runs. gVisor's
// kernel stops accepting them for good when the host once refuses it the memory or
// the descriptor for one. A kernel that is busy reads a call, and answers later.
func (in *Instance) deaf(ctx context.Context) bool {
	ask, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	conn, err := dialControl(ask, in.stateDir.dir)
	if err == nil {
		defer conn.Close()
		_, err = fmt.Fprintf(conn.Socket, `{"method":%q,"arg":{"OnlyMetrics":"^%s$"}}`, boot.MetricsExport, kernel.StatusMetric)
	}
	for err == nil && unread(conn.Socket.FD()) {
		select {
		case <-time.After(wakePoll):
		case <-ask.Done():
			err = ask.Err()
		}
	}
	return ask.Err() != nil && ctx.Err() == nil
}

// unread reports whether the other end of a socket has not read what was written.
func unread(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && n > 0
}

// deafError is the error of calls on a sandbox whose kernel accepts none.
func (in *Instance) deafError() error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Cause: errSilent,
		Message: fmt.Sprintf("the kernel of sandbox %s accepts no calls any more: the machine once had no memory or descriptor for one. "+
			"It cannot be paused, saved with its memory, changed or reached by another daemon", in.rec.ID),
		Hint: "commands and files go on while this daemon runs: copy what you need with atoll cp, and remove the sandbox",
	}
}

// answer returns err, or the reason why the call was canceled.
func answer(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

// watched calls f, which makes calls to the kernel, and gives up when the
// kernel is stopped.
func (in *Instance) watched(ctx context.Context, f func(context.Context) error) error {
	if in.stuck() {
		return in.frozen()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer in.cancelWhenSilent(ctx, cancel, false)()
	return answer(ctx, f(ctx))
}
