// Package snapshots creates, keeps and removes the snapshots of sandboxes, and
// saves them in the blob store. Providers keep the bytes. This package keeps
// their references, gives every provider only its own, and decides what is
// removed.
package snapshots

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes gives access to the sandboxes that snapshots are taken of.
type Sandboxes interface {
	// LockForSnapshot authorises a snapshot of a sandbox, and waits until nobody
	// else changes the sandbox. The caller calls Release.
	LockForSnapshot(ctx context.Context, ref string) (*Locked, error)
	// Attach returns a handle on a recorded sandbox of this node that passes no
	// guard.
	Attach(ctx context.Context, b *store.Sandbox) (*control.Sandbox, error)
}

// Locked is a sandbox that nobody else changes until Release.
type Locked struct {
	Sandbox store.Sandbox
	Action  audit.Action
	Release func()
}

// Config configures a Service.
type Config struct {
	Providers *providers.Service
	Sandboxes Sandboxes
	// Environments keeps the variables of sandboxes and snapshots. Nil: they are
	// not kept.
	Environments Environments
	// Archive keeps named snapshots in the blob store, encrypted unless Plain is
	// set. Nil: they stay on this machine.
	Archive *archive.Archive
	Plain   bool
	// Cache is the number of bytes that copies of saved snapshots may take on this
	// machine.
	Cache int64
	// Scratch is a directory for temporary files.
	Scratch string
}

// Service keeps the snapshots of a daemon. Its methods may be called
// concurrently.
type Service struct {
	*core.Core
	cfg     Config
	writing core.Inflight[string] // snapshots without a sandbox that answers for them
	archive archiving
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service {
	return &Service{Core: c, cfg: cfg, archive: newArchiving()}
}

// finalizeTimeout bounds the recording of an outcome when the caller is gone.
const finalizeTimeout = 10 * time.Second

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns a new id of a snapshot.
func NewID() string {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return "sn-" + strings.ToLower(idEncoding.EncodeToString(b[:]))[:13]
}

// Describe completes the record of a snapshot of a sandbox.
func Describe(b *store.Sandbox, s store.Snapshot) store.Snapshot {
	s.Parent, s.ParentName, s.Provider, s.Binding, s.Node, s.Image, s.Spec = b.ID, b.Name, b.Provider, b.Binding, b.Node, b.Image, b.Spec
	s.Spec.Resources = b.Resources
	return s
}

// CannotKeep returns why there can be no snapshot of a sandbox.
func CannotKeep(b *store.Sandbox) error {
	if b.Spec.ID == "" {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: b.Name, Message: "the sandbox was made without a daemon, which does not know what to start again",
			Hint: "make it while the daemon runs, see: atoll up --detach",
		}
	}
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: b.Name, Message: "this provider makes no snapshots"}
}

// Begin says that a snapshot which no record mentions is being written or read,
// so that its bytes stay until end is called.
func (svc *Service) Begin(id string) (end func()) { return svc.writing.Begin(id) }
