package engine

import (
	"context"
	"slices"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandbox is a handle on one sandbox. It needs no Close: dropping it does not
// end the sandbox. It is safe for concurrent use.
type Sandbox struct {
	e     *Engine
	inst  driver.Instance
	name  string
	image ImageConfig // set by Create; zero after Find
	// limits are the unenforced limits, if Create returned the handle.
	limits map[string]sandbox.Enforcement
}

// ID returns the id, which never changes.
func (s *Sandbox) ID() sandbox.ID { return s.inst.ID() }

// Image returns the configuration of the image, if Create returned this handle.
func (s *Sandbox) Image() ImageConfig { return s.image }

// Limits returns the limits that the provider does not enforce, if Create
// returned this handle.
func (s *Sandbox) Limits() map[string]sandbox.Enforcement { return s.limits }

// Isolated reports whether code inside is kept from the machine and its network.
func (s *Sandbox) Isolated(ctx context.Context) (bool, error) {
	facts, err := s.e.cfg.Facts(ctx)
	return facts.Isolates, err
}

// Name returns the name. It is the id unless another name was set.
func (s *Sandbox) Name() string { return s.name }

func (s *Sandbox) action(op ops.Op, subject string) Action {
	if subject == "" {
		subject = s.name
	}
	return Action{Op: op, Sandbox: s.ID(), Name: s.name, Subject: subject}
}

// Exec starts a command. ctx limits only the start. The caller closes the
// process.
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error) {
	var p driver.Process
	a := s.action(ops.ProcessExec, "")
	a.Command = &cmd
	err := s.e.do(ctx, a, func(ctx context.Context) (err error) {
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
	return &process{Process: p, sandbox: s}, nil
}

// Wait waits until the sandbox has ended, and returns the reason.
func (s *Sandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := s.inst.Wait(ctx)
	return exit, s.e.wrap(s.action(ops.SandboxWait, ""), err)
}

// Destroy ends the sandbox and removes its files. It succeeds if the sandbox is
// already gone.
func (s *Sandbox) Destroy(ctx context.Context) error {
	return s.e.do(ctx, s.action(ops.SandboxDestroy, ""), func(ctx context.Context) error {
		err := s.inst.Destroy(ctx)
		if err != nil && s.e.codeOf(err) == sandbox.CodeGone {
			return nil
		}
		return err
	})
}

// Teardown destroys the sandbox even if ctx has ended, within Config.Teardown.
func (s *Sandbox) Teardown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.e.cfg.Teardown)
	defer cancel()
	return s.Destroy(ctx)
}

// manager returns the provider's process manager.
func (s *Sandbox) manager() (driver.ProcessManager, error) {
	m, ok := driver.As[driver.ProcessManager](s.inst)
	if !ok {
		return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider keeps no list of commands"}
	}
	return m, nil
}

// Processes lists the commands started through the API, oldest first.
func (s *Sandbox) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	var out []sandbox.ProcessInfo
	err := s.e.do(ctx, s.action(ops.ProcessList, ""), func(ctx context.Context) error {
		m, err := s.manager()
		if err != nil {
			return err
		}
		out, err = m.Processes(ctx)
		return err
	})
	return out, err
}

// Reconnect connects to a background command. The caller closes the process;
// this does not affect the command.
func (s *Sandbox) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	var p driver.Process
	err := s.e.do(ctx, s.action(ops.ProcessReconnect, id), func(ctx context.Context) error {
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
	return &process{Process: p, sandbox: s}, nil
}

// Rejoin connects to a command at the point where an earlier connection was
// lost; see driver.Rejoiner. The caller closes or detaches the process.
func (s *Sandbox) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error) {
	var p driver.Process
	err := s.e.do(ctx, s.action(ops.ProcessReconnect, id), func(ctx context.Context) (err error) {
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
	return &process{Process: p, sandbox: s}, from, nil
}

// Logs returns the output of a command. The caller closes the reader.
func (s *Sandbox) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	var r driver.LogReader
	err := s.e.do(ctx, s.action(ops.ProcessLogs, id), func(ctx context.Context) error {
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
	return &logReader{LogReader: r, sandbox: s, id: id}, nil
}

// Kill sends a signal to a command, by its id.
func (s *Sandbox) Kill(ctx context.Context, id string, sig int) error {
	return s.e.do(ctx, s.action(ops.ProcessKill, id), func(ctx context.Context) error {
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
