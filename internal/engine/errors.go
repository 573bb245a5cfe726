package engine

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// maxMessage limits the length of an error text, part of which may come from
// inside a sandbox.
const maxMessage = 2048

// wrap converts any error to a *sandbox.Error. If it already is one, missing
// fields are filled in.
func (e *Engine) wrap(a Action, err error) error {
	if err == nil {
		return nil
	}
	out := sandbox.Error{Message: err.Error(), Cause: err}
	var known *sandbox.Error
	switch {
	case errors.As(err, &known):
		out.Code, out.Op, out.Subject, out.Hint, out.Rule = known.Code, known.Op, known.Subject, known.Hint, known.Rule
		if err == error(known) || err.Error() == known.Error() { // or joined with nothing
			out.Message = known.Message
		}
	default:
		out.Code = e.codeOf(err)
	}
	if out.Code == sandbox.CodeGone && driver.IsPermanent(e.cfg.Provider) {
		out.Code, out.Message, out.Hint = sandbox.CodeUnavailable, "the machine does not respond", "start it, or look at its connection"
	}
	if DiskFull(err) && known == nil {
		out.Code, out.Message, out.Hint = sandbox.CodeExhausted, diskFull, freeSpace
	}
	switch {
	case errors.Is(err, context.Canceled):
		out.Message = "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		out.Message = "took too long"
	}
	if out.Op == "" {
		out.Op = string(a.Op)
	}
	if out.Subject == "" {
		out.Subject = a.Subject
	}
	if out.Hint == "" {
		out.Hint = hint(out.Code)
	}
	out.Message = printable(out.Message)
	return &out
}

const (
	diskFull  = "the disk of the machine is full"
	freeSpace = "free some space on the disk of the state directory; running sandboxes continue"
)

// DiskFull reports whether a write failed because the disk is full.
func DiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Full returns the error for a full disk.
func Full(op string, cause error) error {
	return &sandbox.Error{Code: sandbox.CodeExhausted, Op: op, Message: diskFull, Hint: freeSpace, Cause: cause}
}

// codeOf returns the code of an error: from the error itself, the provider, or
// the images.
func (e *Engine) codeOf(err error) sandbox.Code {
	if code := e.cfg.Provider.ErrorCode(err); code != "" {
		return code
	}
	if e.cfg.Images != nil {
		if code := e.cfg.Images.ErrorCode(err); code != "" {
			return code
		}
	}
	return sandbox.CodeOf(err)
}

// hint returns what usually helps against errors with a code.
func hint(code sandbox.Code) string {
	switch code {
	case sandbox.CodeUnavailable:
		return "see what this machine lacks with: atoll doctor"
	case sandbox.CodeGone:
		return "see what exists with: atoll ls"
	case sandbox.CodeUnsupported:
		return "see what each provider can do with: atoll provider ls"
	case sandbox.CodeInternal:
		return "this is a fault of Atoll; please report it together with the output of: atoll doctor"
	}
	return ""
}

// printable escapes and shortens text that may come from inside a sandbox, for
// display on a terminal or in a log.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			return '\ufffd'
		}
		return r
	}, s)
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

func invalid(op, subject, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: op, Subject: subject, Message: message, Hint: hint}
}
