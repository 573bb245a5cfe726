package target

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes is where sandboxes are: this machine, or a daemon.
type Sandboxes interface {
	Find(ctx context.Context, ref string) (Sandbox, error)
	// List returns the sandboxes that exist, oldest first.
	List(ctx context.Context) ([]sandbox.Sandbox, error)
	// Warning is shown to everyone who makes a sandbox with the provider.
	Warning(ctx context.Context, provider string) string
	// Run makes a sandbox, runs a command in it, and removes it, as
	// engine.Engine.Run.
	Run(ctx context.Context, req engine.RunRequest, use func(context.Context, Sandbox, driver.Process) error) (sandbox.Exit, error)
	// Start makes a sandbox that stays, with the command in its background.
	Start(ctx context.Context, req engine.RunRequest) (Sandbox, error)
	// Tidy removes what an earlier run left behind, where that is ours to do.
	Tidy(ctx context.Context)
}

// Sandbox is a sandbox that commands act on.
type Sandbox interface {
	Name() string
	// Limits are the limits that its provider is known not to enforce.
	Limits() map[string]sandbox.Enforcement
	// Main is its main command; nil if there is none.
	Main() *sandbox.MainCommand
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	driver.ProcessManager
	Dial(ctx context.Context, port uint16) (net.Conn, error)
	// Stop ends it, and reports whether its files are kept.
	Stop(ctx context.Context, grace time.Duration) (kept bool, err error)
	Destroy(ctx context.Context) error
	Files() Files
}

// Files is what copying needs of the files of a sandbox.
type Files interface {
	Stat(ctx context.Context, path string) (sandbox.FileInfo, error)
	List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error]
	Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error
	Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error
}

// Daemon returns a client of the daemon to use: the one that $ATOLL_HOST or a context names,
// else the one that listens in the state directory. Without one it is nil. One
// that listens and does not answer is an error. A provider is chosen within the
// daemon.
func (e *Env) Daemon(ctx context.Context) (*atoll.Client, error) {
	if e.Client != nil {
		return e.Client, nil
	}
	d, _, err := e.NamedDaemon()
	if err != nil {
		return nil, err
	}
	if d.Host == "" {
		return localDaemon(ctx, e)
	}
	c, err := atoll.New(atoll.Options{Host: d.Host, Key: d.Key})
	if err != nil {
		return nil, err
	}
	return e.connected(c), nil
}

// connected keeps a client until the command ends, and returns the one that acts
// in the tenant of --tenant.
func (e *Env) connected(c *atoll.Client) *atoll.Client {
	e.conn, e.Client = c, c
	if e.Tenant != "" {
		e.Client = c.WithTenant(e.Tenant)
	}
	return e.Client
}

// localDaemon returns a client of the daemon of the state directory, nil if none
// runs.
func localDaemon(ctx context.Context, a *Env) (*atoll.Client, error) {
	socket := a.Socket()
	if _, err := os.Stat(socket); err != nil {
		return nil, nil
	}
	key, _ := a.LookupEnv("ATOLL_KEY")
	c, err := a.socketClient(key)
	if err != nil {
		return nil, err
	}
	if runs, err := awaitAnswer(ctx, a, c, socket); err != nil || !runs {
		return nil, errors.Join(err, c.Close())
	}
	return a.connected(c), nil
}

// Socket is where the daemon of the state directory listens.
func (e *Env) Socket() string {
	if e.StateDir != "" {
		return filepath.Join(e.StateDir, atoll.SocketName)
	}
	path, err := atoll.DefaultSocket()
	if err != nil {
		return ""
	}
	return path
}

// Sandboxes returns the daemon if there is one, else this machine.
func (e *Env) Sandboxes(ctx context.Context) (Sandboxes, error) {
	c, err := e.Daemon(ctx)
	if err != nil {
		return nil, err
	}
	if c != nil {
		return e.SandboxesOf(c), nil
	}
	return e.here(ctx, false)
}

