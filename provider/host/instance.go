package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is one sandbox: a guest that runs its commands as plain processes.
type Instance struct {
	*guest.Client
	provider   *Provider
	id         sandbox.ID
	dir        string
	lock       *os.File
	supervisor *exec.Cmd

	ended chan struct{} // closed when no process is left; exit is set before

	mu      sync.Mutex
	timer   *time.Timer  // ends it at the end of its lifetime
	why     sandbox.Exit // the first reason to end it
	exit    sandbox.Exit
	gone    bool // destroyed
	screens map[*screen]struct{}
	ongoing chan struct{} // closed when the current attempt to destroy has ended
	failed  error         // of the last attempt
}

// patience is how long a guest may take to end its processes.
const patience = 10 * time.Second

func (p *Provider) create(ctx context.Context, spec *sandbox.Spec) (in *Instance, err error) {
	rec := record{Created: time.Now(), Labels: maps.Clone(spec.Labels)}
	if p.workdir != "" {
		rec.Again = &again{Env: spec.Env, User: spec.User, Workdir: spec.Workdir, Timeout: spec.Lifetime.Timeout}
	}
	lock, err := newDir(p.dir, spec.ID, rec)
	if err != nil {
		return nil, err
	}
	in = &Instance{provider: p, id: spec.ID, dir: p.path(spec.ID), lock: lock, ended: make(chan struct{})}
	if err := in.begin(ctx, spec, rec.Created); err != nil {
		return nil, errors.Join(err, in.remove())
	}
	p.mu.Lock()
	p.live[in.id] = in
	p.mu.Unlock()
	return in, nil
}

// begin starts the guest, and sets the end of the sandbox's lifetime. If it
// fails, no process is left.
func (in *Instance) begin(ctx context.Context, spec *sandbox.Spec, created time.Time) error {
	if err := in.start(ctx, spec); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if in.supervisor != nil {
			in.end(sandbox.Exit{Reason: sandbox.ReasonKilled})
			<-in.ended
		}
		return err
	}
	if t := spec.Lifetime.Timeout; t > 0 {
		in.mu.Lock()
		in.timer = time.AfterFunc(t-time.Since(created), in.expire)
		in.mu.Unlock()
	}
	return nil
}

// again starts the guest of a sandbox of a Workdir that no process has.
func (p *Provider) again(ctx context.Context, id sandbox.ID) (*Instance, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	p.mu.Lock()
	in := p.live[id]
	p.mu.Unlock()
	if in != nil && !in.crashed() {
		return in, nil
	}
	if in != nil {
		in.lock.Close()
	}
	rec, err := readRecord(p.path(id))
	if err != nil {
		return nil, err
	}
	if rec.Again == nil {
		rec.Again = &again{}
	}
	lock, err := takeLock(p.path(id))
	if err != nil {
		return nil, err
	}
	in = &Instance{provider: p, id: id, dir: p.path(id), lock: lock, ended: make(chan struct{})}
	spec := &sandbox.Spec{ID: id, Env: rec.Again.Env, User: rec.Again.User, Workdir: rec.Again.Workdir, Lifetime: sandbox.Lifetime{Timeout: rec.Again.Timeout}}
	if err := in.begin(ctx, spec, rec.Created); err != nil {
		lock.Close()
		return nil, err
	}
	p.mu.Lock()
	p.live[id] = in
	p.mu.Unlock()
	return in, nil
}

// crashed reports whether the guest ended without being told to.
func (in *Instance) crashed() bool {
	x, ended := in.hasEnded()
	return ended && x.Reason == sandbox.ReasonCrashed
}

// start starts the guest and configures it.
func (in *Instance) start(ctx context.Context, spec *sandbox.Spec) error {
	conn, theirs, err := guest.Socketpair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path: in.provider.executable, Args: guest.HostArgs(in.filesDir()), Dir: "/",
		Env:         append(guest.Env(), markerEnv+"="+string(in.id)),
		ExtraFiles:  []*os.File{theirs, in.lock},        // the guest holds the lock while it lives
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // no signals from the terminal
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return fmt.Errorf("starting the guest: %w", err)
	}
	in.supervisor = cmd
	go in.watch()
	client, err := guest.Dial(ctx, conn, guest.Options{Ended: in.commandEnd, Lost: in.lost, Overdue: in.overdue})
	if err != nil {
		return err
	}
	in.mu.Lock()
	in.Client = client
	in.mu.Unlock()
	return client.Configure(ctx, in.defaults(spec))
}

// defaults returns the defaults of commands. The environment contains a few
// harmless variables of this process and those of the spec.
func (in *Instance) defaults(spec *sandbox.Spec) guest.Defaults {
	env := map[string]string{
		"HOME":    in.filesDir(),
		"TMPDIR":  filepath.Join(in.dir, tempDir),
		markerEnv: string(in.id),
	}
	names := []string{"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"}
	if in.provider.screen {
		names = append(names, "DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
	}
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			env[name] = v
		}
	}
	if home := os.Getenv("HOME"); in.provider.workdir != "" && home != "" {
		env["HOME"] = home
	}
	maps.Copy(env, spec.Env)
	def := guest.Defaults{Env: env, User: spec.User, Workdir: spec.Workdir}
	if def.User == "" {
		def.User = fmt.Sprint(os.Getuid())
	}
	def.Workdir, _ = in.at(def.Workdir)
	if def.Workdir == "" {
		def.Workdir = in.filesDir()
	}
	return def
}

