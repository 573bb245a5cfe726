package store

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/atoll-run/atoll/sandbox"
)

// readers is the number of connections for reading.
const readers = 4

type sqliteDialect struct {
	db *sql.DB // readers
}

// openSQLite opens the file at path. It creates a missing directory, for its
// owner only.
func (s *Store) openSQLite(ctx context.Context, path string) (err error) {
	if path == "" || strings.ContainsRune(path, 0) || path == ":memory:" {
		return fail(sandbox.CodeInvalid, "store", "not the path of a database")
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	unlock, err := prepareFile(path)
	if err != nil {
		return err
	}
	defer unlock()
	// synchronous=FULL makes a commit durable before it is acknowledged, which
	// WAL alone does not.
	common := []string{"busy_timeout(10000)", "foreign_keys(1)", "synchronous(FULL)", "temp_store(MEMORY)"}
	if s.write, err = openFile(path, "immediate", 1, append(common, "journal_mode(WAL)", "journal_size_limit(67108864)")...); err != nil {
		return err
	}
	if s.read, err = openFile(path, "deferred", readers, append(common, "query_only(1)")...); err != nil {
		return err
	}
	s.dialect = &sqliteDialect{db: s.read}
	s.prepared = map[*sql.DB]*statements{s.write: {db: s.write}, s.read: {db: s.read}}
	s.reserve = openReserve(path + ".reserve")
	return s.migrate(ctx, goose.DialectSQLite3, "sqlite")
}

// prepareFile makes the database file readable for its owner only; SQLite's
// other files inherit that. It prevents concurrent migrations by other
// processes until unlock is called.
func prepareFile(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, unavailable(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unavailable(err)
	}
	// POSIX locks of SQLite would be dropped if a descriptor of the database
	// itself were closed, so the lock uses a separate file.
	if err := f.Close(); err != nil {
		return nil, unavailable(err)
	}
	l, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := unix.Flock(int(l.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(unavailable(err), l.Close())
	}
	return func() { _ = l.Close() }, nil
}

// openFile opens a database. begin is the locking mode of its transactions.
func openFile(path, begin string, conns int, pragmas ...string) (*sql.DB, error) {
	q := url.Values{"_pragma": pragmas, "_txlock": {begin}}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	c, err := sqlite.NewConnector(u.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func (*sqliteDialect) forUpdate() string      { return "" } // the one writer has locked everything
func (*sqliteDialect) forShare() string       { return "" }
func (*sqliteDialect) shared() bool           { return false }
func (*sqliteDialect) readTx() *sql.TxOptions { return &sql.TxOptions{ReadOnly: true} }

// retryable is only about other processes: within this one, writers queue.
func (*sqliteDialect) retryable(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && (e.Code()&0xff == lib.SQLITE_BUSY || e.Code()&0xff == lib.SQLITE_LOCKED)
}

func (*sqliteDialect) lostCommit(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == lib.SQLITE_IOERR
}

func (*sqliteDialect) classify(err error) *sandbox.Error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return internal(err)
	}
	switch e.Code() {
	case lib.SQLITE_CONSTRAINT_UNIQUE, lib.SQLITE_CONSTRAINT_PRIMARYKEY:
		return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "store", Cause: err}
	case lib.SQLITE_CONSTRAINT_FOREIGNKEY:
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "store", Cause: err, Message: "the parent object does not exist"}
	}
	switch e.Code() & 0xff {
	case lib.SQLITE_FULL:
		return exhausted(err)
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_IOERR, lib.SQLITE_CANTOPEN, lib.SQLITE_READONLY, lib.SQLITE_PERM, lib.SQLITE_NOLFS:
		return unavailable(err)
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return &sandbox.Error{
			Code: sandbox.CodeInternal, Op: "store", Cause: err,
			Message: "the database file is damaged", Hint: "restore a backup",
		}
	}
	return internal(err)
}

func (d *sqliteDialect) backup(ctx context.Context, path string) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// The copy only reads, but the setting would refuse it.
	if _, err := conn.ExecContext(ctx, "PRAGMA query_only = 0"); err != nil {
		return err
	}
	defer func() { _, _ = conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA query_only = 1") }()
	_, err = conn.ExecContext(ctx, "VACUUM INTO $1", path)
	return err
}
