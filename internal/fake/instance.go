package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// instance is a handle of a sandbox with all that the fake can do.
type instance struct {
	provider *Provider
	*box
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
	for thawed := i.kernel.Frozen(); thawed != nil; thawed = i.kernel.Frozen() {
		select {
		case <-thawed:
		case <-i.stopped:
			return i.gone(op)
		case <-ctx.Done():
			return ctx.Err()
		}
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
	i.end(sandbox.Exit{Code: 137, Signal: kernel.SIGKILL, Reason: sandbox.ReasonKilled, Detail: "the sandbox was destroyed"})
	i.provider.world.forget(i.box)
	return nil
}

// Exec starts a command.
func (i *instance) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	if err := i.begin(ctx, "exec"); err != nil {
		return nil, err
	}
	spawn := i.spawn(cmd)
	c := i.newCommand(cmd, spawn.Args)
	spawn.Files = c.open(i.kernel)
	spawn.TTY = c.tty
	p, err := i.kernel.Start(spawn)
	if err != nil {
		if err := i.gone("exec"); err != nil {
			return nil, err
		}
		return nil, fail(sandbox.CodeExhausted, "exec", string(i.spec.ID), "there are too many processes")
	}
	i.register(c, p)
	return i.connect(c, false), nil
}

// spawn says how to start a command.
func (i *instance) spawn(cmd *sandbox.Command) kernel.Spawn {
	s := kernel.Spawn{Args: slices.Clone(cmd.Args), Dir: cmd.Dir}
	if cmd.Shell != "" {
		s.Args = []string{"/bin/sh", "-c", cmd.Shell}
	}
	if s.Dir == "" {
		s.Dir = i.spec.Workdir
	}
	if s.Dir == "" {
		s.Dir = "/"
	}
	s.Cred = i.user
	if cmd.User != "" {
		var ok bool
		if s.Cred, ok = i.lookUser(cmd.User); !ok {
			s.Main = func(p *kernel.Proc) int {
				p.Errorf("no such user: %s", cmd.User)
				return 126
			}
		}
	}
	s.Env = i.environ(cmd, s.Cred)
	return s
}

// kept is how many ended commands are remembered.
const kept = 128

// newCommand prepares a command that is not started yet.
func (b *box) newCommand(cmd *sandbox.Command, args []string) *command {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastID++
	return &command{
		box: b, kernel: b.kernel, cmd: *cmd, done: make(chan struct{}),
		info: sandbox.ProcessInfo{ID: fmt.Sprintf("p%d", b.lastID), Args: slices.Clone(args), Started: time.Now(), Background: cmd.Background, TTY: cmd.TTY != nil, Running: true},
	}
}

// register remembers a started command and awaits its end.
func (b *box) register(c *command, p *kernel.Proc) {
	c.proc, c.info.PID = p, p.PID
	b.mu.Lock()
	b.commands = append(b.commands, c)
	b.mu.Unlock()
	if d := c.cmd.Timeout; d > 0 {
		c.timer = time.AfterFunc(d, c.timeout)
	}
	go func() {
		<-p.Done()
		c.finish(b.ended())
		b.prune()
	}()
}

// prune forgets the oldest ended commands beyond the number kept.
func (b *box) prune() {
	b.mu.Lock()
	defer b.mu.Unlock()
	over := -kept
	for _, c := range b.commands {
		if c.ended() {
			over++
		}
	}
	b.commands = slices.DeleteFunc(b.commands, func(c *command) bool {
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
		list = append(list, c.describe())
	}
	return append(list, i.left()...), nil
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
	if i.findLeft(id) != nil {
		return nil, fail(sandbox.CodeConflict, op, id, "the process was left behind by a command")
	}
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
	if p := i.findLeft(id); p != nil {
		i.kernel.KillTree(p.PID, sig)
		return nil
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

// Exec refuses what is not declared.
func (b bare) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	if cmd.TTY != nil || cmd.User != "" || cmd.Background {
		return nil, errors.Join(ctx.Err(), fail(sandbox.CodeUnsupported, "exec", string(b.i.spec.ID), "the fake is bare"))
	}
	return b.i.Exec(ctx, cmd)
}
