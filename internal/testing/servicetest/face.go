package servicetest

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// Face is the HTTP API of a fake service: routes with bodies of JSON, for
// requests with a key. It may be used concurrently after its routes are set.
type Face struct {
	*Cloud
	// Format returns the body of an error in the service's format.
	Format func(r *http.Request, f *Failure) any
	// Denied is the error for a request without a valid key.
	Denied Failure
	// Key returns the key of a request. Nil: it is the bearer.
	Key func(r *http.Request) string
	// Scope returns the account that a request names beside its key. Nil: requests
	// name none.
	Scope func(r *http.Request) string

	mux  http.ServeMux
	mu   sync.Mutex
	keys map[string]string // accounts by key
}

// Failure is an error of a service. Without a Code, that of its status is used,
// for example "not_found".
type Failure struct {
	Status        int
	Code, Message string
}

func (f *Failure) Error() string { return f.Message }

// Fail returns an error with a status.
func Fail(status int, format string, args ...any) error { return FailAs(status, "", format, args...) }

// FailAs returns an error with a status and a code.
func FailAs(status int, code, format string, args ...any) error {
	return &Failure{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// AddKey adds a key of an account.
func (f *Face) AddKey(key, account string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys == nil {
		f.keys = map[string]string{}
	}
	f.keys[key] = account
}

// RevokeKey ends a key.
func (f *Face) RevokeKey(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.keys, key)
}

// ServeHTTP serves the API.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Faults.Wrap(&f.mux).ServeHTTP(w, r)
}

// Owner returns the account of the key of a request.
func (f *Face) Owner(r *http.Request) (string, error) {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if f.Key != nil {
		key = f.Key(r)
	}
	account := f.Account(key)
	if account == "" || f.Scope != nil && f.Scope(r) != account {
		denied := f.Denied
		return "", &denied
	}
	return account, nil
}

// Account returns the account of a key, or nothing.
func (f *Face) Account(key string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keys[key]
}

// Reply is an answer with another status than 200. It may have no Body.
type Reply struct {
	Status int
	Body   any
}

// Handle sets a route. What call returns is sent as JSON.
func (f *Face) Handle(pattern string, call func(r *http.Request, owner string) (any, error)) {
	f.HandleRaw(pattern, func(w http.ResponseWriter, r *http.Request, owner string) error {
		body, err := call(r, owner)
		if err == nil {
			Answer(w, http.StatusOK, body)
		}
		return err
	})
}

// HandleRaw sets a route whose call writes the answer, unless it fails.
func (f *Face) HandleRaw(pattern string, call func(w http.ResponseWriter, r *http.Request, owner string) error) {
	f.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		owner, err := f.Owner(r)
		if err == nil {
			err = call(w, r, owner)
		}
		if err != nil {
			f.Refuse(w, r, err)
		}
	})
}

// HandleFunc sets a route that checks the key and writes the answer itself.
func (f *Face) HandleFunc(pattern string, serve http.HandlerFunc) { f.mux.HandleFunc(pattern, serve) }

// Refuse sends an error.
func (f *Face) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	var known *Failure
	if !errors.As(err, &known) {
		known = &Failure{Status: http.StatusInternalServerError, Message: err.Error()}
		switch {
		case errors.Is(err, ErrMissing) || sandbox.CodeOf(err) == sandbox.CodeNotFound:
			known.Status = http.StatusNotFound
		case errors.Is(err, ErrTaken) || errors.Is(err, ErrConflict):
			known.Status = http.StatusConflict
		case sandbox.CodeOf(err) == sandbox.CodeInvalid:
			known.Status = http.StatusBadRequest
		}
	}
	sent := *known
	if sent.Code == "" {
		sent.Code = strings.ToLower(strings.ReplaceAll(http.StatusText(sent.Status), " ", "_"))
	}
	Answer(w, sent.Status, f.Format(r, &sent))
}

// Answer sends a body as JSON, or a Reply.
func Answer(w http.ResponseWriter, status int, body any) {
	if reply, ok := body.(Reply); ok {
		if status, body = reply.Status, reply.Body; body == nil {
			w.WriteHeader(status)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// Read reads a body of JSON.
func Read(r *http.Request, into any) error {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		return Fail(http.StatusBadRequest, "invalid body: %v", err)
	}
	return nil
}

// ReadStrictly reads a body of JSON, and refuses unknown fields.
func ReadStrictly(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return Fail(http.StatusBadRequest, "invalid body: %v", err)
	}
	return nil
}

// NewID returns 20 random hexadecimal digits.
func NewID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // Read never fails.
	return hex.EncodeToString(b[:])
}

// UUID returns a random ID in the form of a UUID.
func UUID() string {
	id := NewID() + NewID()
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:32]
}

// After returns at most size of the sandboxes after a cursor, and the cursor of the
// next page, or nil. A cursor is a time, so sandboxes that are removed meanwhile
// hide no others.
func After(all []Sandbox, cursor string, size int) (page []Sandbox, next any) {
	for _, b := range all {
		switch at := strconv.FormatInt(b.Created.UnixNano(), 10); {
		case at <= cursor:
		case len(page) == size:
			return page, next
		default:
			page, next = append(page, b), at
		}
	}
	return page, nil
}

// Page returns the part of a list that a request asks for with limit, or else at
// most usual items, and offset.
func Page[T any](r *http.Request, usual int, all []T) []T {
	offset, limit := 0, usual
	_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &offset)
	_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
	all = all[min(offset, len(all)):]
	return all[:min(limit, len(all))]
}
