package update

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/sandbox"
)

// trialVariable marks the process of a program that is tried. It writes a line to
// its standard output when it is up, and ends when its standard input does.
const trialVariable = "ATOLL_MACHINE_TRIAL"

// up begins the line of a program that is up; its version follows.
const up = "up "

// lastWord is how long a program may take to end.
const lastWord = 30 * time.Second

// Try starts a program that was staged, with arguments, and ends it when it is
// up. A program that does not come up in time is not tried again. Before, the
// caller saves the database and lets go of everything that the program needs; after
// an error, it restores the database.
func (p Programs) Try(ctx context.Context, o Offer, args []string, within time.Duration) error {
	s, err := p.state()
	if err != nil {
		return err
	}
	if !p.Staged(o) {
		return refused(sandbox.CodeConflict, "the program of version %s has changed", o.Version)
	}
	s.Tried, s.Trying = &tried{o.Version, o.SHA256, true}, true
	if err := machine.WriteFile(p.stateFile(), s); err != nil {
		return err
	}
	failed := comesUp(ctx, p.path(o.SHA256), o.Version, args, within)
	if failed != nil {
		if ctx.Err() != nil {
			failed = errors.Join(failed, p.Forgive()) // it was interrupted
		}
		return failed
	}
	s.Tried.Failed, s.Trying, s.Current = false, false, s.Tried
	return errors.Join(machine.WriteFile(p.stateFile(), s), p.unsave())
}

func comesUp(ctx context.Context, path, version string, args []string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), trialVariable+"=1"), os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = lastWord
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return refused(sandbox.CodeUnavailable, "version %s cannot be started: %v", version, err)
	}
	// A program whose children keep its output is killed, too.
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWord, func() { _ = out.Close() }) })
	defer stop()
	line, _ := bufio.NewReader(io.LimitReader(out, 256)).ReadString('\n')
	_ = in.Close()
	end, done := time.AfterFunc(lastWord, func() { _ = cmd.Process.Kill() }), cmd.Wait()
	end.Stop()
	switch got, ok := strings.CutPrefix(strings.TrimSpace(line), up); {
	case !ok:
		return refused(sandbox.CodeUnavailable, "version %s does not come up: %v", version, done)
	case got != version:
		return refused(sandbox.CodeDenied, "the program that was signed as version %s says that it is %q", version, got)
	}
	return nil
}

// Trial returns whether this process is tried. Then the context ends when the
// trial does, and the caller calls up when it is up.
func Trial(ctx context.Context, version string) (_ context.Context, up func(), tried bool) {
	if os.Getenv(trialVariable) == "" {
		return ctx, func() {}, false
	}
	_ = os.Unsetenv(trialVariable) //nolint:forbidigo // commands on the machine must not inherit it
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, func() { fmt.Println(upLine(version)) }, true //nolint:forbidigo // standard output is the line to the program that tries this one
}

func upLine(version string) string { return up + version }

// Exec continues this process in a program. It returns only if it fails.
func Exec(path string, args []string) error {
	return syscall.Exec(path, append([]string{path}, args...), os.Environ()) //nolint:gosec // a program that was checked
}
