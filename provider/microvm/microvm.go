// Package microvm creates sandboxes as small virtual machines: QEMU with its
// microvm machine, a Linux kernel of a distribution, and Atoll's guest as the
// first process. A sandbox is separated from this machine by the processor's
// virtualization (KVM), or, only on request, by QEMU's emulation.
//
// A machine has disks with the layers of the image (EROFS), a disk with the
// writable layer, a serial device for the guest's connections, and, with a
// network, a card whose frames go to the egress gateway. It has no other access
// to this machine.
package microvm

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "microvm"

// Default limits for a Spec without limits. A machine always has a limit.
const (
	DefaultMemory = 2 << 30 // bytes
	DefaultDisk   = 4 << 30 // bytes
	DefaultPIDs   = 4096
)

// The values of Options.Accel.
const (
	AccelKVM = "kvm" // the processor's virtualization
	AccelTCG = "tcg" // emulation: slow, and no hardware isolation
)

// Options configure a Provider.
type Options struct {
	// StateDir is a directory for this provider alone. It is created if missing.
	StateDir string
	// SnapshotDir holds snapshots. Empty: "snapshots" in StateDir.
	SnapshotDir string
	// Images provides root file systems.
	Images Images
	// Network connects sandboxes whose Spec asks for a network. Nil: none can have
	// one.
	Network Network
	// Attached makes sandboxes end with this process, even if it is killed.
	Attached bool
	// Accel is AccelKVM or AccelTCG. Empty: AccelKVM.
	Accel string
	// Kernel is the file of a kernel, or a directory with the content of a package
	// of a distribution. Empty: the kernel of Setup, else one of /boot.
	Kernel string
	// Image is used for sandboxes with the image "host". Empty: they are refused,
	// because a machine does not see the files of this one.
	Image string
	// QEMU is QEMU's program. Empty: qemu-system-x86_64, or -aarch64, in PATH.
	QEMU string
	// Executable is a static program that imports internal/guest/early. It serves
	// as the guest if none is embedded. Empty: the running program.
	Executable string
}

// FromEnvironment returns options from the variables ATOLL_MICROVM_*.
func FromEnvironment(lookup func(string) string) Options {
	return Options{
		Accel: lookup("ATOLL_MICROVM_ACCEL"), Kernel: lookup("ATOLL_MICROVM_KERNEL"),
		Image: lookup("ATOLL_MICROVM_IMAGE"), QEMU: lookup("ATOLL_MICROVM_QEMU"),
	}
}

// Images resolves image references; package internal/image implements it.
type Images interface {
	Get(ctx context.Context, ref string, opts image.GetOptions) (*image.Image, error)
}

// Provider creates sandboxes as virtual machines. Its methods may be called
// concurrently.
type Provider struct {
	opts      Options
	sandboxes string // directory of state directories
	snapshots *snapshotstore.Snapshots
	swept     sync.Once

	mu        sync.Mutex
	instances map[sandbox.ID]*Instance
	closed    bool
	boot      *boot // nil: not found yet
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.Binder         = (*Provider)(nil)
	_ driver.Preparer       = (*Provider)(nil)
	_ driver.Instance       = (*Instance)(nil)
	_ driver.DeadlineSetter = (*Instance)(nil)
	_ driver.Pauser         = (*Instance)(nil)
	_ driver.Snapshotter    = (*Instance)(nil)
	_ driver.Restorer       = (*Provider)(nil)
	_ driver.FileRestorer   = (*Provider)(nil)
	_ driver.SnapshotKeeper = (*Provider)(nil)
)

// New returns a provider. It starts no process and uses only its directories.
func New(opts Options) (*Provider, error) {
	e := &sandbox.Error{Code: sandbox.CodeInvalid, Op: "microvm.open"}
	opts.Accel = cmp.Or(opts.Accel, AccelKVM)
	switch {
	case opts.StateDir == "" || opts.Images == nil:
		e.Message = "StateDir and Images are required"
		return nil, e
	case opts.Accel != AccelKVM && opts.Accel != AccelTCG:
		e.Subject, e.Message = opts.Accel, "the accelerator is kvm, or tcg for emulation"
		return nil, e
	}
	var err error
	if opts.StateDir, err = filepath.Abs(opts.StateDir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opts.StateDir, 0o700); err != nil {
		return nil, err
	}
	opts.QEMU = cmp.Or(opts.QEMU, qemuName())
	opts.SnapshotDir = cmp.Or(opts.SnapshotDir, filepath.Join(opts.StateDir, "snapshots"))
	p := &Provider{opts: opts, sandboxes: filepath.Join(opts.StateDir, "boxes"), instances: map[sandbox.ID]*Instance{}}
	p.snapshots = snapshotstore.NewSnapshots(opts.SnapshotDir, Name, describeSnapshot)
	return p, nil
}

