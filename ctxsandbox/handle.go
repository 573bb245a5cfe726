package ctxsandbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// SandboxHandle is a handle on one sandbox. Dropping it does not end the
// sandbox. Its methods may be called concurrently.
type SandboxHandle struct {
	sandbox *atoll.Sandbox
	shell   struct {
		mu   sync.Mutex
		path string // empty until it is known
	}
}

// Name returns the name of the sandbox.
func (h *SandboxHandle) Name() string { return h.sandbox.Name() }

// ID returns the id of the sandbox. It is never reused.
func (h *SandboxHandle) ID() string { return string(h.sandbox.ID()) }

// Labels returns the labels of the sandbox.
func (h *SandboxHandle) Labels() map[string]string { return h.sandbox.Info().Labels }

// Sandbox returns the underlying *atoll.Sandbox, for operations that are not
// part of ctx.sandbox.
func (h *SandboxHandle) Sandbox() *atoll.Sandbox { return h.sandbox }

// ExecResult is the exit and the output of a command.
type ExecResult struct {
	// ExitCode is the exit code of the command, or 128+n if signal n ended it. If
	// the timeout ended it, TimedOut is set too.
	ExitCode       int
	Stdout, Stderr string
	Truncated      bool // a stream had more than MaxOutput bytes
	TimedOut       bool
}

// OK reports whether the command exited with code 0.
func (r ExecResult) OK() bool { return r.ExitCode == 0 && !r.TimedOut }

// Output returns the standard output of the command, followed by its standard
// error.
func (r ExecResult) Output() string { return r.Stdout + r.Stderr }

// Exec runs a program with arguments, without a shell, and waits for it. An
// exit code other than 0 is not an error. A zero timeout is DefaultTimeout.
// When ctx ends, the command is killed. If this program crashes, the command
// ends when its timeout is over.
func (h *SandboxHandle) Exec(ctx context.Context, program string, args []string, timeout time.Duration) (ExecResult, error) {
	return h.run(ctx, sandbox.Command{Args: append([]string{program}, args...), Timeout: timeout})
}

// Shell is like Exec, but runs a script with bash if the image has it, else
// with /bin/sh.
func (h *SandboxHandle) Shell(ctx context.Context, script string, timeout time.Duration) (ExecResult, error) {
	shell, err := h.findShell(ctx)
	if err != nil {
		return ExecResult{}, err
	}
	return h.run(ctx, sandbox.Command{Args: []string{shell, "-c", script}, Timeout: timeout})
}

// findShell looks for bash in the usual places, once.
func (h *SandboxHandle) findShell(ctx context.Context) (string, error) {
	h.shell.mu.Lock()
	defer h.shell.mu.Unlock()
	for _, path := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"} {
		if h.shell.path != "" {
			break
		}
		switch _, err := h.sandbox.Files().Stat(ctx, path); sandbox.CodeOf(err) {
		case "":
			h.shell.path = path
		case sandbox.CodeNotFound:
		default:
			return "", err
		}
	}
	if h.shell.path == "" {
		h.shell.path = "/bin/sh"
	}
	return h.shell.path, nil
}

func (h *SandboxHandle) python(ctx context.Context, program string, timeout time.Duration) (ExecResult, error) {
	return h.Exec(ctx, "python3", []string{"-c", program}, timeout)
}

// run runs a command and waits for it. It runs the command in the background,
// because the sandbox keeps the logs of background commands.
func (h *SandboxHandle) run(ctx context.Context, cmd sandbox.Command) (res ExecResult, err error) {
	if cmd.Timeout == 0 {
		cmd.Timeout = DefaultTimeout
	}
	cmd.Background = true
	p, err := h.sandbox.Exec(ctx, cmd)
	if err != nil {
		return res, err
	}
	var out, errs limited
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(&out, p.Stdout()) })
	readers.Go(func() { _, _ = io.Copy(&errs, p.Stderr()) })
	exit, err := p.Wait(ctx)
	if ctx.Err() != nil {
		err = errors.Join(err, h.end(ctx, p.Info().ID))
	}
	if err == nil {
		readers.Wait()
	}
	err = errors.Join(err, p.Close())
	readers.Wait()
	return ExecResult{
		ExitCode: exit.Code, Stdout: string(out.kept), Stderr: string(errs.kept),
		Truncated: out.cut || errs.cut, TimedOut: exit.Reason == sandbox.ReasonTimeout,
	}, err
}

// end kills a command whose caller no longer waits for it.
func (h *SandboxHandle) end(ctx context.Context, id string) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	err := h.sandbox.Kill(late, id, int(syscall.SIGKILL))
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil // the command has ended
	}
	return err
}

// limited keeps the first MaxOutput bytes.
type limited struct {
	kept []byte
	cut  bool
}

func (l *limited) Write(p []byte) (int, error) {
	keep := min(len(p), MaxOutput-len(l.kept))
	l.cut = l.cut || keep < len(p)
	l.kept = append(l.kept, p[:keep]...)
	return len(p), nil
}

// Logs returns the output of all commands of the sandbox, oldest command first.
// If tail is above zero, it returns only that many last lines. The logs are
// bounded, so the oldest output may be missing.
func (h *SandboxHandle) Logs(ctx context.Context, tail int) (string, error) {
	all, err := h.sandbox.Processes(ctx)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, p := range all {
		if err := h.copyLog(ctx, p.ID, &out); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return "", err // a command without a log is not an error
		}
	}
	return lastLines(out.String(), tail), nil
}

func (h *SandboxHandle) copyLog(ctx context.Context, id string, to *strings.Builder) error {
	log, err := h.sandbox.Logs(ctx, id, atoll.LogOptions{})
	if err != nil {
		return err
	}
	defer log.Close()
	for {
		chunk, err := log.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		to.Write(chunk.Data)
	}
}

func lastLines(text string, n int) string {
	if n <= 0 {
		return text
	}
	end := strings.TrimSuffix(text, "\n")
	for i := len(end); ; n-- {
		if i = strings.LastIndexByte(end[:i], '\n'); i < 0 {
			return text
		}
		if n == 1 {
			return text[i+1:]
		}
	}
}

// stopGrace is how long Stop waits for commands to end after SIGTERM.
const stopGrace = 10 * time.Second

// Stop stops the sandbox and keeps its files. If the provider cannot keep them,
// Stop returns CodeUnsupported and changes nothing.
func (h *SandboxHandle) Stop(ctx context.Context) error {
	_, err := h.sandbox.Stop(ctx, stopGrace)
	return err
}

// Kill ends the sandbox at once and deletes its files. Its workspace is kept. A
// sandbox that is already gone is success.
func (h *SandboxHandle) Kill(ctx context.Context) error { return h.sandbox.Destroy(ctx) }
