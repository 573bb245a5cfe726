package store

import (
	"context"
	"database/sql/driver"
	"errors"
)

// maxStatements bounds what one connection keeps prepared. Queries with lists
// of varying length are many.
const maxStatements = 256

// preparing connects to SQLite and keeps statements prepared: parsing them
// costs more than running most of them. PostgreSQL's driver does this itself.
type preparing struct {
	driver.Connector
	begin string // the statement that begins a transaction
}

func (p preparing) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := p.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := c.(sqliteConn)
	if !ok {
		_ = c.Close()
		return nil, errLacks
	}
	return &preparedConn{sqliteConn: full, begin: p.begin, ready: map[string]driver.Stmt{}}, nil
}

// sqliteConn is what a connection of the driver can do.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// preparedConn is a connection with its statements. database/sql uses it from
// one goroutine at a time.
type preparedConn struct {
	sqliteConn
	begin string
	ready map[string]driver.Stmt // those that nobody reads the rows of
}

// lend takes a statement out of those that are ready, or prepares it. What has
// no parameters is hardly ever asked twice, and may be several statements at
// once.
func (c *preparedConn) lend(ctx context.Context, query string, args []driver.NamedValue) (driver.Stmt, error) {
	if len(args) == 0 && query != c.begin && query != commit && query != rollback {
		return nil, driver.ErrSkip
	}
	if s := c.ready[query]; s != nil {
		delete(c.ready, query)
		return s, nil
	}
	return c.PrepareContext(ctx, query)
}

func (c *preparedConn) giveBack(query string, s driver.Stmt) error {
	if c.ready[query] != nil || len(c.ready) >= maxStatements {
		return s.Close()
	}
	c.ready[query] = s
	return nil
}

const (
	commit   = "COMMIT"
	rollback = "ROLLBACK"
)

// BeginTx begins a transaction with a statement that stays prepared: the
// driver would parse it, and the one that ends it, each time.
func (c *preparedConn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	if err := c.turn(ctx, c.begin); err != nil {
		return nil, err
	}
	return &preparedTx{c, ctx}, nil
}

// turn begins or ends a transaction. It does not watch the context: what was
// done must not be told as an error, or the connection would be in another
// state than its users believe. Other processes make it wait for no longer than
// the timeout of the connection.
func (c *preparedConn) turn(ctx context.Context, statement string) error {
	_, err := c.ExecContext(context.WithoutCancel(ctx), statement, nil)
	return err
}

type preparedTx struct {
	conn *preparedConn
	ctx  context.Context
}

// Commit implements driver.Tx. A transaction that could not be committed is
// over all the same: the next user of the connection must not find it.
func (t *preparedTx) Commit() error {
	err := t.conn.turn(t.ctx, commit)
	if err != nil {
		_ = t.Rollback() // refused when SQLite has done so itself
	}
	return err
}

// Rollback implements driver.Tx.
func (t *preparedTx) Rollback() error { return t.conn.turn(t.ctx, rollback) }

func (c *preparedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.lend(ctx, query, args)
	if errors.Is(err, driver.ErrSkip) {
		return c.sqliteConn.ExecContext(ctx, query, args)
	}
	if err != nil {
		return nil, err
	}
	res, err := s.(driver.StmtExecContext).ExecContext(ctx, args)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return res, c.giveBack(query, s)
}

func (c *preparedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.lend(ctx, query, args)
	if errors.Is(err, driver.ErrSkip) {
		return c.sqliteConn.QueryContext(ctx, query, args)
	}
	if err != nil {
		return nil, err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return &preparedRows{rows, c, query, s}, nil
}

func (c *preparedConn) Close() error {
	for query, s := range c.ready {
		_ = s.Close() // the connection's own Close tells what is wrong
		delete(c.ready, query)
	}
	return c.sqliteConn.Close()
}

// preparedRows give their statement back when they are closed.
type preparedRows struct {
	driver.Rows
	conn  *preparedConn
	query string
	stmt  driver.Stmt
}

func (r *preparedRows) Close() error {
	if r.stmt == nil {
		return nil
	}
	err := r.Rows.Close()
	if err != nil {
		_ = r.stmt.Close()
	} else {
		err = r.conn.giveBack(r.query, r.stmt)
	}
	r.stmt = nil
	return err
}
