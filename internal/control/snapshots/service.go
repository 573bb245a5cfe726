// Package snapshots creates, stores and removes snapshots of sandboxes, and
// saves them to the blob store. Providers store the data. This package stores
// their references, passes each provider only its own, and decides what is
// removed.
package snapshots

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes gives access to the sandboxes that snapshots are taken of.
type Sandboxes interface {
	// LockForSnapshot authorises a snapshot of a sandbox, and waits for other
	// operations on it. The caller calls Release.
	LockForSnapshot(ctx context.Context, ref string) (*Locked, error)
	// Attach returns an unguarded handle on a recorded sandbox of this node.
	Attach(ctx context.Context, b *store.Sandbox) (*engine.Sandbox, error)
}

// Locked is a sandbox that no other operation changes until Release.
type Locked struct {
	Sandbox store.Sandbox
	Action  audit.Action
	Release func()
}

// Config configures a Service.
type Config struct {
	Providers *providers.Service
	Sandboxes Sandboxes
	// Environments stores the environment variables of sandboxes and snapshots.
	// Nil: they are not stored.
	Environments Environments
	// Archive saves named snapshots to the blob store, encrypted unless Plain is
	// set. Nil: they stay on this machine.
	Archive *archive.Archive
	Plain   bool
	// Images are the images of this machine. Those of templates are saved in Archive.
	// Nil: they stay on this machine.
	Images Images
	// Cache is the limit in bytes for copies of saved snapshots on this machine.
	Cache int64
	// Scratch is a directory for temporary files.
	Scratch string
}

// Service manages the snapshots of a daemon. It is safe for concurrent use.
type Service struct {
	*core.Core
	cfg     Config
	writing keyed.Inflight[string] // snapshots in progress that no sandbox record refers to
	archive archiving
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service {
	return &Service{Core: c, cfg: cfg, archive: newArchiving()}
}

// finalizeTimeout limits the recording of an outcome when the caller has gone.
const finalizeTimeout = 10 * time.Second

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns a new snapshot id.
func NewID() string {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails: it crashes the program instead
	return "sn-" + strings.ToLower(idEncoding.EncodeToString(b[:]))[:13]
}

// Describe fills in the record of a snapshot of a sandbox.
func Describe(b *store.Sandbox, s store.Snapshot) store.Snapshot {
	s.Parent, s.ParentName, s.Provider, s.Binding, s.Node, s.Image, s.Spec = b.ID, b.Name, b.Provider, b.Binding, b.Node, b.Image, b.Spec
	s.Spec.Resources = b.Resources
	return s
}

// CannotKeep returns the error for a sandbox that cannot be snapshotted.
func CannotKeep(b *store.Sandbox) error {
	if b.Spec.ID == "" {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: b.Name, Message: "the sandbox was created without a daemon, so its configuration for a restart is unknown",
			Hint: "create it while the daemon is running, see: atoll up --detach",
		}
	}
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: b.Name, Message: "this provider makes no snapshots"}
}

// Begin marks a snapshot without a record as being written or read, so that
// Sweep does not remove it until end is called.
func (svc *Service) Begin(id string) (end func()) { return svc.writing.Begin(id) }
