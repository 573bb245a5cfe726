package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// overdue implements guest.Options.Overdue. The guest may lie about pid, which is
// of this machine: nothing but a child of the guest is killed. The guest goes on
// if it was stopped, and ends what the child has started.
func (in *Instance) overdue(_ context.Context, pid int) (later bool, err error) {
	guest := in.supervisor.Process
	if err := guest.Signal(unix.SIGCONT); err != nil {
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the sandbox's guest has ended", Cause: err}
	}
	parent, group, err := parentOf(pid)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil || parent != guest.Pid:
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the command's time is over, but it is no process of the guest", Cause: err}
	}
	if own, _ := unix.Getpgid(guest.Pid); group <= 1 || group == own {
		group = pid // it leads no group, and is not in one of commands
	} else {
		group = -group
	}
	if err := unix.Kill(group, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the command's time is over, but it cannot be ended", Cause: err}
	}
	return false, nil
}

// parentOf reads the parent and the process group of a process.
func parentOf(pid int) (parent, group int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	_, err = fmt.Sscanf(rest, " %s %d %d", new(string), &parent, &group)
	return parent, group, err
}
