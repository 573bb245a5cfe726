//go:build linux

package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/sandbox"
)

// detach starts the daemon that a call of `atoll up` describes in the
// background.
func (a upCommands) detach(ctx context.Context, cmd *cobra.Command) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	pid, err := a.StartDaemon(ctx, here, sameFlags(cmd, "detach", "state-dir"))
	switch {
	case err != nil:
		return err
	case pid == 0:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Message: "a daemon already runs on this state directory",
			Hint: "use that one, or end it first with: atoll down",
		}
	}
	a.Notef("atoll: listening on %s, as process %d\n", a.Socket(), pid)
	if cmd.Flags().Changed("e2b") {
		a.Notef("atoll: serving clients of E2B; see: atoll e2b env\n")
	}
	return nil
}

// sameFlags are the flags that a command was called with, but for some.
func sameFlags(cmd *cobra.Command, without ...string) (args []string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		for _, name := range without {
			if f.Name == name {
				return
			}
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				args = append(args, "--"+f.Name+"="+v)
			}
			return
		}
		args = append(args, "--"+f.Name+"="+f.Value.String())
	})
	return args
}

// endDaemon asks the daemon that holds a lock to end, and waits until it has.
func (a upCommands) endDaemon(ctx context.Context, lock string) error {
	f, err := os.OpenFile(lock, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		a.Say("note", "no daemon runs")
		return nil
	}
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: "daemon.stop", Subject: lock, Message: "the daemon belongs to another user", Cause: err}
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		a.Say("note", "no daemon runs")
		return nil
	}
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0)
	// The process that holds the lock is alive and wrote this.
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || pid <= 1 {
		return &sandbox.Error{Code: sandbox.CodeConflict, Op: "daemon.stop", Message: "the daemon is only just starting", Hint: "try again"}
	}
	process, err := unix.PidfdOpen(pid, 0) // negative if it has ended
	if err == nil {
		defer unix.Close(process)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: "daemon.stop", Message: "the daemon belongs to another user", Cause: err}
	}
	// It releases the lock, and then the sandboxes of its pool.
	release, err := target.LockFile(ctx, lock)
	if err == nil {
		release()
		err = awaitProcess(ctx, process)
	}
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeTimeout, Op: "daemon.stop", Message: fmt.Sprintf("process %d has not ended yet", pid), Hint: "it waits for requests that still run; see --time", Cause: err}
	}
	return nil
}

// awaitProcess waits for the end of a process. A negative descriptor means that
// there is no process.
func awaitProcess(ctx context.Context, pidfd int) error {
	if pidfd < 0 {
		return nil
	}
	tick := time.NewTicker(target.StartPoll)
	defer tick.Stop()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
