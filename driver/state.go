package driver

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// EgressEnforcer is implemented by a provider that enforces egress rules
// itself. A provider with Capabilities.Network does not need it.
type EgressEnforcer interface {
	// EgressAbility says which parts of a profile it enforces. A Spec with a
	// network then has Network.Plain. The provider must enforce all of it from the
	// first moment, and block traffic to all targets that are not allowed.
	EgressAbility() enforce.Ability
}

// GatewayUser is implemented by EgressEnforcers that can connect sandboxes with
// Atoll's gateway, for rules that they cannot enforce themselves. A Spec with a
// network then has Network.Plain, unless the gateway has to enforce it.
type GatewayUser interface {
	EgressEnforcer
	// CanUseGateway reports whether new sandboxes can be connected. It makes no
	// network call.
	CanUseGateway() bool
	// UsesGateway reports whether a sandbox is connected. A daemon calls it for each
	// of its sandboxes when it is ready to serve the gateway.
	UsesGateway(ctx context.Context, id sandbox.ID) (bool, error)
}

// Binder is implemented by providers whose sandboxes belong to something that
// is configurable: an account of a service, an endpoint, or a directory of this
// machine. Callers store the binding with their record of a sandbox. If the
// provider has another binding now, a missing sandbox is no evidence that it is
// gone.
type Binder interface {
	// Binding names the account, endpoint or directory that sandboxes belong to. It
	// is stable across processes, and differs whenever Attach could miss a sandbox
	// that exists elsewhere. It can be shown and stored: it contains no secret, and
	// none can be derived from it. If several installations share an account, their
	// providers have the same binding if they are Adopters. Binding makes no
	// network call.
	Binding(ctx context.Context) (string, error)
}

// FormerBinder is implemented by Binders whose binding had another form in
// earlier versions.
type FormerBinder interface {
	// FormerBindings returns the earlier forms of Binding that records may still
	// have.
	FormerBindings(ctx context.Context) ([]string, error)
}

// ErrElsewhere is wrapped by errors that mean that a sandbox exists but belongs
// to another installation, which uses the same account. The code of such an
// error is not CodeGone, so that no replacement is made.
var ErrElsewhere = errors.New("the sandbox belongs to another installation")

// Elsewhere returns the error of calls on a sandbox that belongs to another
// installation.
func Elsewhere(id sandbox.ID) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: string(id), Message: "the sandbox belongs to another installation", Cause: ErrElsewhere,
		Hint: "use it there, or take it over with the envelope of its session there",
	}
}

// Adopter is implemented by Binders whose account several installations can use.
// A sandbox belongs to the installation that made it: no other lists it,
// attaches to it or ends it, until one adopts it.
type Adopter interface {
	// Adopt takes over a sandbox that another installation with the same binding
	// made. Spec is the Spec of the sandbox, with its ID. CodeGone means that no
	// installation has such a sandbox. Adopting a sandbox of this installation is
	// success.
	//
	// If the service can record the owner of a sandbox, all later calls of the
	// other installation fail with an error that wraps ErrElsewhere. Otherwise the
	// other installation does not notice, and may end the sandbox.
	Adopt(ctx context.Context, spec *sandbox.Spec) error
}

// Permanent is implemented by providers whose sandboxes are the users' own
// machines. Such a machine can be offline but is never gone: it cannot be made
// again, and only its user can end it.
type Permanent interface {
	// Permanent reports whether that is so. It makes no network call.
	Permanent() bool
}

// IsPermanent reports whether the sandboxes of a provider are permanent.
// CodeGone from such a provider is not believed.
func IsPermanent(p any) bool {
	own, ok := As[Permanent](p)
	return ok && own.Permanent()
}

// SnapshotPauser is implemented by providers that may pause a sandbox while
// they take a snapshot of it. Calls on the sandbox may fail meanwhile.
type SnapshotPauser interface {
	// SnapshotPauses reports whether that is so. It makes no network call.
	SnapshotPauses() bool
}

// ImageChecker is implemented by providers for which Atoll fetches no images,
// because they have their own images or none.
type ImageChecker interface {
	// CheckImage returns CodeUnsupported for an image from which the provider
	// cannot make a sandbox. It is called before Create and makes no network call.
	CheckImage(image string) error
}

// StateTeller is implemented by providers whose service can pause and resume
// sandboxes without a request from Atoll.
type StateTeller interface {
	// State asks the service whether a sandbox is running or paused. It returns
	// CodeGone under the same conditions as Attach.
	State(ctx context.Context, id sandbox.ID) (sandbox.State, error)
}

// Resumer is implemented by instances that can be paused, possibly only by
// their service.
type Resumer interface {
	// Resume continues a paused sandbox. A running sandbox is success.
	Resume(ctx context.Context) error
}

// SecretHolder is implemented by providers whose service stores secrets and
// inserts them by a gateway of its own. Spec.Secrets of Create and Restore contain
// only references that the provider holds.
type SecretHolder interface {
	// HoldsSecret reports whether sandboxes may use the service's secret of that
	// name. It makes no network call.
	HoldsSecret(name string) bool
}

// Holds reports whether a provider's service, and not Atoll, provides a secret.
func Holds(p Provider, ref sandbox.SecretRef) bool {
	own, ok := As[SecretHolder](p)
	return ok && ref.Mode != sandbox.SecretEnv && own.HoldsSecret(ref.Name)
}

// Drainer is implemented by a provider that keeps a pool of warm sandboxes.
// Drain may be called at any time, concurrently.
type Drainer interface {
	// Drain ends the sandboxes in the pool, including one that is being made, so
	// that their images can be removed. The pool fills again at the next request.
	Drain()
}

// Pauser is implemented by instances that can be paused in memory. Pausing on
// disk needs a [Snapshotter] with SnapshotOptions.Stop, and a [Restorer].
type Pauser interface {
	// Pause freezes every process of the sandbox. It uses no processor time until
	// Resume. Memory, files, processes, connections and the deadline are kept.
	// Calls that need a running sandbox block until Resume or until their context
	// ends. A paused sandbox is success.
	Pause(ctx context.Context) error
	Resumer
}

// Preparer is implemented by providers that need files which they can get by
// themselves.
type Preparer interface {
	// Prepare gets the files, and reports its progress. With a source, which is a file
	// or a directory of this machine, it takes them from there.
	Prepare(ctx context.Context, source string, say func(line string)) error
}

// Dialer is implemented by instances whose TCP ports can be reached.
type Dialer interface {
	// Dial connects to a TCP port of the sandbox from the sandbox's own loopback,
	// so that it also reaches servers that listen only on 127.0.0.1. If no server
	// listens on the port, the error is CodeUnavailable. The caller closes the
	// connection. If the connection has a method `CloseWrite() error`, it works.
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

// Meter is implemented by instances that report their resource usage.
type Meter interface {
	Usage(ctx context.Context) (sandbox.Usage, error)
}

// Differ is implemented by instances that can report their changes to the
// image.
type Differ interface {
	// Diff writes the changes as a layer of an OCI image: a tar of new and changed
	// files, with whiteouts for removed ones. Mounts are not included. The sandbox
	// is frozen meanwhile.
	Diff(ctx context.Context, w io.Writer) error
}
