package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// instance is a handle of a sandbox with all that the fake can do.
type instance struct {
	provider *Provider
	*fakeSandbox
}

var (
	_ driver.Instance       = (*instance)(nil)
	_ driver.ProcessManager = (*instance)(nil)
	_ driver.FileSystem     = (*instance)(nil)
	_ driver.Archiver       = (*instance)(nil)
	_ driver.Watcher        = (*instance)(nil)
)

// begin is called first in every operation on a living sandbox. It waits until
// the sandbox is not paused.
func (i *instance) begin(ctx context.Context, op string) error {
	if err := i.provider.begin(ctx, op); err != nil {
		return err
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(i.life, cancel)()
	if err := i.gate(wait); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return i.gone(op)
}

func (i *instance) ID() sandbox.ID { return i.spec.ID }

// Wait blocks until the sandbox has ended.
func (i *instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	if err := i.provider.begin(ctx, "wait"); err != nil {
		return sandbox.Exit{}, err
	}
	select {
	case <-i.stopped:
		return *i.ended(), nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Destroy ends the sandbox and forgets it.
func (i *instance) Destroy(ctx context.Context) error {
	if err := i.provider.begin(ctx, "destroy"); err != nil {
		return err
	}
	i.end(killedExit("the sandbox was destroyed"))
	i.provider.world.forget(i.fakeSandbox)
	return nil
}

// Exec starts a command.
func (i *instance) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	if err := i.begin(ctx, "exec"); err != nil {
		return nil, err
	}
	if cmd.TTY != nil {
		return nil, fail(sandbox.CodeUnsupported, "exec", string(i.spec.ID), "the fake has no terminals")
	}
	if err := userSupported("exec", cmd.User); err != nil {
		return nil, err
	}
	args := slices.Clone(cmd.Args)
	if cmd.Shell != "" {
		args = []string{"/bin/sh", "-c", cmd.Shell}
	}
	if !i.enter() {
		if err := i.gone("exec"); err != nil {
			return nil, err
		}
		return nil, fail(sandbox.CodeExhausted, "exec", string(i.spec.ID), "there are too many processes")
	}
	c := i.newCommand(nil, cmd, args)
	c.streams()
	if d := cmd.Timeout; d > 0 {
		c.timer = time.AfterFunc(d, c.timeout)
	}
	first := c.program(args)
	go func() {
		defer i.leave()
		c.finish(first.main())
		c.release()
		i.prune()
	}()
	return i.connect(c, false), nil
}

// kept is how many ended commands are remembered.
const kept = 128

// newCommand adds a command that is about to start, or what one of them runs
// in the background.
func (s *fakeSandbox) newCommand(parent *command, cmd *sandbox.Command, args []string) *command {
	life := s.life
	if parent != nil {
		life = parent.ctx
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastPID++
	c := &command{
		sandbox: s, parent: parent, cmd: *cmd, done: make(chan struct{}), quiet: make(chan struct{}), refs: 1,
		info: sandbox.ProcessInfo{
			ID: fmt.Sprintf("p%d", s.lastPID), PID: s.lastPID, Args: slices.Clone(args), Started: time.Now(), Background: cmd.Background, Running: true,
		},
	}
	c.ctx, c.cancel = context.WithCancel(life)
	s.commands = append(s.commands, c)
	return c
}

// prune forgets the oldest ended commands beyond the number kept.
func (s *fakeSandbox) prune() {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := -kept
	for _, c := range s.commands {
		if c.ended() {
			over++
		}
	}
	s.commands = slices.DeleteFunc(s.commands, func(c *command) bool {
		if over > 0 && c.ended() {
			over--
			return true
		}
		return false
	})
}

// find returns the command with an id.
func (i *instance) find(op, id string) (*command, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := slices.IndexFunc(i.commands, func(c *command) bool { return c.info.ID == id })
	if n < 0 {
		return nil, fail(sandbox.CodeNotFound, op, "process", "no such process")
	}
	return i.commands[n], nil
}

// Processes lists the commands.
func (i *instance) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	if err := i.begin(ctx, "processes.list"); err != nil {
		return nil, err
	}
	i.mu.Lock()
	commands := slices.Clone(i.commands)
	i.mu.Unlock()
	var list []sandbox.ProcessInfo
	for _, c := range commands {
		if !c.listed() {
			continue
		}
		list = append(list, c.describe())
	}
	return list, nil
}

// Reconnect connects to a background command.
func (i *instance) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	if err := i.begin(ctx, "processes.reconnect"); err != nil {
		return nil, err
	}
	c, err := i.background("processes.reconnect", id)
	if err != nil {
		return nil, err
	}
	return i.connect(c, true), nil
}

// Logs reads the log of a background command.
func (i *instance) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	if err := i.begin(ctx, "processes.logs"); err != nil {
		return nil, err
	}
	c, err := i.background("processes.logs", id)
	if err != nil {
		return nil, err
	}
	return newLogReader(c, opts), nil
}

func (i *instance) background(op, id string) (*command, error) {
	c, err := i.find(op, id)
	if err == nil && c.log == nil {
		err = fail(sandbox.CodeConflict, op, id, "the process does not run in the background")
	}
	return c, err
}

// Kill signals a command.
func (i *instance) Kill(ctx context.Context, id string, sig int) error {
	if err := i.begin(ctx, "processes.kill"); err != nil {
		return err
	}
	c, err := i.find("processes.kill", id)
	if err != nil {
		return err
	}
	return c.signal("processes.kill", sig)
}

// bare is an instance without optional interfaces.
type bare struct{ i *instance }

var _ driver.Instance = bare{}

func (b bare) ID() sandbox.ID                                 { return b.i.ID() }
func (b bare) Wait(ctx context.Context) (sandbox.Exit, error) { return b.i.Wait(ctx) }
func (b bare) Destroy(ctx context.Context) error              { return b.i.Destroy(ctx) }

// Exec refuses undeclared features.
func (b bare) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	if cmd.TTY != nil || cmd.User != "" || cmd.Background {
		return nil, errors.Join(ctx.Err(), fail(sandbox.CodeUnsupported, "exec", string(b.i.spec.ID), "the fake is bare"))
	}
	return b.i.Exec(ctx, cmd)
}
