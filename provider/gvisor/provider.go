// Package gvisor is Atoll's default provider. It embeds gVisor. A sandbox is
// two re-executed processes of this binary: a kernel that runs the sandbox's
// programs on its own system call interface and, if host paths are mounted, a
// file server. Both are isolated from the host. It needs no installation,
// neither Docker nor KVM, and no root.
//
// This is the only package that imports gVisor, except for the network stack of
// the egress gateway.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/provider/gvisor/guestimage"
	"github.com/atoll-run/atoll/provider/gvisor/pool"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the registered name of the provider.
const Name = "gvisor"

// kernelEnv names a static build of this program to run kernels from. Tests
// need it: a test binary with the race detector is not static, so a kernel
// could not re-execute it in its empty root.
const kernelEnv = "ATOLL_KERNEL"

// Default limits for a Spec without limits.
const (
	DefaultMemory = 2 << 30 // bytes
	DefaultDisk   = 4 << 30 // bytes
	DefaultPIDs   = 4096
)

// Options configure a Provider.
type Options struct {
	// StateDir stores the state of sandboxes. It is created if missing, must be on
	// a local file system, and may be shared by several processes.
	StateDir string
	// SnapshotDir holds snapshots. Empty: "snapshots" in StateDir.
	SnapshotDir string
	// Images provides root file systems.
	Images Images
	// Attached makes sandboxes end with this process, even if it is killed.
	// Otherwise they live until Destroy, or until their lifetime ends.
	Attached bool
	// Platform is PlatformSystrap or PlatformKVM. Empty: PlatformSystrap. If no
	// kernel starts with PlatformKVM, PlatformSystrap is used, and Probe says so.
	Platform string
	// Kernel is the executable that kernels run from. Empty: $ATOLL_KERNEL, else
	// this program. It must be static.
	Kernel string
	// DebugDir, if set, receives the log files of kernels and file servers.
	DebugDir string
	// Network connects sandboxes whose Spec requests a network. Nil: sandboxes
	// have only a loopback.
	Network Network
	// Pool is the maximum number of prewarmed sandboxes. The pool keeps the most
	// requested shapes. They use memory and are ended when memory is low. Zero:
	// only the sandboxes of Warm.
	Pool int
	// Fault is called at named points of creating and destroying a sandbox. Tests
	// use it to fail or to kill the process there. Nil does nothing.
	Fault func(point string) error
}

// Images resolves image references; package internal/image implements it.
type Images interface {
	Get(ctx context.Context, ref string, opts image.GetOptions) (*image.Image, error)
}

// Provider creates sandboxes on the embedded gVisor kernel. Its methods may be
// called concurrently.
type Provider struct {
	opts      Options
	sandboxes string // directory of state directories
	groups    func() cgroup.Root
	static    func() driver.Finding             // whether the kernel's executable is usable
	program   func() (*guestimage.Guest, error) // the guest of new sandboxes
	chosen    func() choice                     // the platform of new kernels
	opened    atomic.Pointer[guestimage.Guest]  // the same, if it is open
	reaper    reaper
	swept     sync.Once
	pool      *pool.Pool[*creation]

	snapshots *snapshotstore.Snapshots

	trialKernel string      // executable for try, in tests
	lowMemory   func() bool // too little memory for a pool; must not change after the first use

	mu        sync.Mutex
	instances map[sandbox.ID]*Instance
	closed    bool
	watching  bool          // watchMemory runs
	quit      chan struct{} // closed with the provider
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.Instance       = (*Instance)(nil)
	_ driver.FileSystem     = (*Instance)(nil)
	_ driver.Archiver       = (*Instance)(nil)
	_ driver.Watcher        = (*Instance)(nil)
	_ driver.Overwriter     = (*Instance)(nil)
	_ driver.Describer      = (*Instance)(nil)
	_ driver.ProcessManager = (*Instance)(nil)
	_ driver.Dialer         = (*Instance)(nil)
	_ driver.Resizer        = (*Instance)(nil)
	_ driver.DeadlineSetter = (*Instance)(nil)
	_ driver.Meter          = (*Instance)(nil)
	_ driver.Pauser         = (*Instance)(nil)
	_ driver.Snapshotter    = (*Instance)(nil)
	_ driver.Restorer       = (*Provider)(nil)
	_ driver.FileRestorer   = (*Provider)(nil)

	_ driver.SnapshotKeeper   = (*Provider)(nil)
	_ driver.SnapshotCopier   = (*Provider)(nil)
	_ driver.SnapshotExporter = (*Provider)(nil)
	_ driver.Binder           = (*Provider)(nil)
)

// Binding implements driver.Binder: sandboxes belong to their state directory.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return identity.Of(filepath.Join(p.opts.StateDir, "identity"))
}