// ID implements driver.Instance.
func (in *Instance) ID() sandbox.ID { return in.id }

// Dir returns the directory that commands start in and to which file operations
// are confined.
func (in *Instance) Dir() string { return in.filesDir() }

func (in *Instance) filesDir() string {
	if in.provider.workdir != "" {
		return in.provider.workdir
	}
	return filepath.Join(in.dir, filesDir)
}

// Exec implements driver.Instance.
func (in *Instance) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	if err := userSupported(cmd.User); err != nil {
		return nil, err
	}
	real, failed := in.at(cmd.Dir)
	if real != cmd.Dir {
		moved := *cmd
		moved.Dir, cmd = real, &moved
	}
	p, err := in.Client.Exec(ctx, cmd)
	return p, failed(err)
}

// Wait implements driver.Instance.
func (in *Instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-in.ended:
		x, _ := in.hasEnded()
		return x, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// hasEnded returns how the sandbox ended, if it has.
func (in *Instance) hasEnded() (sandbox.Exit, bool) {
	select {
	case <-in.ended:
		return in.exit, true
	default:
		return sandbox.Exit{}, false
	}
}

// end closes the connection of the guest, which then ends with all its
// processes. The first reason is kept.
func (in *Instance) end(why sandbox.Exit) {
	in.mu.Lock()
	if in.why.Reason == "" {
		in.why = why
	}
	client := in.Client
	for s := range in.screens {
		s.end()
	}
	in.mu.Unlock()
	if client != nil {
		client.Close()
	}
	pid := in.supervisor.Process
	timer := time.AfterFunc(patience, func() { _ = pid.Kill() })
	go func() {
		<-in.ended
		timer.Stop()
	}()
}

// watch waits for the end of the guest.
func (in *Instance) watch() {
	err := in.supervisor.Wait()
	if err != nil {
		// It was killed, so its processes may still run.
		killMarked(in.id, in.dir)
	}
	in.mu.Lock()
	in.exit = in.why
	if in.exit.Reason == "" {
		in.exit = sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the guest ended unexpectedly"}
	}
	client := in.Client
	in.mu.Unlock()
	close(in.ended)
	if client != nil {
		client.Close()
	}
}

// commandEnd returns the end of a command whose connection was lost.
func (in *Instance) commandEnd(ctx context.Context) (sandbox.Exit, bool) {
	if x, ok := in.awaitEnd(); ok {
		if x.Code <= 0 {
			x.Code, x.Signal = 128+int(syscall.SIGKILL), int(syscall.SIGKILL)
		}
		return x, true
	}
	return sandbox.Exit{}, false
}

// awaitEnd waits briefly for the end of the guest after a lost connection.
func (in *Instance) awaitEnd() (sandbox.Exit, bool) {
	timer := time.NewTimer(2 * patience)
	defer timer.Stop()
	select {
	case <-in.ended:
		return in.hasEnded()
	case <-timer.C:
		return sandbox.Exit{}, false
	}
}

// lost returns the error of calls after the connection was lost.
func (in *Instance) lost() error {
	x, ok := in.awaitEnd()
	switch {
	case !ok:
		return nil
	case x.Reason == sandbox.ReasonKilled:
		return goneError(in.id)
	}
	return &sandbox.Error{Code: sandbox.CodeConflict, Subject: string(in.id), Message: "the sandbox has ended: " + x.Detail}
}

// Destroy implements driver.Instance. An attempt continues after its caller has
// given up.
func (in *Instance) Destroy(ctx context.Context) error {
	in.mu.Lock()
	if in.gone {
		in.mu.Unlock()
		return nil
	}
	if in.ongoing == nil {
		in.ongoing = make(chan struct{})
		go in.destroy(in.ongoing)
	}
	ongoing := in.ongoing
	in.mu.Unlock()
	select {
	case <-ongoing:
	case <-ctx.Done():
		return ctx.Err()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.failed
}

func (in *Instance) destroy(over chan struct{}) {
	in.mu.Lock()
	if in.timer != nil {
		in.timer.Stop()
	}
	in.mu.Unlock()
	in.end(sandbox.Exit{
		Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Reason: sandbox.ReasonKilled, Detail: "the sandbox was destroyed",
	})
	<-in.ended
	err := in.remove()
	in.mu.Lock()
	in.failed, in.gone, in.ongoing = err, err == nil, nil
	if err == nil && in.exit.Reason != sandbox.ReasonKilled {
		in.why = in.exit
	}
	in.mu.Unlock()
	if err == nil {
		in.provider.mu.Lock()
		delete(in.provider.live, in.id)
		in.provider.mu.Unlock()
	}
	close(over)
}

// remove removes the sandbox's directory. It releases the lock last, so that no
// other process removes the directory at the same time.
func (in *Instance) remove() error {
	if err := removeAll(in.dir); err != nil {
		return err
	}
	in.lock.Close()
	return nil
}
