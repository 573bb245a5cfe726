// Package servicetest contains the shared parts of fakes of sandbox services:
// faults on request, a proxy for clients whose hosts are hard-coded, commands
// and files in real sandboxes, and the services' official SDKs for Python.
//
// A fake is a real HTTP server with real state, and its sandboxes are those of a
// provider of Atoll. The driver of the service and the service's own SDK both
// have to work with it, so that it is not only Atoll's reading of the protocol.
//
// It is for tests, and is no part of the program.
package servicetest

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"sync"
	"time"
)

// Fault describes what goes wrong with a request. The zero value does nothing.
type Fault struct {
	Method string // empty: any
	Path   string // a pattern as in path.Match; empty: any
	Skip   int    // let this many requests pass first
	Times  int    // then break this many; 0: all

	// Before is called before the service acts, to change its state without the
	// client's knowledge.
	Before func()
	// Delay is the delay before the service acts, or until the client gives up.
	Delay time.Duration

	// Status is the status of the response. The service does nothing, unless Act
	// is set.
	Status int
	Header http.Header
	Body   string
	Act    bool

	// Lose makes the service act, and then cuts the connection instead of
	// responding.
	Lose bool
	// Truncate cuts the connection after this many bytes of the response's body.
	Truncate int
	// Rewrite changes the body of the response.
	Rewrite func([]byte) []byte
}

// TooMany is a refusal because of the number of requests.
func TooMany(method, path string, retryAfter time.Duration, times int) Fault {
	return Fault{
		Method: method, Path: path, Times: times, Status: http.StatusTooManyRequests,
		Header: http.Header{"Retry-After": {strconv.Itoa(int(retryAfter / time.Second))}},
		Body:   `{"error":{"code":"rate_limited","message":"too many requests"}}`,
	}
}

// Faults break requests to a service. The zero value breaks none. It is safe
// for concurrent use.
type Faults struct {
	mu     sync.Mutex
	faults []*fault
	seen   []request
}

type fault struct {
	Fault
	seen int
}

type request struct{ method, path string }

func (r request) matches(method, pattern string) bool {
	if method != "" && method != r.method {
		return false
	}
	ok, err := path.Match(pattern, r.path)
	return pattern == "" || ok && err == nil
}

// Add adds a fault. Of several that match a request, the one added first counts.
func (f *Faults) Add(fs ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range fs {
		f.faults = append(f.faults, &fault{Fault: one})
	}
}

// Clear removes all faults, and forgets the requests counted so far.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults, f.seen = nil, nil
}

// Requests returns how many matching requests have come, broken or not.
func (f *Faults) Requests(method, pattern string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.seen {
		if r.matches(method, pattern) {
			n++
		}
	}
	return n
}

func (f *Faults) next(r request) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, r)
	for _, one := range f.faults {
		if !r.matches(one.Method, one.Path) {
			continue
		}
		one.seen++
		if one.seen > one.Skip && (one.Times == 0 || one.seen <= one.Skip+one.Times) {
			return one.Fault, true
		}
	}
	return Fault{}, false
}

// Wrap returns a handler that breaks requests to h.
func (f *Faults) Wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one, broken := f.next(request{r.Method, r.URL.Path})
		if !broken {
			h.ServeHTTP(w, r)
			return
		}
		one.serve(w, r, h)
	})
}

func (f *Fault) serve(w http.ResponseWriter, r *http.Request, h http.Handler) {
	if f.Before != nil {
		f.Before()
	}
	if f.Delay > 0 {
		body, err := io.ReadAll(r.Body) // only then the server notices that a client has gone
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	if f.Status != 0 && !f.Act {
		f.refuse(w)
		return
	}
	if !f.Act && !f.Lose && f.Truncate == 0 && f.Rewrite == nil {
		h.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	switch {
	case f.Lose:
		panic(http.ErrAbortHandler)
	case f.Act:
		f.refuse(w)
		return
	}
	body := answer.Body.Bytes()
	if f.Rewrite != nil {
		body = f.Rewrite(body)
	}
	maps.Copy(w.Header(), answer.Header())
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(answer.Code)
	if f.Truncate == 0 || f.Truncate >= len(body) {
		_, _ = w.Write(body)
		return
	}
	_, _ = w.Write(body[:f.Truncate])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func (f *Fault) refuse(w http.ResponseWriter) {
	maps.Copy(w.Header(), f.Header)
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, f.Body)
}
