package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/atoll-run/atoll/sandbox"
)

//go:embed migrations
var migrations embed.FS

// migrate upgrades the schema to the version of this program. There is no
// downgrade: an older program refuses the database, and needs a backup.
func (s *Store) migrate(ctx context.Context, d goose.Dialect, dir string) error {
	p, err := s.migrations(d, dir)
	if err != nil {
		return err
	}
	current, known, err := p.GetVersions(ctx)
	if err != nil {
		return s.shown(err)
	}
	if current > known {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: "store", Hint: "run the newer release, or restore a backup made before the upgrade",
			Message: fmt.Sprintf("the database was written by a newer release of Atoll: its schema is %d, and this one knows %d", current, known),
		}
	}
	if current == known {
		return nil
	}
	if s.upTo != 0 {
		known = s.upTo
	}
	if _, err := p.UpTo(ctx, known); err != nil {
		return notMigrated(s.shown(err), current, known)
	}
	return nil
}

// notMigrated describes a database that could not be migrated. A database of an
// unreleased version can have a schema number without the matching schema.
func notMigrated(err error, current, known int64) error {
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Code != sandbox.CodeInternal {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: "store", Cause: err,
		Message: fmt.Sprintf("the database calls its schema %d, and cannot be brought to %d: it is not what a release of Atoll wrote", current, known),
		Hint:    "run the program that wrote it, restore a backup, or name another database with --store or --store-file of: atoll up",
	}
}

func (s *Store) migrations(d goose.Dialect, dir string) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations/"+dir)
	if err != nil {
		return nil, err
	}
	opts := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger())}
	if d == goose.DialectPostgres {
		// Two daemons that start together take turns.
		l, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
		if err != nil {
			return nil, err
		}
		opts = append(opts, goose.WithSessionLocker(l))
	}
	return goose.NewProvider(d, s.write, files, opts...)
}
