package target

import (
	"context"
	"errors"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// RemoteSandboxes are the sandboxes of a daemon.
type RemoteSandboxes struct {
	env    *Env
	client *atoll.Client
}

// SandboxesOf returns the sandboxes of a client's daemon.
func (e *Env) SandboxesOf(c *atoll.Client) RemoteSandboxes { return RemoteSandboxes{e, c} }

// Warning asks the daemon about a provider that this program does not know. Asking
// makes the daemon probe all of its providers. Without a name, create warns of the
// provider that the daemon chose.
func (r RemoteSandboxes) Warning(ctx context.Context, provider string) string {
	known := slices.ContainsFunc(r.env.Providers, func(p ProviderInfo) bool { return p.Name == provider })
	if known || provider == "" {
		return r.env.WarningOf(provider)
	}
	all, err := r.client.Providers(ctx)
	if err != nil {
		return "" // the daemon refuses the provider, if it must
	}
	for _, p := range all {
		if p.Name == provider {
			return p.Warning
		}
	}
	return ""
}

// Tidy leaves it to the daemon to look after its sandboxes.
func (r RemoteSandboxes) Tidy(context.Context) {}

func (r RemoteSandboxes) Find(ctx context.Context, ref string) (Sandbox, error) {
	s, err := r.client.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	return RemoteSandbox{s}, nil
}

func (r RemoteSandboxes) List(ctx context.Context) ([]sandbox.Sandbox, error) {
	var out []sandbox.Sandbox
	for s, err := range r.client.List(ctx, atoll.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	slices.Reverse(out)
	return out, nil
}

// create creates the sandbox of a request and returns it with the command to
// run in it; nil if there is none.
func (r RemoteSandboxes) create(ctx context.Context, req *engine.RunRequest) (*atoll.Sandbox, *sandbox.Command, error) {
	spec := req.Spec
	var err error
	if spec.Image, err = AbsoluteImage(spec.Image); err != nil {
		return nil, nil, err
	}
	s, err := r.client.Create(ctx, spec, atoll.CreateOptions{Pull: req.Pull, Platform: req.Platform})
	if err != nil {
		return nil, nil, err
	}
	NoteReason(r.env, s.Info())
	if spec.Provider == "" && !r.env.Quiet {
		r.env.Warn(r.Warning(ctx, s.Info().Provider))
	}
	cmd := req.Command
	if cmd.Shell == "" {
		img := engine.ImageConfig{Entrypoint: s.Info().Entrypoint, Cmd: s.Info().Cmd}
		cmd.Args = engine.CommandLine(img, req.Entrypoint, cmd.Args)
	}
	switch {
	case cmd.Shell != "" || len(cmd.Args) > 0:
	case cmd.TTY != nil:
		cmd.Args = []string{"/bin/sh"} // interactive
	default:
		return s, nil, nil
	}
	return s, &cmd, nil
}

// AbsoluteImage names a local image as the daemon, which works elsewhere, can
// find it.
func AbsoluteImage(image string) (string, error) {
	for _, form := range []string{"oci:", "docker-archive:", "dir:", "tar:"} {
		if path, ok := strings.CutPrefix(image, form); ok && !strings.HasPrefix(path, "/") {
			here, err := filepath.Abs(".")
			return form + here + "/" + path, err
		}
	}
	return image, nil
}

// orphanTime is how long a sandbox that goes away with its command may be unused
// before the daemon removes it: its command ends execHold after the connection to us
// was lost, and then nothing uses it.
const orphanTime = 10 * time.Second

// remoteTeardown limits the removal of a sandbox after its caller has gone.
const remoteTeardown = 30 * time.Second

func (r RemoteSandboxes) Run(ctx context.Context, req engine.RunRequest, use func(context.Context, Sandbox, driver.Process) error) (exit sandbox.Exit, err error) {
	if !req.Keep && req.Spec.Lifetime.Idle == 0 {
		// If this process is killed, nothing else removes the sandbox.
		req.Spec.Lifetime.Idle, req.Spec.Lifetime.IdleAction = orphanTime, sandbox.IdleDelete
	}
	s, cmd, err := r.create(ctx, &req)
	if err != nil {
		return exit, err
	}
	if !req.Keep {
		defer func() {
			if errors.Is(err, term.ErrDetached) {
				return // the daemon removes it when the command has ended
			}
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), remoteTeardown)
			defer cancel()
			if failed := s.Destroy(late); failed != nil && err == nil {
				err = failed
			}
		}()
	}
	if cmd == nil {
		return exit, &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "command", Message: "none given, and the image names none",
			Hint: "say what to run, for example: atoll run -- echo hello",
		}
	}
	p, err := RemoteSandbox{s}.Exec(ctx, *cmd)
	if err != nil {
		return exit, err
	}
	defer p.Close()
	if err := use(ctx, RemoteSandbox{s}, p); err != nil {
		return exit, err
	}
	return p.Wait(ctx)
}

func (r RemoteSandboxes) Start(ctx context.Context, req engine.RunRequest) (Sandbox, error) {
	c := &req.Command
	if req.Entrypoint == nil || *req.Entrypoint != "" || len(c.Args) > 0 { // create has none at all
		m := sandbox.MainCommand{}
		if req.Spec.Main != nil {
			m = *req.Spec.Main
		}
		m.Args, m.Entrypoint, m.TTY, m.Stdin = c.Args, req.Entrypoint, c.TTY, c.Stdin
		req.Spec.Main = &m
	}
	s, _, err := r.create(ctx, &req)
	if err != nil {
		return nil, err
	}
	return RemoteSandbox{s}, nil
}

// execHold is how long a command waits for us when the daemon is replaced or
// the connection is cut. If we are gone, it is then hung up.
const execHold = 30 * time.Second

// RemoteSandbox is a sandbox of a daemon.
type RemoteSandbox struct{ *atoll.Sandbox }

func (s RemoteSandbox) Limits() map[string]sandbox.Enforcement { return s.Info().Limits }

// Main implements Sandbox.
func (s RemoteSandbox) Main() *sandbox.MainCommand { return s.Info().Main }

func (s RemoteSandbox) Stop(ctx context.Context, grace time.Duration) (bool, error) {
	info, err := s.Sandbox.Stop(ctx, grace)
	return info.State == sandbox.Stopped, err
}

func (s RemoteSandbox) Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error) {
	if !cmd.Background {
		cmd.Hold = execHold
	}
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s RemoteSandbox) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	p, err := s.Sandbox.Reconnect(ctx, id)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s RemoteSandbox) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	r, err := s.Sandbox.Logs(ctx, id, atoll.LogOptions(opts))
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (s RemoteSandbox) Files() Files { return remoteFiles{s.Sandbox.Files()} }

// remoteFiles shows files as drivers do.
type remoteFiles struct{ files atoll.Files }

func (f remoteFiles) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	return f.files.Stat(ctx, path)
}

func (f remoteFiles) List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return f.files.List(ctx, path, opts.Depth)
}

func (f remoteFiles) Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error {
	if opts.Zstd {
		return f.files.ExportZstd(ctx, path, w, opts.Exclude...)
	}
	return f.files.Export(ctx, path, w, opts.Exclude...)
}

func (f remoteFiles) Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error {
	return f.files.Import(ctx, path, r, opts.Owner)
}
