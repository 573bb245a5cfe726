package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/secret/inject"
	"github.com/atoll-run/atoll/sandbox"
)

// request is one HTTP request being forwarded.
type request struct {
	f      *flow
	ruling *activePolicy
	d      policy.Decision
	secure bool
	method string
	path   string
	status int
	sent   countedBody
	got    countedBody
	why    string // why forwarding failed
	told   bool   // the result has been reported
	key    string // Sec-WebSocket-Key, if it is a WebSocket handshake

	mu   sync.Mutex
	used []string // secrets, by name and version
}

type requestKey struct{}

func requestOf(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

// ServeHTTP decides about a request and forwards it.
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := r.Context().Value(flowKey{}).(*flow)
	q := &request{f: f, ruling: s.b.policy.Load(), secure: r.TLS != nil, method: r.Method, path: r.URL.EscapedPath()}
	q.decide(r)
	if !q.d.Allow {
		q.deny(w, q.d)
		return
	}
	q.path = q.d.Path
	if u := q.ruling.used(q.d); !u.take() {
		q.limited(w, u)
		return
	}
	if err := q.prepare(r); err != nil {
		var no refusal
		if errors.As(err, &no) {
			q.deny(w, no.Decision)
			return
		}
		q.status = http.StatusBadRequest
		q.problem(w, problem{Code: "bad_request", Message: "the request's body could not be read"})
		return
	}
	defer q.done() // also if the response is aborted
	// Without full duplex, a response that begins before the transport has read
	// the end of the request's body is broken off.
	_ = http.NewResponseController(w).EnableFullDuplex()
	f.proxy.ServeHTTP(final{w}, r.WithContext(context.WithValue(r.Context(), requestKey{}, q)))
}

// done reports the result of a request that was sent, once.
func (q *request) done() {
	if q.told {
		return
	}
	q.told = true
	switch {
	case !q.d.Allow: // it was refused after it was sent
		q.tell(messages.Denied, q.d, q.d.Message())
	case q.sent.over.Load() || q.got.over.Load():
		q.tell(messages.Limited, q.d, bytesReached)
	case q.why != "":
		q.tell(messages.Failed, q.d, q.why)
	default:
		q.tell(messages.Allowed, q.d, "")
	}
}

const bytesReached = "the rule's limit of bytes is reached"

