package guestkit

import (
	"context"
	"errors"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
)

// killScript kills a process by number, with its group, and continues its
// parent, which is the guest unless a program inside lies.
const killScript = `p=$1; read -r s <"/proc/$p/stat" || exit 0
set -- ${s##*) }
kill -CONT "$2"; kill -KILL "-$3" || kill -KILL "$p" || ! [ -e "/proc/$p" ]`

// overdue implements guest.Options.Overdue: it kills by a program that the
// service runs, without the guest.
func (in *Instance) overdue(ctx context.Context, pid int) (later bool, err error) {
	s, ended, err := in.Ask(ctx)
	if err != nil || ended {
		return false, err
	}
	if s.State == sandbox.Paused {
		return true, nil
	}
	if pid <= 1 {
		return false, nil // it has not started
	}
	if in.runner == nil {
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the command's time is over, but the guest does not end it", Hint: "remove the sandbox"}
	}
	p, err := in.runner.Start(ctx, []string{"/bin/sh", "-c", killScript, "sh", strconv.Itoa(pid)}, nil)
	if err != nil {
		return false, err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })()
	for {
		_, err := p.Receive()
		var exit *Exit
		switch {
		case err == nil:
		case !errors.As(err, &exit):
			return false, err
		case exit.Code != 0:
			return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the command's time is over, but it cannot be ended: " + exit.Status}
		default:
			return false, nil
		}
	}
}
