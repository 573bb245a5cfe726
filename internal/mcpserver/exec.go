package mcpserver

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/offline"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Bounds of commands, in seconds.
const (
	defaultTimeout = 60
	maxTimeout     = 3600
	// maxBackground is a week.
	maxBackground = 7 * 24 * 3600
)

// outputGrace is how long to wait for output after a command has ended. A
// background process may hold its streams open.
const outputGrace = 500 * time.Millisecond

// teardown bounds the removal of a sandbox after a run.
const teardown = 30 * time.Second

// commandArgs are a command.
type commandArgs struct {
	Command        string            `json:"command,omitempty" jsonschema:"script for /bin/sh; this or args is needed"`
	Args           []string          `json:"args,omitempty" jsonschema:"program and arguments, without a shell"`
	Dir            string            `json:"dir,omitempty" jsonschema:"absolute directory to start in"`
	User           string            `json:"user,omitempty" jsonschema:"user to run as, NAME or UID"`
	Stdin          string            `json:"stdin,omitempty" jsonschema:"text for its standard input"`
	Vars           map[string]string `json:"vars,omitempty" jsonschema:"environment of this command"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" jsonschema:"60 if left out, at most 3600"`
}

func (a *commandArgs) command(otherwise, most float64) (sandbox.Command, error) {
	timeout, err := seconds(a.TimeoutSeconds, otherwise, most)
	if err == nil && (a.Command == "") == (len(a.Args) == 0) {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "command", Message: "give either command or args"}
	}
	return sandbox.Command{
		Shell: a.Command, Args: a.Args, Dir: a.Dir, User: a.User, Env: a.Vars, Stdin: a.Stdin != "", Timeout: timeout,
	}, err
}

type execArgs struct {
	sandboxArgs
	commandArgs
	Background bool `json:"background,omitempty" jsonschema:"return at once and let it run; read its output with sandbox_process"`
}

type runArgs struct {
	specArgs
	commandArgs
}

