// Package store stores the desired state: tenants, their sandboxes, keys and
// limits, the nodes that hold them, and the rows of the event log. The provider
// knows what runs; the store knows what should run.
//
// One set of SQL statements serves SQLite, the default, and PostgreSQL, for
// several daemons that share names, keys, quotas and events while each owns
// its own sandboxes. The differences are in the files sqlite.go and
// postgres.go, and one suite of tests runs against both.
//
// All work is done in transactions, by [Store.View] and [Store.Update]. The
// methods for one kind of object are on a type of their own, such as
// [Sandboxes], which [Tx] returns. Every query about a tenant's objects contains
// the tenant's name. Operations that cross tenants are methods of [Operator].
//
// No secret is stored: values of environment variables are dropped, keys of
// callers and idempotency keys are stored as hashes. Errors are
// *sandbox.Error, safe to show; their causes are for logs.
package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Options of a Store. The zero value is right for a daemon.
type Options struct {
	// Now returns the time; nil means that of the database server, or time.Now for
	// a local file. The store keeps nanoseconds and no time zone.
	Now func() time.Time
	// Local replaces the clock of this machine in tests of the server's time.
	Local func() time.Time
	// Trace is called with every statement before it runs, without its parameters,
	// possibly concurrently. It is for tests and may be nil.
	Trace func(ctx context.Context, statement string)

	upTo     int64         // tests stop the migration at an earlier schema
	patience time.Duration // zero: serverPatience
}

// Store is an open database. It may be used concurrently.
type Store struct {
	dialect dialect
	upTo    int64
	write   *sql.DB // SQLite: one connection, so that writers queue instead of failing
	read    *sql.DB
	now     func() time.Time                            // nil: that of clock
	clock   *serverClock                                // nil: the clock of this machine is the time
	trace   func(ctx context.Context, statement string) // never nil
	reserve *reserve                                    // nil: not a local file
	// prepared contains the statements of each pool. Nil: the driver caches them.
	prepared map[*sql.DB]*statements

	// patience limits the wait for a connection and for the first answer to a
	// statement, if the database is another process. Zero: no limit.
	patience time.Duration
}

// serverPatience is how long a database server may take to answer. A stopped
// server keeps its connections but does not answer.
const serverPatience = 10 * time.Second

// errNoAnswer is the cause of a timeout while waiting for a server.
var errNoAnswer = errors.New("the database server has not answered for too long")

// patiently returns a context for a wait, which stop marks as over. If the wait
// takes too long, the context ends with errNoAnswer. The caller must release
// the context.
func (s *Store) patiently(ctx context.Context) (_ context.Context, stop func(error) error, release func()) {
	if s.patience == 0 {
		return ctx, func(err error) error { return err }, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.patience, func() { cancel(errNoAnswer) })
	stop = func(err error) error {
		timer.Stop()
		if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
			return errNoAnswer
		}
		return err
	}
	return ctx, stop, func() { cancel(nil) }
}

// dialect contains the differences between the databases.
type dialect interface {
	// classify converts an error of the driver into one that may be shown.
	classify(err error) *sandbox.Error
	// retryable reports whether the transaction had no effect and can be repeated:
	// it lost against another, or never reached the database.
	retryable(err error) bool
	// lostCommit reports whether a commit that failed with err may have happened.
	lostCommit(err error) bool
	// forUpdate returns the end of a SELECT that locks the rows it reads.
	forUpdate() string
	// forShare is forUpdate for rows that others may read, but not change, until
	// the transaction ends.
	forShare() string
	// readTx are the options of a transaction that only reads: it sees one
	// state of the database from its first statement to its last.
	readTx() *sql.TxOptions
	// shared reports whether other daemons may write to this database.
	shared() bool
	// backup writes a consistent copy into an empty file.
	backup(ctx context.Context, path string) error
}

