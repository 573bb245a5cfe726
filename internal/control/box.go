package control

import (
	"context"
	"slices"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandbox is a handle on one sandbox. Dropping it ends nothing. Its methods
// may be called concurrently.
type Sandbox struct {
	c     *Control
	inst  driver.Instance
	name  string
	image ImageConfig // what Create found; zero after Find
	// limits are those that do not hold, if Create made the handle.
	limits map[string]sandbox.Enforcement
}

// ID returns the id, which never changes.
func (s *Sandbox) ID() sandbox.ID { return s.inst.ID() }

// Image returns what the image wants to run, if this is the handle that Create
// returned.
func (s *Sandbox) Image() ImageConfig { return s.image }

// Limits returns the limits that the provider does not enforce, if this is the
// handle that Create returned.
func (s *Sandbox) Limits() map[string]sandbox.Enforcement { return s.limits }

// Name returns the name, which is the id unless another was chosen.
func (s *Sandbox) Name() string { return s.name }

func (s *Sandbox) action(op ops.Op, subject string) Action {
	if subject == "" {
		subject = s.name
	}
	return Action{Op: op, Sandbox: s.ID(), Name: s.name, Subject: subject}
}

// Exec starts a command. The context bounds the start only; the caller closes
// the process.
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error) {
	var p driver.Process
	a := s.action(ops.ProcessExec, "")
	a.Command = &cmd
	err := s.c.do(ctx, a, func(ctx context.Context) (err error) {
		if err := cmd.Validate(); err != nil {
			return err
		}
		own := cmd
		own.Args = slices.Clone(cmd.Args)
		p, err = s.inst.Exec(ctx, &own)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &process{Process: p, box: s}, nil
}

// Wait blocks until the sandbox itself has ended, and says why.
func (s *Sandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := s.inst.Wait(ctx)
	return exit, s.c.wrap(s.action(ops.SandboxWait, ""), err)
}

// Destroy ends the sandbox with everything in it. Destroying what is gone is
// success.
func (s *Sandbox) Destroy(ctx context.Context) error {
	return s.c.do(ctx, s.action(ops.SandboxDestroy, ""), func(ctx context.Context) error {
		err := s.inst.Destroy(ctx)
		if err != nil && s.c.codeOf(err) == sandbox.CodeGone {
			return nil
		}
		return err
	})
}

// Teardown destroys the sandbox even when ctx has ended: the caller may be
// gone, the sandbox must not stay. It takes bounded time.
func (s *Sandbox) Teardown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.c.cfg.Teardown)
	defer cancel()
	return s.Destroy(ctx)
}

// manager returns what remembers the sandbox's commands.
func (s *Sandbox) manager() (driver.ProcessManager, error) {
	m, ok := driver.As[driver.ProcessManager](s.inst)
	if !ok {
		return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider does not remember commands"}
	}
	return m, nil
}

// Processes lists the commands started through the API, oldest first.
func (s *Sandbox) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	var out []sandbox.ProcessInfo
	err := s.c.do(ctx, s.action(ops.ProcessList, ""), func(ctx context.Context) error {
		m, err := s.manager()
		if err != nil {
			return err
		}
		out, err = m.Processes(ctx)
		return err
	})
	return out, err
}

// Reconnect connects to a background command; the caller closes the process,
// which leaves the command alone.
func (s *Sandbox) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	var p driver.Process
	err := s.c.do(ctx, s.action(ops.ProcessReconnect, id), func(ctx context.Context) error {
		m, err := s.manager()
		if err != nil {
			return err
		}
		p, err = m.Reconnect(ctx, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &process{Process: p, box: s}, nil
}

// Rejoin connects to a command where an earlier connection to it was cut, as
// driver.Rejoiner. The caller closes or detaches the process.
func (s *Sandbox) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error) {
	var p driver.Process
	err := s.c.do(ctx, s.action(ops.ProcessReconnect, id), func(ctx context.Context) (err error) {
		r, ok := driver.As[driver.Rejoiner](s.inst)
		if !ok {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider cannot rejoin commands"}
		}
		p, from, err = r.Rejoin(ctx, id, from, skip)
		return err
	})
	if err != nil {
		return nil, from, err
	}
	return &process{Process: p, box: s}, from, nil
}

// Logs reads what a command wrote. The caller closes the reader.
func (s *Sandbox) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	var r driver.LogReader
	err := s.c.do(ctx, s.action(ops.ProcessLogs, id), func(ctx context.Context) error {
		if opts.Tail < 0 {
			return invalid("", "tail", "a negative number of lines", "")
		}
		m, err := s.manager()
		if err != nil {
			return err
		}
		r, err = m.Logs(ctx, id, opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &logReader{LogReader: r, box: s, id: id}, nil
}

// Kill signals a command by its id.
func (s *Sandbox) Kill(ctx context.Context, id string, sig int) error {
	return s.c.do(ctx, s.action(ops.ProcessKill, id), func(ctx context.Context) error {
		if err := validateSignal(sig); err != nil {
			return err
		}
		m, err := s.manager()
		if err != nil {
			return err
		}
		return m.Kill(ctx, id, sig)
	})
}