// execOut is the exit and the output of a command.
type execOut struct {
	ExitCode    *int   `json:"exit_code,omitempty" jsonschema:"left out while it runs"`
	Reason      string `json:"reason,omitempty" jsonschema:"exited, signaled, timeout, memory or another reason why it ended"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	StdoutBytes int64  `json:"stdout_bytes" jsonschema:"full length; more than what is shown if the middle was left out"`
	StderrBytes int64  `json:"stderr_bytes"`
	Truncated   bool   `json:"truncated,omitempty" jsonschema:"the middle of a long output was left out; write it to a file and use sandbox_read to see all"`
	Process     string `json:"process,omitempty" jsonschema:"id of a background command, for sandbox_process"`
	Hint        string `json:"hint,omitempty" jsonschema:"how to allow hosts, if one could not be reached"`
}

func (s *Server) execTools() {
	add(s, "sandbox_exec", "Run a command",
		"Run a command in a sandbox. One that fails is no error of the tool.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ProcessExec),
		func(ctx context.Context, c *call, in execArgs) (execOut, error) {
			b, err := c.sandbox(ctx, in.Sandbox)
			if err != nil {
				return execOut{}, err
			}
			if in.Background {
				return background(ctx, b, &in)
			}
			cmd, err := in.command(defaultTimeout, maxTimeout)
			if err != nil {
				return execOut{}, err
			}
			return c.run(ctx, b, cmd, in.Stdin)
		})
	add(s, "sandbox_process", "List, read or signal processes",
		"List commands, read the output of a background one, wait for its end, or signal it.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ProcessList).sometimes(ops.ProcessKill, ops.ProcessLogs, ops.ProcessReconnect), onProcess)
}

func runOnce(ctx context.Context, c *call, in runArgs) (out execOut, err error) {
	cmd, err := in.command(defaultTimeout, maxTimeout)
	if err != nil {
		return execOut{}, err
	}
	spec := in.spec()
	// If this server ends before it can remove the sandbox, the lifetime ends it.
	spec.Lifetime.Timeout = cmd.Timeout + 2*teardown
	b, err := c.Create(ctx, spec, atoll.CreateOptions{})
	if err != nil {
		return execOut{}, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
		defer cancel()
		err = errors.Join(err, b.Destroy(ctx))
	}()
	return c.run(ctx, b, cmd, in.Stdin)
}

func background(ctx context.Context, b *atoll.Sandbox, in *execArgs) (execOut, error) {
	if in.TimeoutSeconds == 0 {
		in.TimeoutSeconds = maxBackground
	}
	cmd, err := in.command(maxBackground, maxBackground)
	if err != nil {
		return execOut{}, err
	}
	cmd.Background = true
	p, err := b.Exec(ctx, cmd)
	if err != nil {
		return execOut{}, err
	}
	err = feed(p, in.Stdin)
	return execOut{Process: p.Info().ID}, errors.Join(err, p.Close())
}

// feed writes standard input, if there is any.
func feed(p *atoll.Process, text string) error {
	if text == "" {
		return nil
	}
	in := p.Stdin()
	_, err := io.WriteString(in, text)
	return errors.Join(err, in.Close())
}

// run runs a command until it ends. When ctx ends, it kills the command.
func (c *call) run(ctx context.Context, b *atoll.Sandbox, cmd sandbox.Command, stdin string) (execOut, error) {
	p, err := b.Exec(ctx, cmd)
	if err != nil {
		return execOut{}, err
	}
	defer p.Close()
	go func() { _ = feed(p, stdin) }() // a command may end without reading it
	report := c.progress(ctx, cmd.Timeout)
	var stdout, stderr excerpt
	var unreached [2]offline.Scanner
	for i, e := range []*excerpt{&stdout, &stderr} {
		e.seen = func(p []byte) {
			report.saw(p)
			_, _ = unreached[i].Write(p)
		}
	}
	done := make(chan struct{})
	go func() {
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(&stdout, p.Stdout()) })
		both.Go(func() { _, _ = io.Copy(&stderr, p.Stderr()) })
		both.Wait()
		close(done)
	}()
	exit, err := p.Wait(ctx)
	report.end()
	if err != nil {
		return execOut{}, err
	}
	grace := time.NewTimer(outputGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
	out := execOut{ExitCode: &exit.Code, Reason: string(exit.Reason)}
	out.Stdout, out.StdoutBytes = stdout.text()
	out.Stderr, out.StderrBytes = stderr.text()
	out.Truncated = out.StdoutBytes > maxOutput || out.StderrBytes > maxOutput
	if exit.Code != 0 && (unreached[0].Found() || unreached[1].Found()) {
		if n, err := b.Network(ctx); err == nil {
			out.Hint = offline.Hint(n.Asked(), "egress when a sandbox is made; see egress_explain")
		}
	}
	return out, nil
}

// progressEvery is the minimum interval of progress notifications, and
// heartbeat the maximum.
const (
	progressEvery = 250 * time.Millisecond
	heartbeat     = 5 * time.Second
)

// reporter sends progress notifications about a command.
type reporter struct {
	mu   sync.Mutex
	last string // output since the last report
	stop context.CancelFunc
	done chan struct{}
}

// progress starts reporting if the client asked for it. The caller stops the
// reporter.
func (c *call) progress(ctx context.Context, timeout time.Duration) *reporter {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return &reporter{}
	}
	ctx, stop := context.WithCancel(ctx)
	r := &reporter{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		start, told := time.Now(), time.Now()
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				message := r.take()
				if message == "" && now.Sub(told) < heartbeat {
					continue
				}
				told = now
				_ = c.req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: token, Progress: now.Sub(start).Seconds(), Total: timeout.Seconds(), Message: message,
				})
			}
		}
	}()
	return r
}

// maxMessage bounds the output in a report of progress.
const maxMessage = 2 << 10

func (r *reporter) saw(p []byte) {
	if r.stop == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last += string(p[max(0, len(p)-maxMessage):])
	r.last = r.last[max(0, len(r.last)-maxMessage):]
}

func (r *reporter) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := strings.ToValidUTF8(r.last, "")
	r.last = ""
	return text
}

func (r *reporter) end() {
	if r.stop != nil {
		r.stop()
		<-r.done
	}
}
