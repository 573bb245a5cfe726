package e2bapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
)

// problem is an error in E2B's format. Some read the status from the body.
type problem struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"`
}

var statuses = map[sandbox.Code]int{
	sandbox.CodeInvalid:       http.StatusBadRequest,
	sandbox.CodeNotFound:      http.StatusNotFound,
	sandbox.CodeGone:          http.StatusNotFound, // a sandbox that is gone does not exist for E2B's clients
	sandbox.CodeAlreadyExists: http.StatusConflict,
	sandbox.CodeConflict:      http.StatusConflict,
	sandbox.CodeUnavailable:   http.StatusServiceUnavailable,
	sandbox.CodeUnauthorized:  http.StatusUnauthorized,
	sandbox.CodeDenied:        http.StatusForbidden,
	sandbox.CodeExhausted:     http.StatusTooManyRequests,
	sandbox.CodeTimeout:       http.StatusGatewayTimeout,
	sandbox.CodeCanceled:      499, // as nginx calls a caller that went away
	sandbox.CodeUnsupported:   http.StatusNotImplemented,
	sandbox.CodeStale:         http.StatusConflict,
}

// newProblem converts an error. The text of errors other than *sandbox.Error is
// not shown to the caller.
func newProblem(err error) *problem {
	code := sandbox.CodeOf(err)
	p := &problem{Code: http.StatusInternalServerError, Message: "internal error"}
	if status, ok := statuses[code]; ok {
		p.Code, p.Message, p.ErrorCode = status, string(code), "atoll_"+string(code)
	}
	var known *sandbox.Error
	if errors.As(err, &known) {
		p.Message = known.Error()
		if known.Hint != "" {
			p.Message += " (" + known.Hint + ")"
		}
	}
	return p
}

// fail answers a request with an error.
func (h *common) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := newProblem(err)
	if p.Code == http.StatusInternalServerError {
		h.opts.Logger.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "error", err, "cause", errors.Unwrap(err))
	}
	if h.opts.RetryAfter != nil && p.Code == http.StatusTooManyRequests {
		if wait, ok := h.opts.RetryAfter(err); ok {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		}
	}
	writeJSON(w, p.Code, p)
}

// refuse answers a request for files without a token or signature, as E2B does: its
// data plane says nothing but the status and a message.
func (h *common) refuse(w http.ResponseWriter, err error) {
	p := newProblem(err)
	p.ErrorCode = ""
	writeJSON(w, p.Code, p)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

func unsupported(what string) error {
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: what, Message: "this daemon does not support that", Hint: "see docs/guide/e2b.md"}
}

func noSandbox(public string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: public, Message: "the sandbox was not found"}
}
