package cli

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

// target is where sandboxes are: this machine, or a daemon.
type target interface {
	Find(ctx context.Context, ref string) (box, error)
	// List returns the sandboxes that exist, oldest first.
	List(ctx context.Context) ([]sandbox.Sandbox, error)
	// warning is shown to everyone who makes a sandbox with the provider.
	warning(ctx context.Context, provider string) string
	// Run makes a sandbox, runs a command in it, and removes it, as
	// engine.Engine.Run.
	Run(ctx context.Context, req engine.RunRequest, use func(context.Context, box, driver.Process) error) (sandbox.Exit, error)
	// Start makes a sandbox that stays, with the command in its background.
	Start(ctx context.Context, req engine.RunRequest) (box, error)
	// tidy removes what an earlier run left behind, where that is ours to do.
	tidy(ctx context.Context)
}

// box is a sandbox that commands act on.
type box interface {
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
	Files() boxFiles
}

// boxFiles is what copying needs of the files of a sandbox.
type boxFiles interface {
	Stat(ctx context.Context, path string) (sandbox.FileInfo, error)
	List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error]
	Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error
	Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error
}

// daemon returns a client of the daemon to use: the one that $ATOLL_HOST or a context names,
// else the one that listens in the state directory. Without one it is nil. One
// that listens and does not answer is an error. A provider is chosen within the
// daemon.
func (a *Env) daemon(ctx context.Context) (*atoll.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	d, _, err := a.namedDaemon()
	if err != nil {
		return nil, err
	}
	if d.Host == "" {
		return a.localDaemon(ctx)
	}
	c, err := atoll.New(atoll.Options{Host: d.Host, Key: d.Key})
	if err != nil {
		return nil, err
	}
	return a.connected(c), nil
}

// connected keeps a client until the command ends, and returns the one that acts
// in the tenant of --tenant.
func (a *Env) connected(c *atoll.Client) *atoll.Client {
	a.conn, a.client = c, c
	if a.tenant != "" {
		a.client = c.WithTenant(a.tenant)
	}
	return a.client
}

// localDaemon returns a client of the daemon of the state directory, nil if none
// runs.
func (a *Env) localDaemon(ctx context.Context) (*atoll.Client, error) {
	socket := a.socket()
	if _, err := os.Stat(socket); err != nil {
		return nil, nil
	}
	key, _ := a.LookupEnv("ATOLL_KEY")
	c, err := a.socketClient(key)
	if err != nil {
		return nil, err
	}
	if runs, err := a.awaitAnswer(ctx, c, socket); err != nil || !runs {
		return nil, errors.Join(err, c.Close())
	}
	return a.connected(c), nil
}

// socket is where the daemon of the state directory listens.
func (a *Env) socket() string {
	if a.stateDir != "" {
		return filepath.Join(a.stateDir, atoll.SocketName)
	}
	path, err := atoll.DefaultSocket()
	if err != nil {
		return ""
	}
	return path
}

// target returns the daemon if there is one, else this machine.
func (a *Env) target(ctx context.Context) (target, error) {
	c, err := a.daemon(ctx)
	if err != nil {
		return nil, err
	}
	if c != nil {
		return a.remote(c), nil
	}
	return a.here(ctx, false)
}

// here returns this machine.
func (a *Env) here(ctx context.Context, attached bool) (target, error) {
	if a.tenant != "" {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "tenant", Message: "tenants belong to a daemon, and none runs", Hint: "start one with: atoll up"}
	}
	c, err := a.openEngine(ctx, attached)
	if err != nil {
		return nil, err
	}
	return local{a, c}, nil
}

// runnerFor returns where to run what a request asks for: the daemon, if one
// runs. Snapshots, templates, idle policies, stored profiles and secrets need
// one. Sandboxes that stay should have a daemon, but work without if none may
// be started. Without a daemon, a sandbox that goes away with its command is
// tied to this process by the kernel.
func (a *Env) runnerFor(ctx context.Context, req *engine.RunRequest, detach bool) (target, error) {
	c, err := a.daemon(ctx)
	if err != nil {
		return nil, err
	}
	stays := req.Keep || detach
	weak := false
	if c == nil && !a.noDaemon() {
		if weak, err = a.tooWeak(ctx, &req.Spec); err != nil {
			return nil, err
		}
	}
	if c == nil && (weak || needsDaemon(&req.Spec) || stays && !a.noDaemon()) {
		if c, err = a.mustDaemon(ctx); err != nil {
			return nil, err
		}
	}
	if c == nil {
		return a.here(ctx, !stays)
	}
	return a.remote(c), nil
}

// tooWeak reports whether the provider of a program without a daemon isolates less
// than is demanded. A daemon chooses another one.
func (a *Env) tooWeak(ctx context.Context, spec *sandbox.Spec) (bool, error) {
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

// find returns the sandbox of that name.
func (a *Env) find(ctx context.Context, name string) (box, error) {
	if a.sessions {
		return a.findSession(ctx, name)
	}
	t, err := a.target(ctx)
	if err != nil {
		return nil, err
	}
	return t.Find(ctx, name)
}

// local is this machine without a daemon.
type local struct {
	env *Env
	*engine.Engine
}

// localBox is a sandbox of this machine.
type localBox struct{ *engine.Sandbox }

// Main implements box. A main command needs a daemon.
func (b localBox) Main() *sandbox.MainCommand { return nil }

func (b localBox) Files() boxFiles { return b.Sandbox.Files() }

func (b localBox) Stop(ctx context.Context, grace time.Duration) (bool, error) {
	return false, b.Sandbox.Stop(ctx, grace)
}

func (l local) Find(ctx context.Context, ref string) (box, error) {
	b, err := l.Engine.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return localBox{b}, nil
}

func (l local) Run(ctx context.Context, req engine.RunRequest, use func(context.Context, box, driver.Process) error) (sandbox.Exit, error) {
	return l.Engine.Run(ctx, req, func(ctx context.Context, b *engine.Sandbox, p driver.Process) error {
		return use(ctx, localBox{b}, p)
	})
}

func (l local) Start(ctx context.Context, req engine.RunRequest) (box, error) {
	b, _, err := l.Engine.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return localBox{b}, nil
}

func (l local) tidy(ctx context.Context) { l.env.sweep(ctx, l.Engine) }

func (l local) warning(_ context.Context, provider string) string {
	return l.env.warningOf(cmp.Or(provider, l.env.chosenProvider()))
}
