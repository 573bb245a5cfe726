package bridgeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf16"

	"github.com/atoll-run/atoll/sandbox"
)

// The error codes of the bridge.
const (
	codeUnauthorized = "unauthorized"
	codeForbidden    = "forbidden" // the bridge has no permissions, so this one is Atoll's
	codeInvalid      = "invalid_request"
	codeMissing      = "workspace_read_not_found"
	codeTooLarge     = "payload_too_large"
	codeTimeout      = "exec_timeout" // Atoll's, too
	codeTransport    = "exec_transport_error"
	codeRead         = "workspace_archive_read_error"
	codeWrite        = "workspace_archive_write_error"
	codeCapacity     = "capacity_exceeded"
	codePool         = "pool_error"
	codeMount        = "mount_error"
	codeUnmount      = "unmount_error"
	codeSession      = "session_error"
	codeTunnel       = "tunnel_error"
)

// problem is the JSON of an error.
type problem struct {
	status int
	Text   string `json:"error"`
	Code   string `json:"code"`
}

func (p *problem) Error() string { return p.Text }

func invalid(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...), codeInvalid}
}

// outside returns the error for a path outside of root. what names the field.
func outside(what string) error {
	return &problem{http.StatusForbidden, what + " must resolve to a location within " + root, codeInvalid}
}

func missing(p string) error {
	return &problem{http.StatusNotFound, fmt.Sprintf("file not found: %.200s", p), codeMissing}
}

// answerOf converts err to a problem and an HTTP status. failed is the code for
// an operation that failed in the sandbox or in the daemon. The text of an
// error that is not a *sandbox.Error is not shown.
func answerOf(err error, failed string) *problem {
	var ready *problem
	if errors.As(err, &ready) {
		return ready
	}
	p := &problem{http.StatusBadGateway, "internal error", failed}
	var known *sandbox.Error
	if errors.As(err, &known) {
		p.Text = known.Error()
		if known.Hint != "" {
			p.Text += " (" + known.Hint + ")"
		}
	}
	switch sandbox.CodeOf(err) {
	case sandbox.CodeInvalid:
		p.status, p.Code = http.StatusBadRequest, codeInvalid
	case sandbox.CodeUnauthorized:
		p.status, p.Code = http.StatusUnauthorized, codeUnauthorized
	case sandbox.CodeDenied:
		p.status, p.Code = http.StatusForbidden, codeForbidden
	case sandbox.CodeExhausted, sandbox.CodeUnavailable: // clients retry
		p.status, p.Code = http.StatusServiceUnavailable, codeCapacity
	case sandbox.CodeNotFound:
		if failed == codeRead {
			p.status, p.Code = http.StatusNotFound, codeMissing
		}
	}
	return p
}

// fail answers a request with an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error, failed string) {
	p := answerOf(err, failed)
	if p.Text == "internal error" {
		h.opts.Logger.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "error", err, "cause", errors.Unwrap(err))
	}
	writeJSON(w, p.status, p)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(ascii(v), '\n')) // the caller may be gone
}

// ascii returns JSON in pure ASCII, because a client decodes each received
// chunk separately, and fails at a split character.
func ascii(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is a struct of this package
	}
	var b strings.Builder
	for _, c := range string(text) {
		switch {
		case c < 0x80:
			b.WriteByte(byte(c))
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, c)
		}
	}
	return []byte(b.String())
}
