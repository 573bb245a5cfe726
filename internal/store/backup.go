package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/atoll-run/atoll/sandbox"
)

// Backup writes a consistent copy of the database to a new file, which only its
// owner can read, without stopping other work. The file appears complete or not
// at all; an existing one is CodeAlreadyExists. To restore it, stop the daemon
// and replace the database file. A PostgreSQL database is CodeUnsupported with
// advice.
func (s *Store) Backup(ctx context.Context, path string) error {
	if err := s.backup(ctx, path); err != nil {
		return opErr("store.backup", s.shown(err))
	}
	return nil
}

func (s *Store) backup(ctx context.Context, path string) (err error) {
	if s.Shared() {
		return s.dialect.backup(ctx, path)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".atoll-backup-*")
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if err := tmp.Close(); err != nil {
		return unavailable(err)
	}
	if err := s.dialect.backup(ctx, tmp.Name()); err != nil {
		return err
	}
	if err := syncFile(tmp.Name()); err != nil {
		return unavailable(err)
	}
	// A link, unlike a rename, never replaces what is there.
	if err := os.Link(tmp.Name(), path); err != nil {
		if errors.Is(err, os.ErrExist) {
			return fail(sandbox.CodeAlreadyExists, path, "the file exists")
		}
		return unavailable(err)
	}
	return syncFile(filepath.Dir(path))
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