// overrides are headers with which a client asks a server to treat the request
// as one with another method or path. The request must be allowed in that form,
// too.
var (
	methodOverrides = []string{"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}
	pathOverrides   = []string{"X-Original-Url", "X-Rewrite-Url"}
)

// decide decides about every form in which a server may interpret the request.
func (q *request) decide(r *http.Request) {
	in := policy.Request{Method: r.Method, TLS: q.secure, Host: r.Host, Path: q.path, WebSocket: asksForWebSocket(r)}
	flow := q.f.decidedFlow()
	q.d = q.ruling.Request(flow, in)
	for _, h := range methodOverrides {
		for _, v := range r.Header[h] {
			other := in
			other.Method = strings.ToUpper(strings.TrimSpace(v))
			q.also(flow, other)
		}
	}
	for _, h := range pathOverrides {
		for _, v := range r.Header[h] {
			other := in
			other.Path, _, _ = strings.Cut(v, "?")
			q.also(flow, other)
		}
	}
	q.offer(r, in.WebSocket)
}

func (q *request) also(flow policy.Flow, other policy.Request) {
	if d := q.ruling.Request(flow, other); q.d.Allow && !d.Allow {
		q.d = d
	}
}

// forwarded are headers that proxies set. The gateway leaves them unchanged,
// because it is transparent to both sides.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite directs a request to its host. The forwarded path has exactly the
// bytes that were checked.
func rewrite(p *httputil.ProxyRequest) {
	q := requestOf(p.In.Context())
	out := p.Out
	for _, h := range forwarded {
		if v, ok := p.In.Header[h]; ok {
			out.Header[h] = v
		}
	}
	host, scheme, usual := q.f.target.host.String(), "http", uint16(80)
	if q.secure {
		scheme, usual = "https", 443
	}
	if q.f.target.port != usual {
		host = net.JoinHostPort(host, strconv.Itoa(int(q.f.target.port)))
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	u := *p.In.URL
	u.Scheme, u.Host, u.User, u.Opaque, u.RawPath = scheme, host, nil, "", q.d.Path
	u.Path, _ = url.PathUnescape(q.d.Path) // normalised by the policy
	out.URL, out.Host = &u, host
}

// prepare checks the request of the sandbox, and counts its body.
func (q *request) prepare(r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	q.sent.ReadCloser, q.sent.limit = r.Body, smaller(q.d.Limits.RequestBytes, q.d.Filters.Limit(sandbox.DirRequest))
	r.Body = &q.sent
	body, err := q.filter(sandbox.DirRequest, r.Header, r.ContentLength, r.Body)
	r.Body = body
	return err
}

// filter checks the headers of a message and, if a rule searches the body,
// buffers and searches the body.
func (q *request) filter(dir sandbox.Direction, h http.Header, length int64, body io.ReadCloser) (io.ReadCloser, error) {
	f := q.d.Filters
	if f == nil {
		return body, nil
	}
	refuse := func(err error) error {
		return refusal{policy.Decision{Reason: policy.Filtered, Rule: q.d.Rule, Number: q.d.Number, Detail: err.Error()}}
	}
	if err := f.Head(dir, policy.Body{Type: h.Get("Content-Type"), Encoding: h.Get("Content-Encoding"), Length: length}); err != nil {
		return body, refuse(err)
	}
	hold := f.Hold(dir)
	if hold == 0 {
		return body, nil
	}
	held, err := io.ReadAll(io.LimitReader(body, hold+1))
	switch {
	case err != nil:
		return body, err
	case int64(len(held)) > hold:
		return body, refuse(fmt.Errorf("the %s is larger than the %d bytes that are searched", dir, hold))
	}
	if err := f.Search(dir, held); err != nil {
		return body, refuse(err)
	}
	return replaced{bytes.NewReader(held), body}, nil
}

// replaced is a body that was already read.
type replaced struct {
	io.Reader
	io.Closer
}

// smaller returns the smaller of two limits, where 0 means no limit.
func smaller(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// credentialed adds credentials to requests as the last step before they are
// sent.
type credentialed struct{ *http.Transport }

// RoundTrip sends a request.
func (t credentialed) RoundTrip(r *http.Request) (*http.Response, error) {
	q := requestOf(r.Context())
	if err := q.ruling.swapper.Swap(r, q.d.Swaps, q.secret); err != nil {
		return nil, q.stray(err)
	}
	if err := inject.Apply(r, q.d.Inject, q.secret, inject.Options{}); err != nil {
		return nil, err
	}
	if len(q.used) > 0 || len(q.d.Swaps) > 0 {
		// The response is searched for the added secrets, so it must not be
		// compressed.
		r.Header.Set("Accept-Encoding", "identity")
	}
	resp, err := t.Transport.RoundTrip(r)
	return resp, q.stray(err)
}

// stray turns a misplaced placeholder into a refusal.
func (q *request) stray(err error) error {
	var s *inject.Stray
	if errors.As(err, &s) {
		return refusal{policy.Decision{Reason: policy.Placeholder, Rule: q.d.Rule, Number: q.d.Number, Detail: s.Error()}}
	}
	return err
}

// secret returns a secret and records its use.
func (q *request) secret(name string) (secret.Value, error) {
	s, ok := q.ruling.secrets[name]
	if !ok {
		return secret.Value{}, fmt.Errorf("there is no secret named %s", name)
	}
	used := name
	if s.version > 0 {
		used += "@" + strconv.Itoa(s.version)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Contains(q.used, used) {
		q.used = append(q.used, used)
	}
	return s.value, nil
}

// errCompressed means that a response cannot be searched.
var errCompressed = errors.New("the host compressed its answer although it was asked not to, so that it cannot be searched for secrets")

// answer checks the host's response and removes secrets from it.
func (q *request) answer(r *http.Response) error {
	q.status = r.StatusCode
	r.Status = "" // the server sets the default text
	q.scrub(r.Header)
	q.scrub(r.Trailer) // the announced names
	if r.StatusCode == http.StatusSwitchingProtocols {
		return q.upgrade(r)
	}
	q.got.ReadCloser, q.got.limit = r.Body, smaller(q.d.Limits.ResponseBytes, q.d.Filters.Limit(sandbox.DirResponse))
	r.Body = &q.got
	length := r.ContentLength
	if r.Request.Method == http.MethodHead {
		length = 0 // there is no body, whatever Content-Length says
	}
	body, err := q.filter(sandbox.DirResponse, r.Header, length, r.Body)
	if err != nil {
		return err
	}
	r.Body = body
	if q.ruling.scrubber == nil {
		return nil
	}
	var plain io.Reader = body
	if e := r.Header.Get("Content-Encoding"); e == "" || strings.EqualFold(e, "identity") {
		plain = q.ruling.scrubber.Reader(body)
	} else if len(q.used) > 0 {
		return errCompressed
	}
	r.Body = &scrubbed{plain, body, func() { q.scrub(r.Trailer) }}
	return nil
}

// scrub removes secrets from headers. If the name of a header contains one, the
// header is removed.
func (q *request) scrub(h http.Header) {
	if q.ruling.scrubber == nil {
		return
	}
	for name, all := range h {
		if q.ruling.scrubber.InName(name) {
			delete(h, name)
			continue
		}
		for i, v := range all {
			all[i] = string(q.ruling.scrubber.Bytes([]byte(v)))
		}
	}
}

// final drops interim (1xx) responses: only the final response is searched for
// secrets and filtered.
type final struct{ http.ResponseWriter }

func (f final) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols {
		f.ResponseWriter.WriteHeader(code)
	}
}

// Unwrap is for http.ResponseController.
func (f final) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// scrubbed is a body from which secrets are removed.
type scrubbed struct {
	r io.Reader
	io.Closer
	done func()
}

func (s *scrubbed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err == io.EOF {
		s.done()
	}
	return n, err
}

// failed responds with an error when the host did not respond. Like all refusals,
// it is reported before the sandbox gets the response.
func (q *request) failed(w http.ResponseWriter, err error) {
	var no refusal
	switch {
	case errors.As(err, &no):
		q.d = no.Decision
		q.status = http.StatusForbidden
		q.done()
		q.problem(w, problem{Code: "egress_denied", Reason: string(no.Reason), Message: no.Message(), Rule: no.Rule})
		return
	case errors.Is(err, errTooMuch):
		q.status = http.StatusRequestEntityTooLarge
		q.why = bytesReached
	case errors.Is(err, errCompressed), errors.Is(err, errUpgrade):
		q.status = http.StatusBadGateway
		q.why = err.Error()
	default:
		q.status = http.StatusBadGateway
		q.why = upstreamReason(err)
	}
	q.done()
	q.problem(w, problem{Code: "egress_failed", Message: q.why})
}

// upstreamReason describes a problem with the host's side.
func upstreamReason(err error) string {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return "the host's certificate is not trusted: " + cert.Err.Error()
	}
	return dialReason(err)
}

func (q *request) deny(w http.ResponseWriter, d policy.Decision) {
	q.status = http.StatusForbidden
	q.tell(messages.Denied, d, d.Message())
	q.problem(w, problem{Code: "egress_denied", Reason: string(d.Reason), Message: d.Message(), Rule: d.Rule})
}

func (q *request) limited(w http.ResponseWriter, u *usage) {
	q.status = http.StatusTooManyRequests
	wait := max(1, int(math.Ceil(60/float64(max(1, u.limits.PerMinute)))))
	w.Header().Set("Retry-After", strconv.Itoa(wait))
	const why = "the rule's limit of requests per minute is reached"
	q.tell(messages.Limited, q.d, why)
	q.problem(w, problem{Code: "egress_limited", Reason: string(policy.Limited), Message: why, Rule: q.d.Rule})
}

// problem is the error response for a client.
type problem struct {
	Code    string `json:"code"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
	Rule    string `json:"rule,omitempty"`
	Host    string `json:"host"`
	Method  string `json:"method"`
	Path    string `json:"path"`
}

func (q *request) problem(w http.ResponseWriter, p problem) {
	p.Host, p.Method, p.Path = q.f.target.host.String(), printable(q.method), printable(q.path)
	body, _ := json.Marshal(map[string]problem{"error": p})
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Atoll-Gateway", p.Code)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(q.status)
	_, _ = w.Write(append(body, '\n'))
}

func (q *request) tell(v messages.Verdict, d policy.Decision, reason string) {
	e := q.f.event(v, d)
	e.Kind, e.Method, e.Path, e.Status, e.Reason = "http", printable(q.method), printable(q.path), q.status, reason
	e.Sent, e.Got, e.Secrets = q.sent.n.Load(), q.got.n.Load(), q.used
	q.f.b.tell(e)
}
