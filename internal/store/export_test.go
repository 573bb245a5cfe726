package store

import (
	"context"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// OpenAt opens a database and migrates it to an earlier schema only.
func OpenAt(ctx context.Context, url string, version int64) (*Store, error) {
	return Open(ctx, url, Options{upTo: version})
}

// OpenPatient opens a database with a limit for the server's response time.
func OpenPatient(ctx context.Context, url string, patience time.Duration) (*Store, error) {
	return Open(ctx, url, Options{patience: patience})
}

// Schemas returns the versions of the schema in order.
func Schemas(dialect string) (versions []int64) {
	files, err := fs.Glob(migrations, "migrations/"+dialect+"/*.sql")
	if err != nil {
		panic(err)
	}
	for _, f := range files {
		number, _, _ := strings.Cut(path.Base(f), "_")
		v, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			panic(err)
		}
		versions = append(versions, v)
	}
	return versions
}

// SetMaxPages simulates a disk that is full at a number of pages of 4 KiB.
func (s *Store) SetMaxPages(ctx context.Context, n int) error {
	var got int
	return s.write.QueryRowContext(ctx, "PRAGMA max_page_count = "+strconv.Itoa(n)).Scan(&got)
}

// Exec runs a statement directly, as an attacker or an earlier version could.
func (s *Store) Exec(ctx context.Context, query string, args ...any) error {
	_, err := s.write.ExecContext(ctx, query, args...)
	return err
}

// Check runs SQLite's integrity check.
func (s *Store) Check(ctx context.Context) (string, error) {
	var answer string
	err := s.read.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&answer)
	return answer, err
}

// Spin runs a statement that never ends.
func (tx *Tx) Spin(ctx context.Context) error {
	var n int64
	return tx.queryRow(ctx, `WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 - 1 FROM c)
		SELECT COUNT(*) FROM c`).Scan(&n)
}
