package store

import (
	"context"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Level returns the schema version of the database, and the newest version that
// this program knows. Another daemon that shares the database may have migrated
// it further.
func (s *Store) Level(ctx context.Context) (have, know int64, err error) {
	names, err := fs.Glob(migrations, "migrations/sqlite/*.sql") // both dialects have the same numbers
	if err != nil {
		return 0, 0, err
	}
	for _, name := range names {
		number, _, _ := strings.Cut(path.Base(name), "_")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		know = max(know, n)
	}
	err = s.View(ctx, func(tx *Tx) error {
		return tx.queryRow(ctx, "SELECT MAX(version_id) FROM goose_db_version").Scan(&have)
	})
	return have, know, err
}
