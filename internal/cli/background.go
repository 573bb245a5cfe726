//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	logName   = "daemon.log"
	startLock = "start.lock"
	// lockName is the file that a daemon locks for as long as it runs.
	lockName = "daemon.lock"

	// startPatience is how long a daemon may take to answer for the first time.
	startPatience = 60 * time.Second
)

// startDaemon starts a daemon that outlives this program, unless one runs, and
// returns its process when it answers; zero if one ran already. Of many that
// try at once, one starts it. dir is where it works, "/" if it is empty.
func (a *Env) startDaemon(ctx context.Context, dir string, args []string) (pid int, err error) {
	if _, err := a.node(); err != nil { // creates the state directory, or returns an error
		return 0, err
	}
	state, err := filepath.Abs(filepath.Dir(a.socket()))
	if err != nil {
		return 0, err
	}
	release, err := lockFile(ctx, filepath.Join(state, startLock))
	if err != nil {
		return 0, err
	}
	defer release()
	if runs, err := a.awaitOther(ctx, filepath.Join(state, lockName)); err != nil || runs {
		return 0, err
	}
	log, err := os.OpenFile(filepath.Join(state, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, append([]string{"up", "--state-dir", state}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if dir == "" {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C here is not for it
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, a.awaitDaemon(ctx, cmd, filepath.Join(state, logName), before)
}

// awaitOther reports whether a daemon runs already. It waits for one that holds
// the lock of the state directory without a socket until it has started or ended.
func (a *Env) awaitOther(ctx context.Context, lock string) (bool, error) {
	limit := cmp.Or(a.patience.answer, startPatience)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	note := time.After(cmp.Or(a.patience.ping, pingTimeout))
	for {
		if runs, err := a.runs(ctx); err != nil || runs {
			return runs, err
		}
		if held, err := isLocked(lock); err != nil || !held {
			return false, err
		}
		select {
		case <-tick.C:
		case <-note:
			a.Say("note", "waiting for a daemon that is starting or ending")
		case <-ctx.Done():
			return false, ctx.Err()
		case <-within.Done():
			return false, silent(filepath.Dir(lock), limit, nil)
		}
	}
}

// isLocked reports whether a process holds the lock of a file.
func isLocked(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// awaitDaemon waits until a daemon that was started answers. If it does not in
// time, or if ctx ends, awaitDaemon ends it.
func (a *Env) awaitDaemon(ctx context.Context, cmd *exec.Cmd, log string, from int64) error {
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the log has its error
		close(ended)
	}()
	c, err := a.socketClient("")
	if err != nil {
		return err
	}
	defer c.Close()
	within, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return startError(log, from)
		case <-within.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-ended
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &sandbox.Error{
				Code: sandbox.CodeTimeout, Op: "daemon.start", Message: "the daemon did not answer within " + startPatience.String() + " of its start, and was ended",
				Hint: "try again when the machine is less busy, or run it in the foreground to see more, with: atoll up",
			}
		case <-tick.C:
			if pingFor(within, c, pingTimeout) == nil {
				return nil
			}
		}
	}
}

// startError is the error that a daemon which ended wrote to its log, with its
// hint.
func startError(log string, from int64) error {
	e := &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "daemon.start", Message: "the daemon ended at once: see " + log,
		Hint: "run it in the foreground to see more, with: atoll up",
	}
	f, err := os.Open(log)
	if err != nil {
		return e
	}
	defer f.Close()
	const enough = 64 << 10
	text, _ := io.ReadAll(io.NewSectionReader(f, from, enough))
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if rest, found := strings.CutPrefix(line, "atoll: error: "); found {
			e.Message = "the daemon ended at once: " + rest
		}
		if rest, found := strings.CutPrefix(line, "atoll: hint: "); found {
			e.Hint = rest
		}
	}
	return e
}

// lockFile waits for a lock that the kernel releases when its holder dies.
func lockFile(ctx context.Context, path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-tick.C:
		}
	}
}

// detach starts the daemon that a call of `atoll up` describes in the
// background.
func (a upCommands) detach(ctx context.Context, cmd *cobra.Command) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	pid, err := a.startDaemon(ctx, here, sameFlags(cmd, "detach", "state-dir"))
	switch {
	case err != nil:
		return err
	case pid == 0:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Message: "a daemon already runs on this state directory",
			Hint: "use that one, or end it first with: atoll down",
		}
	}
	a.Notef("atoll: listening on %s, as process %d\n", a.socket(), pid)
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
	release, err := lockFile(ctx, lock)
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
	tick := time.NewTicker(startPoll)
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
