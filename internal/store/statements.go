package store

import (
	"context"
	"database/sql"
	"sync"
)

// maxStatements limits the prepared statements of a pool. This package has
// fewer queries, but those that contain a list have many forms.
const maxStatements = 256

// statements contains the prepared statements of a pool of connections, by
// text. They are closed with the pool. A nil *statements stores none.
type statements struct {
	db  *sql.DB
	mu  sync.Mutex
	all map[string]*sql.Stmt
}

// statement is a query of a transaction: prepared before, or by the driver.
type statement interface {
	ExecContext(ctx context.Context, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, args ...any) *sql.Row
}

// text is a query that the driver prepares.
type text struct {
	tx    *sql.Tx
	query string
}

func (t text) ExecContext(ctx context.Context, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, t.query, args...)
}

func (t text) QueryContext(ctx context.Context, args ...any) (*sql.Rows, error) {
	return t.tx.QueryContext(ctx, t.query, args...)
}

func (t text) QueryRowContext(ctx context.Context, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, t.query, args...)
}

func (tx *Tx) statement(ctx context.Context, query string) statement {
	st, ok := tx.prepared.get(query)
	if st != nil {
		return tx.tx.StmtContext(ctx, st)
	}
	if ok {
		tx.missed = append(tx.missed, query)
	}
	return text{tx.tx, query}
}

// get returns the statement of a query. Otherwise it reports whether there is
// room for it.
func (s *statements) get(query string) (st *sql.Stmt, room bool) {
	if s == nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[query], len(s.all) < maxStatements
}

// add prepares queries. It uses a connection of the pool, so it must be called
// outside of transactions. A query that cannot be prepared now is prepared
// later.
func (s *statements) add(ctx context.Context, queries []string) {
	for _, q := range queries {
		if st, room := s.get(q); st != nil || !room {
			continue
		}
		st, err := s.db.PrepareContext(ctx, q)
		if err != nil {
			return
		}
		if !s.put(q, st) {
			_ = st.Close() // another caller was faster
		}
	}
}

func (s *statements) put(query string, st *sql.Stmt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[query] != nil || len(s.all) >= maxStatements {
		return false
	}
	if s.all == nil {
		s.all = map[string]*sql.Stmt{}
	}
	s.all[query] = st
	return true
}