// here returns this machine.
func (e *Env) here(ctx context.Context, attached bool) (Sandboxes, error) {
	if e.Tenant != "" {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "tenant", Message: "tenants belong to a daemon, and none runs", Hint: "start one with: atoll up"}
	}
	c, err := e.openEngine(ctx, attached)
	if err != nil {
		return nil, err
	}
	return localSandboxes{e, c}, nil
}

// RunnerFor returns where to run what a request asks for: the daemon, if one
// runs. Snapshots, templates, idle policies, stored profiles and secrets need
// one. Sandboxes that stay should have a daemon, but work without if none may
// be started. Without a daemon, a sandbox that goes away with its command is
// tied to this process by the kernel.
func (e *Env) RunnerFor(ctx context.Context, req *engine.RunRequest, detach bool) (Sandboxes, error) {
	c, err := e.Daemon(ctx)
	if err != nil {
		return nil, err
	}
	stays := req.Keep || detach
	weak := false
	if c == nil && !e.NoDaemon() {
		if weak, err = tooWeak(ctx, e, &req.Spec); err != nil {
			return nil, err
		}
	}
	if c == nil && (weak || needsDaemon(&req.Spec) || stays && !e.NoDaemon()) {
		if c, err = e.MustDaemon(ctx); err != nil {
			return nil, err
		}
	}
	if c == nil {
		return e.here(ctx, !stays)
	}
	return e.SandboxesOf(c), nil
}

// tooWeak reports whether the provider of a program without a daemon isolates less
// than is demanded. A daemon chooses another one.
func tooWeak(ctx context.Context, a *Env, spec *sandbox.Spec) (bool, error) {
	if spec.Isolation == "" || spec.Provider != "" {
		return false, nil
	}
	c, err := a.openEngine(ctx, true)
	if err != nil {
		return false, err
	}
	return sandbox.CodeOf(c.CheckIsolation(ctx, spec.Isolation)) == sandbox.CodeUnsupported, nil
}

func needsDaemon(spec *sandbox.Spec) bool {
	return strings.HasPrefix(spec.Image, "template:") || spec.Snapshot != "" || spec.Lifetime.Idle != 0 || spec.Lifetime.HardTimeout() != spec.Lifetime.Timeout || spec.Lifetime.Wakes ||
		spec.Network.Profile != "" || len(spec.Secrets) != 0 || spec.Redact || len(spec.Workspaces) > 0 || spec.Main != nil || len(spec.Ports) > 0
}

// Find returns the sandbox of that name.
func (e *Env) Find(ctx context.Context, name string) (Sandbox, error) {
	if e.Sessions {
		return findSession(ctx, e, name)
	}
	t, err := e.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	return t.Find(ctx, name)
}

// localSandboxes are the sandboxes of this machine, without a daemon.
type localSandboxes struct {
	env *Env
	*engine.Engine
}

// localSandbox is a sandbox that this process manages, without a daemon.
type localSandbox struct{ *engine.Sandbox }

// Main implements Sandbox. A main command needs a daemon.
func (s localSandbox) Main() *sandbox.MainCommand { return nil }

func (s localSandbox) Files() Files { return s.Sandbox.Files() }

func (s localSandbox) Stop(ctx context.Context, grace time.Duration) (bool, error) {
	return false, s.Sandbox.Stop(ctx, grace)
}

func (l localSandboxes) Find(ctx context.Context, ref string) (Sandbox, error) {
	b, err := l.Engine.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return localSandbox{b}, nil
}

func (l localSandboxes) Run(ctx context.Context, req engine.RunRequest, use func(context.Context, Sandbox, driver.Process) error) (sandbox.Exit, error) {
	return l.Engine.Run(ctx, req, func(ctx context.Context, b *engine.Sandbox, p driver.Process) error {
		return use(ctx, localSandbox{b}, p)
	})
}

func (l localSandboxes) Start(ctx context.Context, req engine.RunRequest) (Sandbox, error) {
	b, _, err := l.Engine.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return localSandbox{b}, nil
}

func (l localSandboxes) Tidy(ctx context.Context) { sweep(ctx, l.env, l.Engine) }

func (l localSandboxes) Warning(_ context.Context, provider string) string {
	return l.env.WarningOf(cmp.Or(provider, l.env.ChosenProvider()))
}
