package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// shown converts any error into one that may leave the package. It keeps a
// *sandbox.Error and the error of a context.
func (s *Store) shown(err error) error {
	var known *sandbox.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, errOutcomeUnknown):
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "store", Cause: err,
			Message: "the connection to the database broke during a commit: its outcome is unknown",
			Hint:    "check whether it was done before you repeat it, or repeat it with the same idempotency key",
		}
	case errors.Is(err, errNoAnswer):
		return unreachable(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &sandbox.Error{Code: sandbox.CodeOf(err), Op: "store", Cause: err}
	case s.dialect == nil:
		return unavailable(err)
	case connectionLost(err):
		return unreachable(err)
	}
	return s.dialect.classify(err)
}

// connectionLost reports whether the database could not be reached.
func connectionLost(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

func unavailable(cause error) *sandbox.Error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "store", Cause: cause,
		Message: "the database cannot be used", Hint: "see the log of the daemon for the cause",
	}
}

func unreachable(cause error) *sandbox.Error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "store", Cause: cause,
		Message: "the database does not answer", Hint: "check that it runs, and its address, user and password",
	}
}

func exhausted(cause error) *sandbox.Error {
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Op: "store", Cause: cause,
		Message: "the database's disk is full; nothing was changed", Hint: "free some space",
	}
}

func internal(cause error) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeInternal, Op: "store", Cause: cause, Message: "the database refused a statement"}
}

func fail(code sandbox.Code, subject, format string, args ...any) error {
	return &sandbox.Error{Code: code, Subject: clip(subject), Message: fmt.Sprintf(format, args...)}
}

// opErr names the operation in an error that has none.
func opErr(op string, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && (e.Op == "" || e.Op == "store") {
		e.Op = op
	}
	return err
}

// lists are the commands that show what exists of something. Snapshots and
// templates have hints of their own.
var lists = map[string]string{
	"sandbox": "atoll ls", "session": "atoll session ls", "workspace": "atoll workspace ls",
	"recording": "atoll record ls", "profile": "atoll profile ls", "secret": "atoll secret ls",
	"key": "atoll key ls", "tenant": "atoll tenant ls", "machine": "atoll machine ls", "node": "atoll node ls",
}

// missing converts sql.ErrNoRows to CodeNotFound.
func missing(err error, what, subject string) error {
	if errors.Is(err, sql.ErrNoRows) {
		e := &sandbox.Error{Code: sandbox.CodeNotFound, Op: "store", Subject: clip(subject), Message: "no such " + what}
		if list := lists[what]; list != "" {
			e.Hint = "see what exists with: " + list
		}
		return e
	}
	return err
}

// clip shortens input for error messages.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// jitter spreads the retries of conflicting transactions.
func jitter(d time.Duration) time.Duration { return rand.N(d) }

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
