package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
)

// transaction is one on a connection, begun and ended at the driver itself.
// database/sql has a goroutine watch each transaction and each query of one, and
// waking threads for them takes longer than most statements.
type transaction struct {
	conn *sql.Conn
	tx   driver.Tx
	over bool
}

// begin begins a transaction, by default one that writes. It is ended before ctx
// is.
func begin(ctx context.Context, conn *sql.Conn, opts *driver.TxOptions) (*transaction, error) {
	if opts == nil {
		opts = &driver.TxOptions{}
	}
	t := &transaction{conn: conn}
	err := conn.Raw(func(c any) (err error) {
		beginner, ok := c.(driver.ConnBeginTx)
		if !ok {
			return errLacks
		}
		t.tx, err = beginner.BeginTx(ctx, *opts)
		return err
	})
	return t, err
}

// errLacks is about a driver of another version than this program was made for.
var errLacks = errors.New("the driver of the database lacks what it had")

func (t *transaction) commit() error {
	t.over = true // even if it fails
	return t.conn.Raw(func(any) error { return t.tx.Commit() })
}

// rollback undoes a transaction that was not committed. A connection on which
// that fails is of no use to anybody else.
func (t *transaction) rollback() {
	if !t.over {
		t.over = true
		_ = t.conn.Raw(func(any) error {
			if t.tx.Rollback() != nil {
				return driver.ErrBadConn
			}
			return nil
		})
	}
}

// brief returns the context of statements that read or write a few rows by
// their keys. With SQLite they are not cut short when ctx ends: the driver
// would have a goroutine watch each of them, which costs more than they do.
// Whoever has gone meanwhile is noticed before the commit.
func (tx *Tx) brief(ctx context.Context) context.Context { return tx.s.dialect.brief(ctx) }

func (tx *Tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	tx.s.trace(ctx, query)
	res, err := tx.conn.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (tx *Tx) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx.s.trace(ctx, query)
	return tx.conn.QueryContext(ctx, query, args...)
}

func (tx *Tx) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	tx.s.trace(ctx, query)
	return tx.conn.QueryRowContext(ctx, query, args...)
}
