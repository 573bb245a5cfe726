package sandbox

import (
	"context"
	"errors"
	"strings"
)

// Code classifies an error for programs. Codes are part of the API: the list is
// append-only, and no code is ever renamed.
type Code string

// The codes.
const (
	CodeInvalid       Code = "invalid"        // the request can never succeed as written
	CodeNotFound      Code = "not_found"      // the subject, or something in it, such as a file or a process, does not exist
	CodeGone          Code = "gone"           // the sandbox is proved not to exist any more
	CodeAlreadyExists Code = "already_exists" // the name or path is taken
	CodeConflict      Code = "conflict"       // not possible in the present state of the subject
	CodeUnavailable   Code = "unavailable"    // could not be reached, or does not work on this machine; retry or fix the cause
	CodeUnauthorized  Code = "unauthorized"   // the API key is missing or not valid
	CodeDenied        Code = "denied"         // the caller is known but not allowed to do it
	CodeExhausted     Code = "exhausted"      // a quota, a limit or a disk is full
	CodeTimeout       Code = "timeout"
	CodeCanceled      Code = "canceled"
	CodeUnsupported   Code = "unsupported" // this provider cannot do that
	CodeStale         Code = "stale"       // the caller's lease was taken over
	CodeInternal      Code = "internal"    // a fault of Atoll itself
)

// Error is the type of all errors that the control plane returns. The text of
// Error() is safe to show to the caller. Cause is for logs and is not part of
// the text.
type Error struct {
	Code    Code   `json:"code"`
	Op      string `json:"op,omitempty"`      // the operation, e.g. "files.read"
	Subject string `json:"subject,omitempty"` // its object, e.g. a sandbox name or a path
	Message string `json:"message,omitempty"` // what is wrong, without a capital or a full stop
	Hint    string `json:"hint,omitempty"`    // what to do next
	Rule    string `json:"rule,omitempty"`    // policy rule that refused it, as POLICY.FIELD
	Cause   error  `json:"-"`
}

// Error returns "OP: SUBJECT: MESSAGE".
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
