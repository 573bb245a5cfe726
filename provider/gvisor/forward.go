package gvisor

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// This file forwards calls to the guest. If the guest does not answer, the
// error says what is known about the sandbox.

// explain returns err or, if the sandbox has ended or is being destroyed, an
// error that says so.
func (in *Instance) explain(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if fate := in.known(); fate != nil {
		return fate
	}
	return err
}

// known returns an error if the sandbox has ended or is being destroyed, else
// nil.
func (in *Instance) known() error {
	if in.destroyed.Load() {
		return goneError(in.rec.ID)
	}
	select {
	case <-in.ended:
		return in.endedError()
	default:
		return nil
	}
}

// endedError is the error of every call on a sandbox that has ended.
func (in *Instance) endedError() error {
	if in.gone() {
		return goneError(in.rec.ID)
	}
	return &providerError{sandbox.CodeConflict, fmt.Sprintf("sandbox %s has ended: %s", in.rec.ID, in.exit().Detail), nil}
}

// use implements guestkit.Calls.Use. It waits until a paused sandbox is resumed
// before it connects.
func (in *Instance) use(ctx context.Context, lasting bool, f func(context.Context, *guest.Client) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	if !lasting {
		defer cancel(nil)
	}
	return in.begin(ctx, cancel, f)
}

// begin calls f with a context that is canceled if the sandbox does not answer.
func (in *Instance) begin(ctx context.Context, cancel context.CancelCauseFunc, f func(context.Context, *guest.Client) error) error {
	if err := in.reach(ctx); err != nil {
		return in.explain(err)
	}
	defer in.cancelWhenSilent(ctx, cancel, true)()
	return in.explain(answer(ctx, f(ctx, in.client)))
}

// Exec starts a command. See driver.Instance.
func (in *Instance) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	kills := in.memory.killed()
	p, err := in.Calls.Exec(ctx, cmd)
	return in.explainKill(p, kills), err
}

// Reconnect connects to a command. See driver.ProcessManager.
func (in *Instance) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	p, err := in.Calls.Reconnect(ctx, id)
	return in.explainKill(p, unknownKills), err
}

// Rejoin connects to a command again. See driver.Rejoiner.
func (in *Instance) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error) {
	p, at, err := in.Calls.Rejoin(ctx, id, from, skip)
	return in.explainKill(p, unknownKills), at, err
}

// endedFor tells the guest's client how the sandbox ended. The connection is
// lost a little before the kernel ends, so endedFor waits for that.
func (in *Instance) endedFor(ctx context.Context) (sandbox.Exit, bool) {
	ctx, cancel := context.WithTimeout(ctx, lostGrace)
	defer cancel()
	exit, err := in.Wait(ctx)
	return exit, err == nil
}

// lost tells the guest's client what happened to the sandbox when the
// connection to its guest is lost, or returns nil. Like endedFor, it waits for
// the end of the kernel.
func (in *Instance) lost() error {
	grace := time.NewTimer(lostGrace)
	defer grace.Stop()
	select {
	case <-in.ended:
	case <-in.released:
	case <-grace.C:
	}
	return in.known()
}

// explainKill adds the reason to a command that was killed for lack of memory.
// Inside, this looks like any other SIGKILL. kills is the number of such kills
// before the command started.
func (in *Instance) explainKill(p driver.Process, kills int) driver.Process {
	if p == nil {
		return nil
	}
	return &process{Process: p, in: in, kills: kills}
}

const unknownKills = -1

// process is a command whose errors describe the state of its sandbox.
type process struct {
	driver.Process
	in    *Instance
	kills int
}

// Wait waits for the command. See driver.Process.
func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := p.in.awaitUnlessStopped(ctx, p.Process.Wait)
	if err == nil && exit.Reason == sandbox.ReasonSignaled && p.starves(exit.Signal) && p.in.memory.killed() > max(p.kills, 0) {
		exit.Reason, exit.Detail = sandbox.ReasonMemory, "the sandbox reached its memory limit"
	}
	return exit, err
}

// starves reports whether a signal can be due to lack of memory. If the kernel
// cannot map a page, it sends one of the others.
func (p *process) starves(signal int) bool {
	others := signal == int(unix.SIGSEGV) || signal == int(unix.SIGBUS)
	return signal == int(unix.SIGKILL) || others && p.kills != unknownKills
}

// Unwrap returns the guest's process.
func (p *process) Unwrap() any { return p.Process }

// Signal signals the command. See driver.Process.
func (p *process) Signal(ctx context.Context, sig int) error {
	return p.in.explain(p.Process.Signal(ctx, sig))
}

// Resize sets the size of the terminal. See driver.Process.
func (p *process) Resize(ctx context.Context, size sandbox.WindowSize) error {
	return p.in.explain(p.Process.Resize(ctx, size))
}

// Stdout is the command's standard output. See driver.Process.
func (p *process) Stdout() io.Reader { return explainedReader{p.Process.Stdout(), p.in} }

// Stderr is the command's standard error. See driver.Process.
func (p *process) Stderr() io.Reader { return explainedReader{p.Process.Stderr(), p.in} }

type explainedReader struct {
	io.Reader
	in *Instance
}

func (r explainedReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	return n, r.in.explain(err)
}

// lostGrace is how long to wait for the end of the kernel after its guest has
// stopped answering.
const lostGrace = 5 * time.Second
