package driver

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// EgressEnforcer is implemented by a provider that bounds by itself what its
// sandboxes reach. One that has Capabilities.Network needs it not.
type EgressEnforcer interface {
	// EgressAbility says what of a profile it enforces. A Spec with a network
	// then comes with Network.Plain, of which all must be enforced from the
	// first moment; what is not an allowed target does not leave.
	EgressAbility() sandbox.EgressAbility
}

// Binder is implemented by providers whose sandboxes belong to something that
// the provider can be pointed away from: an account of a service, an address, a
// directory of this machine. Callers store the binding with their record of a
// sandbox. They must not conclude anything from the absence of a sandbox unless
// the provider still has the same binding.
type Binder interface {
	// Binding names what sandboxes belong to. It is stable across processes,
	// differs whenever an Attach could miss a sandbox that exists elsewhere,
	// and can be shown and stored: it contains no secret, and none can be
	// derived from it. It asks nobody.
	Binding(ctx context.Context) (string, error)
}

// ImageChecker is implemented by providers whose images nobody fetches for them,
// as they have some of their own or none.
type ImageChecker interface {
	// CheckImage refuses an image that no sandbox can be made from, as
	// CodeUnsupported. It is asked before Create and asks nobody.
	CheckImage(image string) error
}

// StateTeller is implemented by providers whose service pauses and resumes
// sandboxes of its own accord, or because somebody else asks for it.
type StateTeller interface {
	// State asks whether a sandbox runs or is paused. It is CodeGone as Attach
	// is.
	State(ctx context.Context, id sandbox.ID) (sandbox.State, error)
}

// Resumer is implemented by instances that can stand still, though perhaps not
// because they are asked to.
type Resumer interface {
	// Resume lets a paused sandbox go on. Resuming what runs is success.
	Resume(ctx context.Context) error
}

// Drainer is implemented by a provider that makes sandboxes ahead of their
// users. It may be called at any time, concurrently.
type Drainer interface {
	// Drain ends those, one that is being made included, so that what they are
	// made of can be removed. It makes more when somebody asks for one again.
	Drain()
}

// Pauser is implemented by instances that can stand still in memory: the
// resident kind of pause. The other kind, to disk, is a [Snapshotter] with
// SnapshotOptions.Stop, and a [Restorer].
type Pauser interface {
	// Pause stops every process of the sandbox where it stands. Nothing of it
	// uses a processor until Resume; memory, files, processes, connections to
	// it and its deadline stay. Calls that need the sandbox to run wait for
	// Resume or their context. Pausing what is paused is success.
	Pause(ctx context.Context) error
	Resumer
}

// Snapshotter is implemented by instances whose state can be written down.
type Snapshotter interface {
	// Snapshot writes the state of the sandbox into dir, an existing empty
	// directory of the caller's on this machine, as files that only this
	// provider understands, and describes it. With opts.Stop the sandbox has
	// ended when Snapshot returns; otherwise it goes on, and stood still only
	// as long as it took. On an error what is in dir is rubbish and the
	// sandbox runs as before.
	Snapshot(ctx context.Context, dir string, opts SnapshotOptions) (Snapshot, error)
}

// SnapshotOptions say what to write down.
type SnapshotOptions struct {
	Memory bool // processes and their memory too, not only files
	Stop   bool // end the sandbox with it, losing nothing in between
	// Transient says that this process restores it within moments and then removes
	// it, so that it need not survive a crash nor be checked for damage.
	Transient bool
}

// Snapshot describes what a Snapshotter wrote.
type Snapshot struct {
	Memory bool   // memory was written
	Engine string // what can restore its memory; any build with the same engine
	Size   int64  // bytes of all files
}

// Restorer is implemented by providers that make sandboxes from snapshots.
type Restorer interface {
	// Restore is Create from a directory that Snapshot wrote, with spec's own
	// identity (id, name, host name), environment, limits and mounts. It only
	// reads dir, which the caller may remove when it has returned, but may not
	// write to: a sandbox may go on to read its memory from there.
	//
	// Memory is a cache and files are the truth: if the memory cannot be
	// restored here (it was written by another engine, or wants a processor
	// with more features), the sandbox starts from its files, and Restored
	// says so. A directory that is damaged is CodeInvalid, and nothing starts.
	Restore(ctx context.Context, spec *sandbox.Spec, dir string) (Instance, Restored, error)
}

// FileRestorer is implemented by the Restorers whose snapshots hold memory.
type FileRestorer interface {
	// RestoreFiles is Restore that leaves the memory of the snapshot aside: the
	// sandbox starts from its files, as if there had been nothing else.
	RestoreFiles(ctx context.Context, spec *sandbox.Spec, dir string) (Instance, error)
}

// Restored says what a Restorer could bring back.
type Restored struct {
	Memory bool   // processes go on where they were
	Why    string // why not, if the snapshot had memory
}

// Dialer is implemented by instances whose ports can be reached.
type Dialer interface {
	// Dial connects to a TCP port of the sandbox as a process inside would at
	// 127.0.0.1, so that services that listen on the loopback only are reached
	// too. If nothing listens on the port, the error is CodeUnavailable. The
	// caller closes the connection; CloseWrite works if it is a `CloseWrite()
	// error`.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
}

// Resizer is implemented by instances whose limits can change while they run.
type Resizer interface {
	// Resize changes the limits that are not zero; see sandbox.Resources. A
	// limit that cannot change is CodeUnsupported, and then none changes.
	Resize(ctx context.Context, limits sandbox.Resources) error
}

// DeadlineSetter is implemented by instances whose lifetime the provider itself
// enforces.
type DeadlineSetter interface {
	// SetDeadline replaces the time at which the sandbox ends by force. The
	// zero time means never.
	SetDeadline(ctx context.Context, at time.Time) error
}

// Meter is implemented by instances that know what they consume.
type Meter interface {
	Usage(ctx context.Context) (sandbox.Usage, error)
}

// Differ is implemented by instances that can tell what they changed of their
// image.
type Differ interface {
	// Diff writes the difference as a layer of an OCI image: a tar of what was
	// made or changed, with whiteouts for what was removed. Mounts are not
	// included. The sandbox stands still meanwhile.
	Diff(ctx context.Context, w io.Writer) error
}
