package engine

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// RunRequest is a request to create a sandbox and run a command in it.
type RunRequest struct {
	sandbox.CreateRequest
	Progress func(Progress) // called during a pull; may be nil
	// Command is the command. Its Args replace the image's Cmd.
	Command sandbox.Command
	// Entrypoint replaces the image's entrypoint and Cmd; an empty one means none.
	// Nil keeps the image's.
	Entrypoint *string
	// Keep keeps the sandbox after the command has ended.
	Keep bool
}

// Run creates a sandbox, starts a command in it and calls use, which reads the
// output. When use returns, Run waits for the command. In every case, including
// the end of ctx and a panic, the sandbox is destroyed before Run returns,
// unless req.Keep is set.
//
// If Run returns an error and an exit with a Reason, the command ended and a
// later step failed.
func (e *Engine) Run(ctx context.Context, req RunRequest, use func(context.Context, *Sandbox, driver.Process) error) (exit sandbox.Exit, err error) {
	if req.Keep {
		if err := e.outlives(ctx); err != nil {
			return sandbox.Exit{}, err
		}
	}
	sb, err := e.makeFor(ctx, &req, !req.Keep)
	if err != nil {
		return sandbox.Exit{}, err
	}
	if !req.Keep {
		defer func() {
			if failed := sb.Teardown(ctx); failed != nil && err == nil {
				err = failed
			}
		}()
	}
	p, err := sb.start(ctx, &req)
	if err != nil {
		if end, over := sb.expired(ctx, err); over {
			return end, nil
		}
		return sandbox.Exit{}, err
	}
	defer p.Close()
	if err := use(ctx, sb, p); err != nil {
		return sandbox.Exit{}, err
	}
	return p.Wait(ctx)
}

// Start creates a sandbox that outlives the caller, with the command running in
// the background. If neither the request nor the image has a command, the
// sandbox is idle and the returned process info is nil. On an error nothing
// remains.
func (e *Engine) Start(ctx context.Context, req RunRequest) (*Sandbox, *sandbox.ProcessInfo, error) {
	req.Command.Background = true
	if err := e.outlives(ctx); err != nil {
		return nil, nil, err
	}
	sb, err := e.makeFor(ctx, &req, false)
	if err != nil {
		return nil, nil, err
	}
	if req.Command.Shell == "" && len(CommandLine(sb.image, req.Entrypoint, req.Command.Args)) == 0 {
		return sb, nil, nil
	}
	p, err := sb.start(ctx, &req)
	if err != nil {
		// Return the first error.
		_ = sb.Teardown(ctx)
		return nil, nil, err
	}
	info := p.Info()
	return sb, &info, p.Close()
}

// makeFor creates the sandbox of a request. If it is bound, it does not outlive
// this process.
func (e *Engine) makeFor(ctx context.Context, req *RunRequest, bound bool) (*Sandbox, error) {
	p, err := e.Plan(ctx, req.CreateRequest)
	if err != nil {
		return nil, err
	}
	p.Bound = bound
	return e.Create(ctx, p, req.Progress)
}

// outlives returns an error if sandboxes of the provider end with this process.
func (e *Engine) outlives(ctx context.Context) error {
	facts, err := e.Probe(ctx)
	if err == nil && facts.Available && !facts.Capabilities.Reattach {
		err = e.wrap(Action{Op: ops.SandboxCreate}, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Message: "sandboxes of this provider end with the process that creates them",
		})
	}
	return err
}

// start runs the command of a request, combined with the image's configuration.
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
		cmd.Args = []string{"/bin/sh"} // a user sits at the terminal
	}
	return s.Exec(ctx, cmd)
}

// expired reports whether a command could not be started because the lifetime
// of the sandbox was over, and how the sandbox ended.
func (s *Sandbox) expired(ctx context.Context, failed error) (sandbox.Exit, bool) {
	if code := sandbox.CodeOf(failed); code != sandbox.CodeConflict && code != sandbox.CodeGone {
		return sandbox.Exit{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	exit, err := s.inst.Wait(ctx)
	return exit, err == nil && exit.Reason == sandbox.ReasonLifetime
}