// Open opens the database at url, creates it if it is missing, and migrates it
// to the schema of this program: "sqlite:PATH", a plain path, or
// "postgres://…". A database with a newer schema is refused. The caller closes
// the Store.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	if opts.Local == nil {
		opts.Local = time.Now
	}
	if opts.Trace == nil {
		opts.Trace = func(context.Context, string) {}
	}
	s := &Store{now: opts.Now, clock: &serverClock{local: opts.Local}, trace: opts.Trace, upTo: opts.upTo, patience: opts.patience}
	var err error
	scheme, rest, found := strings.Cut(url, ":")
	server := found && (scheme == "postgres" || scheme == "postgresql")
	if opts.Now == nil && !server {
		s.now = opts.Local
	}
	if s.now != nil {
		s.clock = nil
	}
	switch {
	case server:
		err = s.openPostgres(ctx, url)
	case found && scheme == "sqlite":
		err = s.openSQLite(ctx, strings.TrimPrefix(rest, "//"))
	case found && strings.HasPrefix(rest, "//"):
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "store", Message: "not a usable address", Hint: "use sqlite:PATH or postgres://USER@HOST/DATABASE"}
	default:
		err = s.openSQLite(ctx, url)
	}
	if err != nil {
		_ = s.Close() // the first error matters
		return nil, opErr("store.open", s.shown(err))
	}
	return s, nil
}

// Close closes the database. It waits for running transactions. Close is
// idempotent.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// Shared reports whether other daemons may write to the same database, so that
// changes must be polled.
func (s *Store) Shared() bool { return s.dialect.shared() }

// Now returns the time by the store's clock.
func (s *Store) Now() time.Time {
	if s.clock == nil {
		return s.now().UTC()
	}
	now, _ := s.clock.now()
	return now.UTC()
}

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	return s.View(ctx, func(tx *Tx) error {
		var one int
		return tx.queryRow(ctx, "SELECT 1").Scan(&one)
	})
}

// Tx is a transaction. It and the values that its methods return, such as
// [Sandboxes], belong to one goroutine and are valid until the function that
// got it returns.
type Tx struct {
	s         *Store
	tx        *sql.Tx
	prepared  *statements
	missed    []string // queries that are not prepared yet
	committed []func()
	releases  []func() // of the contexts of its queries
}

// OnCommit calls f after the transaction is committed.
func (tx *Tx) OnCommit(f func()) { tx.committed = append(tx.committed, f) }

// Now returns the time by the store's clock.
func (tx *Tx) Now() time.Time { return tx.s.Now() }

// maxTries limits how often a transaction is run that lost against another.
const maxTries = 8

// Update runs f in a transaction and commits it if f returns nil. The changes
// of f are atomic, and durable when Update returns nil.
//
// f may run several times, if the transaction lost against another or the
// connection broke before the commit. So it must have no effects outside the
// database, and must assign its results instead of adding to them. A
// CodeUnavailable error that says that the outcome is unknown means that the
// connection broke during the commit.
func (s *Store) Update(ctx context.Context, f func(*Tx) error) error {
	return s.withReserve(ctx, func() error {
		return s.retry(ctx, func() error { return s.run(ctx, s.write, nil, f) })
	})
}

// View runs f in a transaction that only reads and sees one state of the
// database. f may run several times, as in Update.
func (s *Store) View(ctx context.Context, f func(*Tx) error) error {
	return s.retry(ctx, func() error { return s.run(ctx, s.read, s.dialect.readTx(), f) })
}

// Read is View for a function with a result.
func Read[T any](ctx context.Context, s *Store, f func(*Tx) (T, error)) (out T, err error) {
	err = s.View(ctx, func(tx *Tx) (err error) { out, err = f(tx); return err })
	return out, err
}

// Write is Update for a function with a result.
func Write[T any](ctx context.Context, s *Store, f func(*Tx) (T, error)) (out T, err error) {
	err = s.Update(ctx, func(tx *Tx) (err error) { out, err = f(tx); return err })
	return out, err
}

