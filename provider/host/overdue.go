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

// overdue implements guest.Options.Overdue. The guest may report any pid of
// this machine, so only a child of the guest is killed. A stopped guest is
// continued and ends the descendants.
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
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the command exceeded its timeout, but it is not a process of the guest", Cause: err}
	}
	if own, _ := unix.Getpgid(guest.Pid); group <= 1 || group == own {
		group = pid // it does not lead a group and is in no command's group
	} else {
		group = -group
	}
	if err := unix.Kill(group, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the command exceeded its timeout, but it cannot be ended", Cause: err}
	}
	return false, nil
}

// parentOf returns the parent and the process group of a process.
func parentOf(pid int) (parent, group int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	_, err = fmt.Sscanf(rest, " %s %d %d", new(string), &parent, &group)
	return parent, group, err
}
