package driver

import (
	"context"
	"errors"
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
	// derived from it. Providers of several installations that reach the same
	// sandboxes have the same binding if they are Adopters. It asks nobody.
	Binding(ctx context.Context) (string, error)
}

// FormerBinder is implemented by Binders whose earlier versions named what
// sandboxes belong to in another way.
type FormerBinder interface {
	// FormerBindings returns the other names that records may have for what
	// Binding names.
	FormerBindings(ctx context.Context) ([]string, error)
}

// ErrElsewhere is in the chain of an error that says that a sandbox exists and
// belongs to another installation, which uses the same account. Its code is not
// CodeGone: nobody may make another one in its place.
var ErrElsewhere = errors.New("the sandbox belongs to another installation")

// Elsewhere is the error of calls on a sandbox that another installation has.
func Elsewhere(id sandbox.ID) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: string(id), Message: "another installation has the sandbox", Cause: ErrElsewhere,
		Hint: "use it there, or take it over with the envelope of its session there",
	}
}

// Adopter is implemented by Binders whose account several installations can use.
// A sandbox belongs to the installation that made it: no other lists it,
// attaches to it or ends it, until one adopts it.
type Adopter interface {
	// Adopt makes a sandbox that another installation with the same binding made
	// belong to this one. Spec has its ID and what it was made with. CodeGone is
	// evidence that nobody has such a sandbox. Adopting one's own is success.
	//
	// If the service can record whose a sandbox is, all calls of the other
	// installation fail from then on with an error that wraps ErrElsewhere.
	// Otherwise that one goes on as if it had it, and may end it.
	Adopt(ctx context.Context, spec *sandbox.Spec) error
}

// Permanent is implemented by providers whose sandboxes are machines of their
// users. Such a machine may be out of reach and is never gone: nobody can make
// another like it, and nobody but its user ends it.
type Permanent interface {
	// Permanent reports whether that is so. It asks nobody.
	Permanent() bool
}

// IsPermanent reports whether the sandboxes of a provider are never gone,
// whatever it says.
func IsPermanent(p any) bool {
	own, ok := As[Permanent](p)
	return ok && own.Permanent()
}

// SnapshotPauser is implemented by providers that may pause a sandbox while they
// take a snapshot of it: what is asked of the sandbox meanwhile may fail.
type SnapshotPauser interface {
	// SnapshotPauses reports whether that is so. It asks nobody.
	SnapshotPauses() bool
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
