//go:build linux

package target

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	logName   = "daemon.log"
	startLock = "start.lock"
	// LockName is the file that a daemon locks for as long as it runs.
	LockName = "daemon.lock"

	// startPatience is how long a daemon may take to answer for the first time.
	startPatience = 60 * time.Second
)

// StartDaemon starts a daemon that outlives this program, unless one runs, and
// returns its process when it answers; zero if one ran already. Of many that
// try at once, one starts it. dir is where it works, "/" if it is empty.
func (e *Env) StartDaemon(ctx context.Context, dir string, args []string) (pid int, err error) {
	if _, err := e.Node(); err != nil { // creates the state directory, or returns an error
		return 0, err
	}
	state, err := filepath.Abs(filepath.Dir(e.Socket()))
	if err != nil {
		return 0, err
	}
	release, err := LockFile(ctx, filepath.Join(state, startLock))
	if err != nil {
		return 0, err
	}
	defer release()
	if runs, err := awaitOther(ctx, e, filepath.Join(state, LockName)); err != nil || runs {
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
	return cmd.Process.Pid, awaitDaemon(ctx, e, cmd, filepath.Join(state, logName), before)
}

// awaitOther reports whether a daemon runs already. It waits for one that holds
// the lock of the state directory without a socket until it has started or ended.
func awaitOther(ctx context.Context, a *Env, lock string) (bool, error) {
	limit := cmp.Or(a.patience.answer, startPatience)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(StartPoll)
	defer tick.Stop()
	note := time.After(cmp.Or(a.patience.ping, PingTimeout))
	for {
		if runs, err := runs(ctx, a); err != nil || runs {
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
func awaitDaemon(ctx context.Context, a *Env, cmd *exec.Cmd, log string, from int64) error {
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
	tick := time.NewTicker(StartPoll)
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
			if pingFor(within, c, PingTimeout) == nil {
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

// LockFile waits for a lock that the kernel releases when its holder dies.
func LockFile(ctx context.Context, path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(StartPoll)
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
