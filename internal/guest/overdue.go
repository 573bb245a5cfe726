package guest

import (
	"context"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// The guest ends a command that exceeds its timeout. But root in the sandbox
// can stop the guest, replace it or keep it busy, so the client checks the
// time, too. It waits longer than the guest and then asks the provider to end
// the command from outside.
const (
	// startGrace is how much longer than its timeout a command may take to start.
	startGrace = 5 * time.Second
	// overdueGrace is how long after a timeout the guest may end a command.
	overdueGrace = 3 * time.Second
	// overdueTime limits ending a command from outside.
	overdueTime = 10 * time.Second
	// lastWords is how long the guest has to report the end of a command that was
	// ended from outside.
	lastWords = time.Second
)

var (
	errNotStarted = &sandbox.Error{
		Code: sandbox.CodeUnavailable, Message: "the sandbox's guest did not start the command within its timeout: it is stopped or hangs",
	}
	errNotEnded = &sandbox.Error{
		Code:    sandbox.CodeUnavailable,
		Message: "the command's time is over, but the sandbox's guest does not end it: it is stopped or hangs, and the command may run on",
		Hint:    "remove the sandbox",
	}
)

// overdue is the state of a command that the guest did not end in time.
type overdue struct {
	over bool // the client has stopped waiting; else the provider is about to kill it
	exit sandbox.Exit
	err  error
}

// start starts a command and waits until it runs, but not much longer than its
// timeout.
func (c *Client) start(ctx context.Context, m wire.Method, request []byte, cmd *sandbox.Command) (*process, error) {
	if cmd.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, cmd.Timeout+startGrace, errNotStarted)
		defer cancel()
	}
	op, err := c.open(ctx, m, request)
	if err == nil {
		var p *process
		p, _, err = c.joined(ctx, op, joining{input: cmd.Stdin, positions: m == wire.ExecHeld, timeout: cmd.Timeout})
		if err == nil {
			return p, nil
		}
	}
	if isContext(err) && context.Cause(ctx) == error(errNotStarted) {
		err = errNotStarted
	}
	return nil, err
}

// setTimer starts the timer for a command's timeout.
func (p *process) setTimer(timeout time.Duration) {
	if timeout <= 0 {
		return
	}
	killed := int(syscall.SIGKILL)
	exit := sandbox.Exit{Code: 128 + killed, Signal: killed, Reason: sandbox.ReasonTimeout, Detail: "ended after " + timeout.String()}
	ready := make(chan struct{})
	p.timer = time.AfterFunc(timeout+overdueGrace, func() {
		<-ready
		p.enforce(exit)
	})
	close(ready)
}

// enforce asks the provider to end an overdue command.
func (p *process) enforce(exit sandbox.Exit) {
	select {
	case <-p.ended:
		return
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), overdueTime)
	defer cancel()
	p.late.Store(&overdue{exit: exit})
	later, err := false, error(errNotEnded)
	if f := p.client.opts.Overdue; f != nil {
		later, err = f(ctx, p.info.PID)
	}
	if later {
		p.timer.Reset(overdueGrace)
		return
	}
	select {
	case <-p.ended:
		return
	case <-time.After(lastWords):
	}
	late := &overdue{over: true, exit: exit, err: err}
	if err != nil {
		late.exit = sandbox.Exit{Code: -1, Reason: sandbox.ReasonLost}
	}
	p.late.Store(late)
	p.op.Leave()
}

// whyKilled corrects the guest's report about a command that was killed from
// outside, because the guest does not know the reason.
func (p *process) whyKilled(exit sandbox.Exit) sandbox.Exit {
	if late := p.late.Load(); late != nil && exit.Reason == sandbox.ReasonSignaled && exit.Signal == late.exit.Signal {
		return late.exit
	}
	return exit
}
