// Package host runs the commands of a "sandbox" as plain processes on this
// machine, with the rights of the calling user. It provides no isolation:
// commands can read and change all files of the user, use the network, and use
// all memory and processors. Use it for trusted code, for tests, and on
// machines where no other provider works. Probe warns about it. It must never
// be selected without the user's explicit choice.
//
// Sandboxes are still separate: each has its own directory, to which file
// operations are confined; commands get a clean environment and not the
// caller's; and Destroy ends every process of the sandbox and removes the
// directory. A sandbox also ends with the process that created it, even if that
// is killed.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "host"

// Options configure a Provider.
type Options struct {
	// Dir is a directory for this provider alone. It is created if missing.
	Dir string
	// Workdir is a directory of the user. If it is given, commands start in it,
	// file operations are confined to it and see it at sandbox.WorkspaceDir, too, HOME
	// is the user's own, and nothing removes it. Sandboxes then belong to the directory
	// and not to this process: Close ends their commands, and Attach starts them again.
	// Empty: every sandbox has a directory of its own.
	Workdir string
	// Screen gives commands the display of this process, and shows it to everyone who
	// connects to the port of VNC in a sandbox of a Workdir. Without it, commands have
	// to look for one.
	Screen bool
	// Executable is a program that imports internal/guest/early. Empty: the
	// running program.
	Executable string
}

// Provider runs plain processes. See the warning in the package comment.
type Provider struct {
	dir, workdir, executable string
	screen                   bool

	starting sync.Mutex // held while a sandbox is started again
	mu       sync.Mutex
	live     map[sandbox.ID]*Instance // created here and not destroyed
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.Binder         = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
	_ driver.Instance       = (*Instance)(nil)
	_ driver.FileSystem     = (*Instance)(nil)
	_ driver.Archiver       = (*Instance)(nil)
	_ driver.Watcher        = (*Instance)(nil)
	_ driver.Overwriter     = (*Instance)(nil)
	_ driver.Describer      = (*Instance)(nil)
	_ driver.ProcessManager = (*Instance)(nil)
	_ driver.Dialer         = (*Instance)(nil)
	_ driver.DeadlineSetter = (*Instance)(nil)
	_ driver.Meter          = (*Instance)(nil)
)

// New opens the provider and removes the leftovers of killed processes from its
// directory.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "host.open", Message: "no directory given"}
	}
	dir, err := filepath.Abs(opts.Dir)
	if err == nil {
		err = os.MkdirAll(dir, dirMode())
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	if opts.Executable == "" {
		if opts.Executable, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p := &Provider{screen: opts.Screen, dir: dir, executable: opts.Executable, live: map[sandbox.ID]*Instance{}}
	if opts.Workdir != "" {
		if p.workdir, err = filepath.EvalSymlinks(opts.Workdir); err != nil {
			return nil, err
		}
	}
	return p, p.sweep()
}

// dirMode lets other users traverse the directory, if commands can run as other
// users.
func dirMode() fs.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

// Probe implements driver.Provider.
func (p *Provider) Probe(context.Context) (driver.Facts, error) {
	root := os.Geteuid() == 0
	why := "commands are plain processes of this machine"
	facts := driver.Facts{
		Provider: Name, Version: "1", Available: true, Isolation: sandbox.IsolationNone, SharesFiles: true,
		Findings: []driver.Finding{{
			Severity: driver.Warning, Subject: "isolation",
			Message: "no isolation: commands run with your rights on this machine and can read, change and reach everything that you can",
			Fix:     "use the gvisor provider for code that you do not trust",
		}, {
			Severity: driver.Note, Subject: "lifetime",
			Message: "a sandbox ends with the process that made it",
		}},
		Capabilities: driver.Capabilities{
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true, Users: root,
			Ports: true, Deadline: true, Usage: true, Rejoin: true,
		},
		Limits: map[string]driver.Limit{
			"cpus": {Why: why}, "memory": {Why: why}, "disk": {Why: why}, "pids": {Why: why},
			"lifetime": {Holds: true, By: "the process that made the sandbox"},
		},
	}
	if root {
		facts.Findings = append(facts.Findings, driver.Finding{
			Severity: driver.Warning, Subject: "root", Message: "you are root, so commands run as root",
		})
	}
	return facts, nil
}

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := supported(spec); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in, err := p.create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// EgressAbility implements driver.EgressEnforcer. The provider enforces
// nothing, so every rule is refused, unless its policy allows rules that are
// not enforced.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.None}
}

