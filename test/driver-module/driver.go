// Package driver is an example of a provider outside Atoll's module: plain
// processes in temporary directories. It implements only the two mandatory
// interfaces.
package driver

import (
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Provider creates sandboxes of plain processes.
type Provider struct {
	mu        sync.Mutex
	instances map[sandbox.ID]*instance
}

// New returns a provider without sandboxes.
func New() *Provider { return &Provider{instances: map[sandbox.ID]*instance{}} }

// Probe implements driver.Provider.
func (*Provider) Probe(context.Context) (driver.Facts, error) {
	facts := driver.Facts{Provider: "mine", Version: "1", Available: true, Limits: map[string]driver.Limit{}}
	for _, name := range []string{"cpus", "memory", "disk", "pids", "lifetime"} {
		facts.Limits[name] = driver.Limit{Why: "plain processes are not limited"}
	}
	facts.Capabilities.Reattach = true
	return facts, nil
}

// Create implements driver.Provider.
func (p *Provider) Create(_ context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	dir, err := os.MkdirTemp("", "mine-")
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := &instance{p: p, id: spec.ID, dir: dir, env: spec.Env, labels: maps.Clone(spec.Labels), made: time.Now(), ended: make(chan struct{})}
	p.instances[spec.ID] = i
	return i, nil
}

// Attach implements driver.Provider.
func (p *Provider) Attach(_ context.Context, id sandbox.ID) (driver.Instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.instances[id]; i != nil {
		return i, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeGone, Subject: string(id), Message: "there is no such sandbox"}
}

// List implements driver.Provider.
func (p *Provider) List(context.Context) iter.Seq2[driver.Found, error] {
	p.mu.Lock()
	all := maps.Clone(p.instances)
	p.mu.Unlock()
	return func(yield func(driver.Found, error) bool) {
		for id, i := range all {
			if !yield(driver.Found{ID: id, State: sandbox.Running, Created: i.made, Labels: i.labels}, nil) {
				return
			}
		}
	}
}

// ErrorCode implements driver.Provider.
func (*Provider) ErrorCode(err error) sandbox.Code {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.Code
	}
	return ""
}

// Close implements driver.Provider.
func (*Provider) Close() error { return nil }

type instance struct {
	p      *Provider
	id     sandbox.ID
	dir    string
	env    map[string]string
	labels map[string]string
	made   time.Time
	ended  chan struct{}
}

func (i *instance) ID() sandbox.ID { return i.id }

func (i *instance) Exec(_ context.Context, c *sandbox.Command) (driver.Process, error) {
	args := c.Args
	if c.Shell != "" {
		args = []string{"/bin/sh", "-c", c.Shell}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.SysProcAttr = i.dir, &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for _, vars := range []map[string]string{i.env, c.Env} {
		for k, v := range vars {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, outRead.Close(), outWrite.Close())
	}
	cmd.Stdout, cmd.Stderr = outWrite, errWrite
	err = cmd.Start()
	_, _ = outWrite.Close(), errWrite.Close()
	if err != nil {
		return nil, errors.Join(err, outRead.Close(), errRead.Close())
	}
	if !c.Stdin {
		_ = in.Close()
	}
	q := &process{cmd: cmd, in: in, out: outRead, err: errRead, args: args, done: make(chan struct{})}
	go q.await()
	return q, nil
}

func (i *instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-i.ended:
		return sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonKilled}, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (i *instance) Destroy(context.Context) error {
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	if i.p.instances[i.id] == i {
		delete(i.p.instances, i.id)
		close(i.ended)
	}
	return os.RemoveAll(i.dir)
}

type process struct {
	cmd      *exec.Cmd
	in       io.WriteCloser
	out, err *os.File
	args     []string
	done     chan struct{}
	exit     sandbox.Exit
}

func (q *process) await() {
	_ = q.cmd.Wait()
	q.exit = sandbox.Exit{Code: q.cmd.ProcessState.ExitCode(), Reason: sandbox.ReasonExited}
	if status := q.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		q.exit = sandbox.Exit{Code: 128 + int(status.Signal()), Signal: int(status.Signal()), Reason: sandbox.ReasonSignaled}
	}
	close(q.done)
}

func (q *process) Info() sandbox.ProcessInfo {
	return sandbox.ProcessInfo{ID: strconv.Itoa(q.cmd.Process.Pid), Args: q.args, Running: true}
}

func (q *process) Stdin() io.WriteCloser { return q.in }
func (q *process) Stdout() io.Reader     { return q.out }
func (q *process) Stderr() io.Reader     { return q.err }

func (q *process) Signal(_ context.Context, sig int) error {
	return syscall.Kill(-q.cmd.Process.Pid, syscall.Signal(sig))
}

func (*process) Resize(context.Context, sandbox.WindowSize) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "there is no terminal"}
}

func (q *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-q.done:
		return q.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (q *process) Close() error {
	_ = syscall.Kill(-q.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-q.done
	_, _ = q.out.Close(), q.err.Close()
	return nil
}