// New returns a provider. It starts no process and uses only the state
// directory. Leftovers of killed processes are removed on first use.
func New(opts Options) (*Provider, error) {
	if opts.StateDir == "" || opts.Images == nil {
		return nil, errors.New("gvisor: StateDir and Images are required")
	}
	if opts.Kernel == "" {
		opts.Kernel = os.Getenv(kernelEnv)
	}
	if opts.Kernel == "" {
		opts.Kernel = argvSelf
	}
	if err := opts.choosePlatform(); err != nil {
		return nil, err
	}
	if opts.Fault == nil {
		opts.Fault = func(string) error { return nil }
	}
	if opts.SnapshotDir == "" {
		opts.SnapshotDir = filepath.Join(opts.StateDir, "snapshots")
	}
	sandboxes := filepath.Join(opts.StateDir, "boxes")
	if err := os.MkdirAll(sandboxes, 0o700); err != nil {
		return nil, err
	}
	p := &Provider{
		opts:      opts,
		lowMemory: lowMemory,
		snapshots: snapshotstore.NewSnapshots(opts.SnapshotDir, Name, snapshots.Describe),
		sandboxes: sandboxes,
		groups:    sync.OnceValue(cgroup.Find),
		static:    sync.OnceValue(func() driver.Finding { return probeKernelFile(opts.Kernel) }),
		instances: map[sandbox.ID]*Instance{},
		quit:      make(chan struct{}),
	}
	p.pool = pool.New(prewarmer{p}, opts.Pool)
	p.chosen = sync.OnceValue(p.choose)
	p.program = sync.OnceValues(func() (*guestimage.Guest, error) {
		found, err := guestimage.Find(opts.Kernel, opts.StateDir)
		p.opened.Store(found)
		return found, err
	})
	return p, nil
}

// sweepOnce removes the leftovers of killed processes on the first call. Only
// providers whose sandboxes outlive them search for orphaned kernels.
func (p *Provider) sweepOnce() {
	p.swept.Do(func() {
		_ = sweep(p.sandboxes, time.Now())
		if !p.opts.Attached {
			p.endOrphans()
		}
	})
}

func (p *Provider) stateDir(id sandbox.ID) stateDir {
	return stateDir{filepath.Join(p.sandboxes, string(id))}
}

// Attach finds a sandbox that any process created. It also finds one that has
// ended or does not answer, so that its outcome can be read and it can be
// destroyed.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	p.sweepOnce()
	p.mu.Lock()
	in := p.instances[id]
	p.mu.Unlock()
	if in != nil && !in.gone() {
		if err := in.retry(ctx); err != nil {
			return nil, err
		}
		return in, nil
	}
	b := p.stateDir(id)
	r, err := b.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, goneError(id)
	case err != nil:
		return nil, err
	case r.Destroying:
		return nil, goneError(id)
	case !r.Ready:
		return nil, &providerError{sandbox.CodeConflict, fmt.Sprintf("sandbox %s is still being made", id), nil}
	}
	in = newInstance(p, b, r)
	if err := in.reattach(ctx); err != nil {
		in.release()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if other := p.instances[id]; other != nil && !other.gone() {
		in.release()
		return other, nil
	}
	p.remember(in)
	return in, nil
}

// remember adds a sandbox to the known ones. p.mu is held.
func (p *Provider) remember(in *Instance) {
	p.instances[in.rec.ID] = in
	if !p.watching {
		p.watching = true
		go p.watchMemory()
	}
}

func goneError(id sandbox.ID) error {
	return &providerError{sandbox.CodeGone, fmt.Sprintf("there is no sandbox %s", id), nil}
}

// List lists the sandboxes in the state directory.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		p.sweepOnce()
		entries, err := os.ReadDir(p.sandboxes)
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || strings.HasPrefix(e.Name(), warmPrefix) {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield(driver.Found{}, err)
				return
			}
			f, err := p.found(sandbox.ID(e.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue // destroyed meanwhile
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

func (p *Provider) found(id sandbox.ID) (driver.Found, error) {
	b := p.stateDir(id)
	r, err := b.load()
	if err != nil {
		return driver.Found{}, err
	}
	f := driver.Found{ID: r.ID, State: sandbox.Running, Created: r.Created, Labels: r.Labels, Engine: r.Engine}
	rest, err := b.rest()
	if err != nil {
		return driver.Found{}, err
	}
	switch {
	case !b.dead() && r.Kernel.PID == 0, !r.Ready && !b.dead():
		f.State = sandbox.Creating
	case !b.dead() && rest == paused:
		f.State = sandbox.Paused
	case b.dead():
		exit := r.outcome(b, "")
		f.State, f.Exit = sandbox.Failed, &exit
		if exit.Reason == sandbox.ReasonExited || exit.Reason == sandbox.ReasonLifetime || rest == stopped {
			f.State = sandbox.Stopped
		}
	}
	return f, nil
}

// ErrorCode classifies errors of this provider, its guest and its images.
func (p *Provider) ErrorCode(err error) sandbox.Code {
	var pe *providerError
	if errors.As(err, &pe) {
		return pe.code
	}
	var se *sandbox.Error
	if errors.As(err, &se) {
		return se.Code
	}
	if code := guest.ErrorCode(err); code != "" {
		return code
	}
	switch {
	case errors.Is(err, context.Canceled):
		return sandbox.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return sandbox.CodeTimeout
	}
	return ""
}

// Close releases all sandboxes. It ends only those of the pool.
func (p *Provider) Close() error {
	p.pool.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		close(p.quit)
	}
	p.closed = true
	for id, in := range p.instances {
		in.release()
		delete(p.instances, id)
	}
	p.reaper.close()
	p.opened.Swap(nil).Close()
	return nil
}

// providerError is an error with a code.
type providerError struct {
	code  sandbox.Code
	msg   string
	cause error
}

func (e *providerError) Error() string {
	if e.cause != nil {
		return e.msg + ": " + e.cause.Error()
	}
	return e.msg
}

func (e *providerError) Unwrap() error { return e.cause }
