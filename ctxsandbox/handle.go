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

// SandboxHandle is one sandbox. Dropping it ends nothing. Its methods may be called
// concurrently.
type SandboxHandle struct {
	box   *atoll.Sandbox
	shell struct {
		mu   sync.Mutex
		path string // once it is known
	}
}

// Name returns the name of the sandbox.
func (h *SandboxHandle) Name() string { return h.box.Name() }

// ID returns the id of the sandbox, which is never used again.
func (h *SandboxHandle) ID() string { return string(h.box.ID()) }

// Labels returns the labels of the sandbox.
func (h *SandboxHandle) Labels() map[string]string { return h.box.Info().Labels }

// Sandbox returns Atoll's own handle, for what is not part of ctx.sandbox.
func (h *SandboxHandle) Sandbox() *atoll.Sandbox { return h.box }

// ExecResult is how a command ended and what it wrote.
type ExecResult struct {
	// ExitCode is that of the command, or 128 and the signal that ended it. A
	// command that its timeout ended has TimedOut set too.
	ExitCode       int
	Stdout, Stderr string
	Truncated      bool // there was more than MaxOutput of a stream
	TimedOut       bool
}

// OK reports whether the command ended well: by itself, with exit code 0.
func (r ExecResult) OK() bool { return r.ExitCode == 0 && !r.TimedOut }

// Output is what the command wrote to its standard output, followed by what it wrote
// to its standard error.
func (r ExecResult) Output() string { return r.Stdout + r.Stderr }

// Exec runs a program with arguments, without a shell, and waits for it. A command
// that fails is no error. Zero as timeout is DefaultTimeout. When ctx ends, so does
// the command; when this program dies, the command ends with its timeout.
func (h *SandboxHandle) Exec(ctx context.Context, program string, args []string, timeout time.Duration) (ExecResult, error) {
	return h.run(ctx, sandbox.Command{Args: append([]string{program}, args...), Timeout: timeout})
}

// Shell runs a script with bash if the image has it, else with /bin/sh, as Exec runs
// a program.
func (h *SandboxHandle) Shell(ctx context.Context, script string, timeout time.Duration) (ExecResult, error) {
	shell, err := h.findShell(ctx)
	if err != nil {
		return ExecResult{}, err
	}
	return h.run(ctx, sandbox.Command{Args: []string{shell, "-c", script}, Timeout: timeout})
}

// findShell looks for bash where images have it, once.
func (h *SandboxHandle) findShell(ctx context.Context) (string, error) {
	h.shell.mu.Lock()
	defer h.shell.mu.Unlock()
	for _, path := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"} {
		if h.shell.path != "" {
			break
		}
		switch _, err := h.box.Files().Stat(ctx, path); sandbox.CodeOf(err) {
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
	const file = "/tmp/main.py"
	if _, err := h.box.Files().Write(ctx, file, strings.NewReader(program), atoll.WriteOptions{}); err != nil {
		return ExecResult{}, err
	}
	return h.Exec(ctx, "python3", []string{file}, timeout)
}

// run runs a command and waits for it. The command is one in the background, because
// the sandbox keeps the logs of those.
func (h *SandboxHandle) run(ctx context.Context, cmd sandbox.Command) (res ExecResult, err error) {
	if cmd.Timeout == 0 {
		cmd.Timeout = DefaultTimeout
	}
	cmd.Background = true
	p, err := h.box.Exec(ctx, cmd)
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

// end kills a command whose caller does not wait any more.
func (h *SandboxHandle) end(ctx context.Context, id string) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	err := h.box.Kill(late, id, int(syscall.SIGKILL))
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil // it has ended
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

// Logs returns what the commands of the sandbox wrote, oldest command first, those in
// the foreground and in the background alike. A tail above zero asks for that many of
// the last lines. Only what the sandbox still keeps is there: the logs are bounded.
func (h *SandboxHandle) Logs(ctx context.Context, tail int) (string, error) {
	all, err := h.box.Processes(ctx)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, p := range all {
		if err := h.copyLog(ctx, p.ID, &out); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return "", err // a command without a log is no error
		}
	}
	return lastLines(out.String(), tail), nil
}

func (h *SandboxHandle) copyLog(ctx context.Context, id string, to *strings.Builder) error {
	log, err := h.box.Logs(ctx, id, atoll.LogOptions{})
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

// stopGrace is how long Stop waits for commands to end by themselves.
const stopGrace = 10 * time.Second

// Stop ends the sandbox and keeps its files. Where they cannot be kept it is
// CodeUnsupported, and nothing is changed.
func (h *SandboxHandle) Stop(ctx context.Context) error {
	_, err := h.box.Stop(ctx, stopGrace)
	return err
}

// Kill ends the sandbox at once, with its files. What is gone is success. Its
// workspace is kept.
func (h *SandboxHandle) Kill(ctx context.Context) error { return h.box.Destroy(ctx) }
