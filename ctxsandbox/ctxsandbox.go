// Package ctxsandbox is the ctx.sandbox interface of agent platforms, in Go. It
// is small, has strict defaults, and needs no other package of Atoll in an
// agent's code. The same code works with an embedded, a local and a remote
// daemon, and with every provider.
//
// The defaults are strict: without Egress no host can be reached, secrets are
// passed by name and never by value, and a sandbox ends when its lifetime is
// over.
package ctxsandbox

import (
	"context"
	"errors"
	"iter"
	"maps"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// Defaults of a SandboxSpec and of commands.
const (
	DefaultMemory   = 512 << 20        // bytes
	DefaultCPUs     = 1                // processors
	DefaultLifetime = time.Hour        // of a sandbox
	DefaultTimeout  = 10 * time.Minute // of a command
	// MaxOutput is the number of bytes of each output stream that are kept.
	MaxOutput = 1 << 20
)

// Workspace is the path of the workspace in a sandbox. With a workspace,
// commands start there.
const Workspace = sandbox.WorkspaceDir

// Unavailable matches, with errors.Is, the error of a call that failed because
// there is no daemon, or because it cannot make sandboxes. The call may have
// had an effect if the connection was lost.
var Unavailable error = &sandbox.Error{Code: sandbox.CodeUnavailable}

// SandboxSpec describes a sandbox to create. The zero value is usable.
type SandboxSpec struct {
	Name  string // empty: a generated name
	Image string // empty: the daemon's default
	// Memory, in bytes, and CPUs are limits. Zero: DefaultMemory and DefaultCPUs,
	// or the provider's fixed size if it has one.
	Memory int64
	CPUs   float64
	// Workspace is the name of a durable directory, which is mounted at /workspace.
	// It is created if there is none of that name.
	Workspace string
	// Secrets are names of stored secrets. For each there is an environment
	// variable of that name with a placeholder. The gateway replaces it by the
	// value, which is not in the sandbox.
	Secrets []string
	// Egress are the hosts that the sandbox can reach. Empty: none. A provider that
	// cannot enforce that is refused with CodeUnsupported.
	Egress []string
	Env    map[string]string
	// Labels are in every event and in the usage report.
	Labels   map[string]string
	Lifetime time.Duration // zero: DefaultLifetime
}

func (s *SandboxSpec) spec() sandbox.Spec {
	out := sandbox.Spec{
		Name: s.Name, Image: s.Image, Env: s.Env, Labels: s.Labels,
		Resources: sandbox.Resources{Memory: s.Memory, CPUs: s.CPUs},
		Lifetime:  sandbox.Lifetime{Timeout: s.Lifetime},
	}
	if out.Resources.Memory == 0 {
		out.Resources.Memory = DefaultMemory
	}
	if out.Resources.CPUs == 0 {
		out.Resources.CPUs = DefaultCPUs
	}
	if out.Lifetime.Timeout == 0 {
		out.Lifetime.Timeout = DefaultLifetime
	}
	// Not nil: without a network of its own, a sandbox of some providers has that
	// of the machine.
	out.Network.Egress = append([]string{}, s.Egress...)
	for _, name := range s.Secrets {
		out.Secrets = append(out.Secrets, sandbox.SecretRef{Name: name})
	}
	if s.Workspace != "" {
		out.Workspaces = []sandbox.WorkspaceMount{{Name: s.Workspace, Create: true}}
	}
	return out
}

// SandboxClient makes sandboxes and finds them again. Its methods may be called
// concurrently.
type SandboxClient struct{ client *atoll.Client }

// New returns a SandboxClient that uses c. The caller closes c when the
// SandboxClient is no longer used.
func New(c *atoll.Client) *SandboxClient { return &SandboxClient{c} }

// Create makes a sandbox. A name that is in use is CodeAlreadyExists.
func (c *SandboxClient) Create(ctx context.Context, spec SandboxSpec) (*SandboxHandle, error) {
	if spec.Memory < 0 || spec.CPUs < 0 || spec.Lifetime < 0 { // in sandbox.Spec, a negative number means no limit
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "sandbox.create", Subject: "limits", Message: "are below zero"}
	}
	full := spec.spec()
	for {
		s, err := c.client.Create(ctx, full, atoll.CreateOptions{})
		if err == nil {
			return &SandboxHandle{sandbox: s}, nil
		}
		if !fixed(err, &spec, &full.Resources) {
			return nil, err
		}
	}
}

// fixed removes the default limit that err refuses because all sandboxes of the
// provider have the same size. It reports whether there was such a limit.
func fixed(err error, asked *SandboxSpec, r *sandbox.Resources) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	switch {
	case !ok || e.Code != sandbox.CodeUnsupported:
	case e.Subject == "memory" && asked.Memory == 0 && r.Memory != 0:
		r.Memory = 0
		return true
	case e.Subject == "cpus" && asked.CPUs == 0 && r.CPUs != 0:
		r.CPUs = 0
		return true
	}
	return false
}

// Get returns the sandbox with that name. If there is none, it returns
// CodeNotFound.
func (c *SandboxClient) Get(ctx context.Context, name string) (*SandboxHandle, error) {
	s, err := c.client.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return &SandboxHandle{sandbox: s}, nil
}

// List yields the sandboxes that have all of the labels, newest first.
func (c *SandboxClient) List(ctx context.Context, labels map[string]string) iter.Seq2[*SandboxHandle, error] {
	return func(yield func(*SandboxHandle, error) bool) {
		for info, err := range c.client.List(ctx, atoll.ListOptions{Labels: maps.Clone(labels)}) {
			if err != nil {
				yield(nil, err)
				return
			}
			s, err := c.client.Get(ctx, string(info.ID))
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue // it was removed meanwhile
			}
			if !yield(&SandboxHandle{sandbox: s}, err) || err != nil {
				return
			}
		}
	}
}

// Remove ends the sandbox with that name. If there is none, that is success.
func (c *SandboxClient) Remove(ctx context.Context, name string) error {
	return c.client.Remove(ctx, name)
}

// removal bounds the removal of the sandbox of RunShell and RunPython.
const removal = 30 * time.Second

// RunShell runs a script in a new sandbox, and removes the sandbox before it
// returns. Timeout bounds the script; zero is DefaultTimeout.
func (c *SandboxClient) RunShell(ctx context.Context, script string, timeout time.Duration, spec SandboxSpec) (ExecResult, error) {
	return c.once(ctx, timeout, spec, func(h *SandboxHandle) (ExecResult, error) { return h.Shell(ctx, script, timeout) })
}

// RunPython is like RunShell, but runs a Python 3 program. The image must have
// python3.
func (c *SandboxClient) RunPython(ctx context.Context, program string, timeout time.Duration, spec SandboxSpec) (ExecResult, error) {
	return c.once(ctx, timeout, spec, func(h *SandboxHandle) (ExecResult, error) { return h.python(ctx, program, timeout) })
}

func (c *SandboxClient) once(ctx context.Context, timeout time.Duration, spec SandboxSpec, use func(*SandboxHandle) (ExecResult, error)) (res ExecResult, err error) {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if spec.Lifetime == 0 {
		spec.Lifetime = timeout + time.Minute // if this program crashes, the sandbox still ends
	}
	h, err := c.Create(ctx, spec)
	if err != nil {
		return res, err
	}
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
		defer cancel()
		err = errors.Join(err, h.Kill(late))
	}()
	return use(h)
}
