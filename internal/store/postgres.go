package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	pgConns    = 16
	pgIdle     = 4
	pgLifetime = 30 * time.Minute // lets a failed-over or rebalanced server go
)

// postgresDialect relies on row locks at the isolation level "read committed".
// Decisions that must be made one at a time (about the names and quota of a
// tenant, the head of its log, or a changing sandbox) are made by the holder of
// that row's lock. Each statement after the lock sees everything that was
// committed before. Locks are taken in the order tenant, sandbox, head of the
// log. Under load, "serializable" would abort and repeat transactions that only
// need to queue.
type postgresDialect struct{}

func (s *Store) openPostgres(ctx context.Context, url string) error {
	s.dialect, s.patience = postgresDialect{}, cmp.Or(s.patience, serverPatience)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		// The cause quotes the address, which may contain a password.
		return fail(sandbox.CodeInvalid, "store", "not a usable address of a PostgreSQL database")
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	for name, value := range map[string]string{
		"application_name":                    "atoll",
		"idle_in_transaction_session_timeout": "60000", // a frozen daemon must not hold locks for ever
		"timezone":                            "UTC",
	} {
		if _, set := cfg.RuntimeParams[name]; !set {
			cfg.RuntimeParams[name] = value
		}
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(pgConns)
	db.SetMaxIdleConns(pgIdle)
	db.SetConnMaxLifetime(pgLifetime)
	s.write, s.read = db, db
	if err := s.migrate(ctx, goose.DialectPostgres, "postgres"); err != nil {
		return err
	}
	return s.Ping(ctx) // also asks for the time
}

// forUpdate does not block transactions that only refer to the row. "FOR
// UPDATE" could deadlock: the writer of an event, which holds the head of a
// log, would wait for the holder of the tenant, which waits for that head.
func (postgresDialect) forUpdate() string { return " FOR NO KEY UPDATE" }
func (postgresDialect) forShare() string  { return " FOR SHARE" }
func (postgresDialect) shared() bool      { return true }

func (postgresDialect) readTx() *sql.TxOptions {
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

func (postgresDialect) retryable(err error) bool {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code == "40001" || e.Code == "40P01" || lostSession(e.Code)
	}
	var connect *pgconn.ConnectError
	return !errors.As(err, &connect) && (pgconn.SafeToRetry(err) || connectionLost(err))
}

// lostSession reports whether the server ended a session that did nothing
// wrong.
func lostSession(code string) bool {
	return strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "08")
}

func (postgresDialect) lostCommit(err error) bool {
	var e *pgconn.PgError
	return !errors.As(err, &e) || lostSession(e.Code)
}

func (postgresDialect) classify(err error) *sandbox.Error {
	var e *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &connect):
		return unreachable(err)
	case !errors.As(err, &e):
		return internal(err)
	case e.Code == "23505":
		return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "store", Cause: err}
	case e.Code == "23503":
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "store", Cause: err, Message: "the parent object does not exist"}
	case e.Code == "53100":
		return exhausted(err)
	}
	switch e.Code[:min(2, len(e.Code))] {
	case "08", "25", "28", "3D", "40", "53", "55", "57", "58":
		// Connection, read-only server, credentials, lost races, resources.
		return unavailable(err)
	}
	return internal(err)
}

func (postgresDialect) backup(context.Context, string) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Message: "a PostgreSQL database is backed up with its own tools",
		Hint: "use pg_dump --format=custom, and pg_restore to go back",
	}
}