// errOutcomeUnknown marks a commit without an answer. It must not be repeated,
// because it may have happened.
var errOutcomeUnknown = errors.New("the commit was sent and its answer was lost")

// commitTimeout limits a commit. A canceled caller does not, because a part
// could have reached the database.
const commitTimeout = 30 * time.Second

func (s *Store) run(ctx context.Context, db *sql.DB, opts *sql.TxOptions, f func(*Tx) error) error {
	waiting, stop, release := s.patiently(ctx)
	conn, err := db.Conn(waiting)
	release()
	if err = stop(err); err != nil {
		return err
	}
	tx := &Tx{s: s, prepared: s.prepared[db]}
	defer func() { tx.prepared.add(ctx, tx.missed) }() // needs a connection
	defer func() { _ = conn.Close() }()
	// When ctx ends, statements end, but not the transaction or its commit.
	txCtx, stop, release := s.patiently(context.WithoutCancel(ctx))
	defer release()
	txCtx, cancel := context.WithCancel(txCtx)
	defer cancel()
	began, err := conn.BeginTx(txCtx, opts)
	if err = stop(err); err != nil {
		return err
	}
	tx.tx = began
	defer tx.release()
	if err := tx.askTime(ctx); err != nil {
		return err
	}
	defer func() { // no effect after a commit
		if s.patience > 0 {
			defer time.AfterFunc(s.patience, cancel).Stop()
		}
		_ = began.Rollback()
	}()
	if err := f(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	timer := time.AfterFunc(commitTimeout, cancel)
	defer timer.Stop()
	if err := began.Commit(); err != nil {
		if opts == nil && s.dialect.lostCommit(err) {
			err = errors.Join(errOutcomeUnknown, err)
		}
		return err
	}
	for _, f := range tx.committed {
		f()
	}
	return nil
}

// retry runs a transaction until it succeeds, fails, or has lost too often.
// Delays increase.
func (s *Store) retry(ctx context.Context, run func() error) error {
	wait := 2 * time.Millisecond
	for try := 1; ; try++ {
		err := run()
		if err != nil && ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err) // drivers report it differently
		}
		if err == nil || ctx.Err() != nil || try == maxTries || errors.Is(err, errOutcomeUnknown) || !s.dialect.retryable(err) {
			return s.shown(err)
		}
		t := time.NewTimer(wait + jitter(wait))
		select {
		case <-ctx.Done():
			t.Stop()
			return s.shown(ctx.Err())
		case <-t.C:
		}
		wait *= 2
	}
}

// collect scans every row and closes rows.
func collect[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) (all []T, _ error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// scanner is a *sql.Row or a *sql.Rows.
type scanner interface{ Scan(dest ...any) error }

func (tx *Tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	tx.s.trace(ctx, query)
	ctx, stop, release := tx.s.patiently(ctx)
	defer release()
	res, err := tx.statement(ctx, query).ExecContext(ctx, args...)
	if err = stop(err); err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (tx *Tx) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.s.trace(ctx, query)
	ctx, stop, release := tx.s.patiently(ctx)
	tx.releases = append(tx.releases, release) // the rows need the context
	rows, err := tx.statement(ctx, query).QueryContext(ctx, args...)
	return rows, stop(err)
}

func (tx *Tx) queryRow(ctx context.Context, query string, args ...any) scanner {
	tx.s.trace(ctx, query)
	ctx, stop, release := tx.s.patiently(ctx)
	tx.releases = append(tx.releases, release)
	row := tx.statement(ctx, query).QueryRowContext(ctx, args...)
	if err := stop(row.Err()); err != nil {
		return noRow{err}
	}
	return row
}

// noRow is the result of a failed query.
type noRow struct{ err error }

func (r noRow) Scan(...any) error { return r.err }

// release ends the contexts of the transaction's queries.
func (tx *Tx) release() {
	for _, f := range tx.releases {
		f()
	}
}