// Binding implements driver.Binder: sandboxes belong to their directory.
func (p *Provider) Binding(ctx context.Context) (string, error) { return p.dir, ctx.Err() }

// supported rejects settings that plain processes cannot have.
func supported(spec *sandbox.Spec) error {
	refuse := func(subject, message string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "host.create", Subject: subject, Message: message}
	}
	switch {
	case len(spec.Mounts) > 0:
		return refuse("mounts", "this provider has no mounts: commands see the whole machine")
	case spec.Network.Asked() && (spec.Network.Plain == nil || !spec.Network.Plain.Open):
		return refuse("network", "this provider cannot restrict the network: commands use the machine's network")
	}
	if err := (*Provider)(nil).CheckImage(spec.Image); err != nil {
		return err
	}
	return userSupported(spec.User)
}

// CheckImage implements driver.ImageChecker.
func (*Provider) CheckImage(image string) error {
	if image == "" || image == "host" {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Op: "host.create", Subject: "image", Message: "this provider has no images: its files are the machine's",
	}
}

func userSupported(user string) error {
	if user == "" || os.Geteuid() == 0 || user == fmt.Sprint(os.Getuid()) {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "user", Message: "only root can run commands as another user"}
}

// Attach implements driver.Provider. Only the process that created a sandbox
// can use it.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	in := p.live[id]
	p.mu.Unlock()
	if in != nil && !(p.workdir != "" && in.crashed()) {
		return in, nil
	}
	if sandbox.ValidateName(string(id)) != nil {
		return nil, goneError(id)
	}
	switch _, err := os.Lstat(p.path(id)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, goneError(id)
	case err != nil:
		return nil, err
	case p.workdir != "":
		return p.again(ctx, id)
	}
	return nil, &sandbox.Error{
		Code: sandbox.CodeUnsupported, Op: "host.attach", Subject: string(id),
		Message: "the sandbox belongs to another process, and only that can reach it",
	}
}

func goneError(id sandbox.ID) error {
	return &sandbox.Error{Code: sandbox.CodeGone, Subject: string(id), Message: "the sandbox does not exist"}
}

// List implements driver.Provider. It lists the sandboxes with a directory.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		entries, err := os.ReadDir(p.dir)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, e := range entries {
			if ctx.Err() != nil {
				yield(driver.Found{}, ctx.Err())
				return
			}
			if sandbox.ValidateName(e.Name()) != nil {
				continue
			}
			found, err := p.found(sandbox.ID(e.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed meanwhile
			}
			if !yield(found, err) || err != nil {
				return
			}
		}
	}
}

func (p *Provider) found(id sandbox.ID) (driver.Found, error) {
	rec, err := readRecord(p.path(id))
	if err != nil {
		return driver.Found{}, err
	}
	f := driver.Found{ID: id, State: sandbox.Running, Created: rec.Created, Labels: rec.Labels}
	p.mu.Lock()
	in := p.live[id]
	p.mu.Unlock()
	switch {
	case p.workdir != "": // it is started again when it is needed
	case in != nil:
		f.Labels = maps.Clone(f.Labels)
		if x, ended := in.hasEnded(); ended {
			f.State, f.Exit = sandbox.Stopped, &x
		}
	case !locked(p.path(id)):
		f.State = sandbox.Failed
		f.Exit = &sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the process that made the sandbox was killed"}
	}
	return f, nil
}

// ErrorCode implements driver.Provider.
func (p *Provider) ErrorCode(err error) sandbox.Code {
	switch {
	case err == nil:
		return ""
	case guest.ErrorCode(err) != "":
		return guest.ErrorCode(err)
	case errors.Is(err, fs.ErrPermission):
		return sandbox.CodeDenied
	case isFull(err):
		return sandbox.CodeExhausted
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist):
		return sandbox.CodeUnavailable // an error in the provider's directory
	}
	return ""
}

// Close implements driver.Provider. Sandboxes live until they are destroyed or
// this process ends; those of a Workdir end their commands.
func (p *Provider) Close() error {
	if p.workdir == "" {
		return nil
	}
	p.mu.Lock()
	live := slices.Collect(maps.Values(p.live))
	clear(p.live)
	p.mu.Unlock()
	for _, in := range live {
		in.end(sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the machine stopped its commands"})
	}
	for _, in := range live {
		<-in.ended
		in.lock.Close()
	}
	return nil
}

func (p *Provider) path(id sandbox.ID) string { return filepath.Join(p.dir, string(id)) }
