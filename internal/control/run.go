package control

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// RunRequest asks for a sandbox and a command in it.
type RunRequest struct {
	CreateRequest
	// Command is what to run. Its Args replace the image's Cmd.
	Command sandbox.Command
	// Entrypoint replaces the image's, together with its Cmd; an empty one
	// means none. Nil keeps the image's.
	Entrypoint *string
	// Keep leaves the sandbox when the command has ended.
	Keep bool
}

// Run makes a sandbox, runs a command in it and hands the command to use,
// which reads its output and returns when there is no more to do; then Run
// waits for the command. Whatever happens, the end of ctx and a panic
// included, the sandbox is destroyed before Run returns, unless req.Keep.
//
// An error together with an exit whose Reason is set means that the command
// ended and what came after it failed.
func (c *Control) Run(ctx context.Context, req RunRequest, use func(context.Context, *Sandbox, driver.Process) error) (exit sandbox.Exit, err error) {
	req.Bound = !req.Keep
	if req.Keep {
		if err := c.outlives(ctx); err != nil {
			return sandbox.Exit{}, err
		}
	}
	box, err := c.Create(ctx, req.CreateRequest)
	if err != nil {
		return sandbox.Exit{}, err
	}
	if !req.Keep {
		defer func() {
			if failed := box.Teardown(ctx); failed != nil && err == nil {
				err = failed
			}
		}()
	}
	p, err := box.start(ctx, &req)
	if err != nil {
		if end, over := box.expired(ctx, err); over {
			return end, nil
		}
		return sandbox.Exit{}, err
	}
	defer p.Close()
	if err := use(ctx, box, p); err != nil {
		return sandbox.Exit{}, err
	}
	return p.Wait(ctx)
}

// Start makes a sandbox that outlives the caller, with the command running in
// its background. Without any command, neither the caller's nor the image's,
// the sandbox is idle and the returned process info is nil. On an error
// nothing remains.
func (c *Control) Start(ctx context.Context, req RunRequest) (*Sandbox, *sandbox.ProcessInfo, error) {
	req.Bound = false
	req.Command.Background = true
	if err := c.outlives(ctx); err != nil {
		return nil, nil, err
	}
	box, err := c.Create(ctx, req.CreateRequest)
	if err != nil {
		return nil, nil, err
	}
	if req.Command.Shell == "" && len(CommandLine(box.image, req.Entrypoint, req.Command.Args)) == 0 {
		return box, nil, nil
	}
	p, err := box.start(ctx, &req)
	if err != nil {
		// The error that matters is the one that is returned.
		_ = box.Teardown(ctx)
		return nil, nil, err
	}
	info := p.Info()
	return box, &info, p.Close()
}

// outlives refuses to make what would end with this process although it is
// asked to stay.
func (c *Control) outlives(ctx context.Context) error {
	facts, err := c.Probe(ctx)
	if err == nil && facts.Available && !facts.Capabilities.Reattach {
		err = c.wrap(Action{Op: ops.SandboxCreate}, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Message: "sandboxes of this provider end with the process that makes them",
		})
	}
	return err
}

// start runs the command of a request, combined with what the image wants.
func (s *Sandbox) start(ctx context.Context, req *RunRequest) (driver.Process, error) {
	cmd := req.Command
	if cmd.Shell == "" {
		cmd.Args = CommandLine(s.image, req.Entrypoint, cmd.Args)
	}
	if cmd.Shell == "" && len(cmd.Args) == 0 {
		if cmd.TTY == nil {
			return nil, invalid("process.exec", "command", "none given, and the image names none",
				"say what to run, for example: atoll run -- echo hello")
		}
		cmd.Args = []string{"/bin/sh"} // somebody sits at the terminal
	}
	return s.Exec(ctx, cmd)
}

// expired reports whether a command could not be started because the sandbox had
// reached the end of its lifetime, and how it ended.
func (s *Sandbox) expired(ctx context.Context, failed error) (sandbox.Exit, bool) {
	if code := sandbox.CodeOf(failed); code != sandbox.CodeConflict && code != sandbox.CodeGone {
		return sandbox.Exit{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	exit, err := s.inst.Wait(ctx)
	return exit, err == nil && exit.Reason == sandbox.ReasonLifetime
}
