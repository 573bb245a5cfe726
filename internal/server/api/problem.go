package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/sandbox"
)

// Problem is an error response (RFC 9457) with a sandbox.Code.
type Problem struct {
	Title   string       `json:"title"`
	Status  int          `json:"status"`
	Detail  string       `json:"detail,omitempty"`
	Code    sandbox.Code `json:"code"`
	Op      string       `json:"op,omitempty"`
	Subject string       `json:"subject,omitempty"`
	Hint    string       `json:"hint,omitempty"`
	Rule    string       `json:"rule,omitempty" doc:"policy rule that refused it, as POLICY.FIELD"`
	Faults  []Fault      `json:"faults,omitempty" doc:"what is wrong with the fields of the request"`
	Request string       `json:"request,omitempty" doc:"for an internal error: id of the request in the log of the daemon"`

	retryAfter time.Duration
}

// Fault is an error in one field.
type Fault struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders implements huma.HeadersError. It sets Retry-After.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	return h
}

var statuses = map[sandbox.Code]int{
	sandbox.CodeInvalid:       http.StatusBadRequest,
	sandbox.CodeNotFound:      http.StatusNotFound,
	sandbox.CodeGone:          http.StatusGone,
	sandbox.CodeAlreadyExists: http.StatusConflict,
	sandbox.CodeConflict:      http.StatusConflict,
	sandbox.CodeUnavailable:   http.StatusServiceUnavailable,
	sandbox.CodeUnauthorized:  http.StatusUnauthorized,
	sandbox.CodeDenied:        http.StatusForbidden,
	sandbox.CodeExhausted:     http.StatusTooManyRequests,
	sandbox.CodeTimeout:       http.StatusGatewayTimeout,
	sandbox.CodeCanceled:      499, // client closed request, as in nginx
	sandbox.CodeUnsupported:   http.StatusNotImplemented,
	sandbox.CodeStale:         http.StatusConflict,
}

// NewProblem converts err to a Problem. The text of an error that is not a
// *sandbox.Error is not shown to the caller. retryAfter may be nil.
func NewProblem(err error, retryAfter func(error) (time.Duration, bool)) *Problem {
	var ready *Problem
	if errors.As(err, &ready) {
		return ready
	}
	p := &Problem{Code: sandbox.CodeOf(err), Status: http.StatusInternalServerError, Detail: "a fault of Atoll itself"}
	if status, ok := statuses[p.Code]; ok {
		p.Status, p.Detail = status, string(p.Code)
	}
	var known *sandbox.Error
	if errors.As(err, &known) {
		p.Op, p.Subject, p.Detail, p.Hint, p.Rule = known.Op, known.Subject, known.Message, known.Hint, known.Rule
	}
	if retryAfter != nil {
		p.retryAfter, _ = retryAfter(err)
	}
	p.Title = title(p.Status)
	return p
}

// cutOff returns why the server canceled a request: the daemon is shutting
// down, or the key has expired. If the server did not cancel it, cutOff returns
// err.
func cutOff(ctx context.Context, err error) error {
	if why, ok := errors.AsType[*sandbox.Error](context.Cause(ctx)); ok {
		return why
	}
	return err
}

// sentBody is a request body. It remembers the error of reading it.
type sentBody struct {
	io.ReadCloser
	broken atomic.Bool
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.broken.Store(true)
	}
	return n, err
}

// blamed returns the error of reading the request body, if there was one,
// instead of err.
func (b *sentBody) blamed(err error) error {
	if b.broken.Load() && sandbox.CodeOf(err) == sandbox.CodeInternal {
		return invalid("body", "cannot be read: it breaks off, or is not framed as HTTP wants it")
	}
	return err
}

func title(status int) string {
	if text := http.StatusText(status); text != "" {
		return text
	}
	return "Client Closed Request"
}

// WriteProblem answers a request with an error.
func WriteProblem(w http.ResponseWriter, p *Problem) {
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Del("Content-Length")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the caller may be gone
}

// ownErrors makes huma report validation errors as a Problem, and match names in
// bodies exactly: huma would check the field "count", and encoding/json decode
// the field "Count" after it. It sets global variables of huma, once.
var ownErrors = sync.OnceFunc(func() {
	huma.ValidateStrictCasing = true
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		p := &Problem{Status: status, Detail: message, Code: codeFor(status)}
		if status == http.StatusUnprocessableEntity {
			p.Status = http.StatusBadRequest
		}
		p.Title = title(p.Status)
		for _, err := range errs {
			var d huma.ErrorDetailer
			if errors.As(err, &d) {
				// The value is left out: it may be a secret.
				p.Faults = append(p.Faults, Fault{Field: place(d.ErrorDetail().Location), Message: d.ErrorDetail().Message})
			} else if err != nil && status < http.StatusInternalServerError {
				p.Faults = append(p.Faults, Fault{Message: err.Error()})
			}
		}
		slices.SortStableFunc(p.Faults, func(a, b Fault) int { return strings.Compare(a.Field, b.Field) }) // huma's order is random
		return p
	}
})

// maxKey is the longest key of a request that is repeated in a response.
const maxKey = 24

// place returns the location of a fault. An unknown key in a request may be a
// value in the wrong place, such as a token. So only keys that look like the
// name of a field are repeated.
func place(location string) string {
	parts := strings.Split(location, ".")
	for i, part := range parts {
		name, index, _ := strings.Cut(part, "[")
		strange := strings.ContainsFunc(name, func(c rune) bool { return (c|0x20 < 'a' || c|0x20 > 'z') && c != '_' && c != '-' })
		if strange || len(name) > maxKey || strings.Trim(index, "0123456789]") != "" {
			parts[i] = "…"
		}
	}
	return strings.Join(parts, ".")
}

func codeFor(status int) sandbox.Code {
	for code, s := range statuses {
		if s == status && code != sandbox.CodeStale && code != sandbox.CodeAlreadyExists {
			return code
		}
	}
	if status >= http.StatusInternalServerError {
		return sandbox.CodeInternal
	}
	return sandbox.CodeInvalid
}