func qemuName() string {
	if runtime.GOARCH == "arm64" {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// Binding implements driver.Binder: sandboxes belong to their state directory.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return identity.Of(filepath.Join(p.opts.StateDir, "identity"))
}

func (p *Provider) stateDir(id sandbox.ID) stateDir {
	return stateDir{filepath.Join(p.sandboxes, string(id))}
}

// gone is the error for a sandbox without a state directory.
func gone(id sandbox.ID) error {
	return &sandbox.Error{Code: sandbox.CodeGone, Subject: string(id), Message: "the sandbox does not exist"}
}

// Attach implements driver.Provider. It also returns a sandbox whose machine has
// ended, until that is destroyed.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if sandbox.ValidateName(string(id)) != nil {
		return nil, gone(id)
	}
	p.sweepOnce()
	r, err := p.stateDir(id).load()
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && r.Destroying:
		return nil, gone(id)
	case err != nil:
		return nil, err
	case !r.Ready:
		return nil, &sandbox.Error{Code: sandbox.CodeConflict, Op: "microvm.attach", Subject: string(id), Message: "the sandbox is still being made"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.instances[id]; in != nil {
		if _, ended := in.Ended(); !ended {
			return in, nil
		}
	}
	in := p.instance(r)
	p.instances[id] = in
	return in, nil
}

// List implements driver.Provider. It lists the state directories.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		p.sweepOnce()
		entries, err := os.ReadDir(p.sandboxes)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, e := range entries {
			if sandbox.ValidateName(e.Name()) != nil {
				continue
			}
			f, err := p.found(ctx, sandbox.ID(e.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue // destroyed meanwhile
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

func (p *Provider) found(ctx context.Context, id sandbox.ID) (driver.Found, error) {
	if err := ctx.Err(); err != nil {
		return driver.Found{}, err
	}
	b := p.stateDir(id)
	r, err := b.load()
	if err != nil {
		return driver.Found{}, err
	}
	f := driver.Found{ID: r.ID, State: sandbox.Running, Created: r.Created, Labels: r.Labels, Engine: r.Engine}
	switch {
	case !r.Ready:
		f.State = sandbox.Creating
	case !r.Machine.alive():
		exit := r.outcome()
		f.State, f.Exit = sandbox.Failed, &exit
		if exit.Reason == sandbox.ReasonLifetime || exit.Reason == sandbox.ReasonExited || exit.Reason == sandbox.ReasonKilled {
			f.State = sandbox.Stopped
		}
	default:
		if state, err := b.machineState(ctx); err == nil && state == statePaused {
			f.State = sandbox.Paused
		}
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
	case isFull(err):
		return sandbox.CodeExhausted
	case errors.Is(err, fs.ErrPermission):
		return sandbox.CodeDenied
	}
	return ""
}

// Close implements driver.Provider. Sandboxes keep running.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, in := range p.instances {
		in.release()
	}
	clear(p.instances)
	return nil
}

// withDefaults replaces limits that are not set. A negative limit is none, as far
// as a machine can have none.
func withDefaults(r sandbox.Resources) sandbox.Resources {
	for v, def := range map[*int64]int64{&r.Memory: DefaultMemory, &r.Disk: DefaultDisk, &r.PIDs: DefaultPIDs} {
		if *v == 0 {
			*v = def
		}
	}
	if r.Memory < 0 {
		r.Memory = hostMemory() / 2
	}
	if r.Disk < 0 {
		r.Disk = unlimitedDisk
	}
	r.PIDs, r.CPUs = max(r.PIDs, 0), max(r.CPUs, 0)
	return r
}

// unlimitedDisk is the size of a disk without a limit, in bytes. Its file has
// holes.
const unlimitedDisk = 1 << 40

// patience limits the requests to a machine in between.
const patience = 10 * time.Second
