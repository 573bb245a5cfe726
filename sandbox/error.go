package sandbox

import (
	"context"
	"errors"
	"strings"
)

// Code classifies an error for the program that gets it. Codes travel on the
// wire: the list is append-only and none is ever renamed.
type Code string

// The codes.
const (
	CodeInvalid       Code = "invalid"        // the request can never succeed as written
	CodeNotFound      Code = "not_found"      // something inside the request's subject is missing: a file, a process, an image
	CodeGone          Code = "gone"           // that very sandbox is proved not to exist any more
	CodeAlreadyExists Code = "already_exists" // the name or path is taken
	CodeConflict      Code = "conflict"       // not in the subject's present state
	CodeUnavailable   Code = "unavailable"    // could not be reached or is not possible on this machine; try again or fix it
	CodeUnauthorized  Code = "unauthorized"   // who are you?
	CodeDenied        Code = "denied"         // known, and not allowed
	CodeExhausted     Code = "exhausted"      // a quota, a limit or a disk is full
	CodeTimeout       Code = "timeout"
	CodeCanceled      Code = "canceled"
	CodeUnsupported   Code = "unsupported" // this provider cannot do that
	CodeStale         Code = "stale"       // the caller's lease was taken over
	CodeInternal      Code = "internal"    // a fault of Atoll itself
)

// Error is the one error type that leaves the control plane. Error() is safe
// to show to the caller; the cause is for logs and is not part of the text.
type Error struct {
	Code    Code   `json:"code"`
	Op      string `json:"op,omitempty"`      // what was tried, e.g. "files.read"
	Subject string `json:"subject,omitempty"` // on what, e.g. a sandbox name or a path
	Message string `json:"message,omitempty"` // what is wrong, without a capital or a full stop
	Hint    string `json:"hint,omitempty"`    // what to do next
	Rule    string `json:"rule,omitempty"`    // of the policy that refused it, as POLICY.FIELD
	Cause   error  `json:"-"`
}

// Error says what was tried, on what, and what is wrong.
func (e *Error) Error() string {
	var parts []string
	if e.Op != "" {
		parts = append(parts, e.Op)
	}
	if e.Subject != "" {
		parts = append(parts, e.Subject)
	}
	msg := e.Message
	if msg == "" {
		msg = strings.ReplaceAll(string(e.Code), "_", " ")
	}
	return strings.Join(append(parts, msg), ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is an *Error with the same code and no other
// field set, so that errors.Is(err, &Error{Code: CodeGone}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Op == "" && t.Subject == "" && t.Message == ""
}

// CodeOf returns the code of the first *Error in err's chain. Without one, a
// context error is CodeTimeout or CodeCanceled and everything else is
// CodeInternal. CodeOf(nil) is "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.DeadlineExceeded):
		return CodeTimeout
	case errors.Is(err, context.Canceled):
		return CodeCanceled
	}
	return CodeInternal
}
