// Package machine provides operations on the machine as a whole.
package machine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Service provides operations for the owner of the machine. It is safe for
// concurrent use.
type Service struct {
	*core.Core
	cfg Config
}

// Sandboxes reads the records of the sandboxes of this node that are not gone.
type Sandboxes interface {
	Recorded(ctx context.Context) ([]store.Sandbox, error)
}

// Providers are the providers of this daemon: the open ones, and one by its name
// (empty: the default).
type Providers interface {
	Opened() []*providers.Backend
	Backend(ctx context.Context, name string) (*providers.Backend, error)
}

// Config configures a Service.
type Config struct {
	Scratch   string // a directory for temporary files
	Sandboxes Sandboxes
	Providers Providers
	// Memory returns the bytes of free memory and of total memory.
	Memory func() (free, total int64)
	// Images lists the names of the images on this machine.
	Images func(ctx context.Context) ([]string, error)
	// Accept stores an image that another daemon sends, under its digest.
	Accept func(ctx context.Context, digest string, r io.Reader) error
	// ImageName returns the name in that list of an image in a request.
	ImageName func(image string) string
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service { return &Service{c, cfg} }

// copying is the prefix of Backup's temporary directories.
const copying = ".backup-"

// Sweep removes what a killed Backup left in a directory. It must not run at
// the same time as Backup.
func Sweep(scratch string) error {
	left, err := filepath.Glob(filepath.Join(scratch, copying+"*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// Backup returns a consistent copy of the database. The caller closes it.
func (s *Service) Backup(ctx context.Context) (copied io.ReadCloser, err error) {
	err = s.AsOwner(ctx, ops.StateBackup, "", func(ctx context.Context) error {
		dir, err := os.MkdirTemp(s.cfg.Scratch, copying)
		if err != nil {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "cannot create a directory for the copy", Cause: err}
		}
		defer func() { _ = os.RemoveAll(dir) }() // an open file can still be read
		path := filepath.Join(dir, "atoll.db")
		if err := s.Store.Backup(ctx, path); err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		copied = f
		return nil
	})
	return copied, err
}

// MayObserve allows the owner of the machine, and keys of the owner's tenant
// with the verb read, to see data about all tenants.
func (s *Service) MayObserve(ctx context.Context) error {
	const op = ops.MetricsGet
	who, err := s.Look(ctx, op, "")
	if err == nil && who.UID == nil && who.Tenant != key.DefaultTenant {
		err = &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "only the owner of the machine may do that"}
	}
	return err
}

// MayDiagnose allows the owner of the machine to examine the daemon.
func (s *Service) MayDiagnose(ctx context.Context) error {
	return s.AsOwner(ctx, ops.DaemonDiagnose, "", func(context.Context) error { return nil })
}
