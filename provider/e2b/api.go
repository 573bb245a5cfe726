package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the service's control plane.
type api struct {
	client     *http.Client
	base       *url.URL
	key        string
	domain     string
	sandboxURL *url.URL // nil: sandboxes are reached by name
}

// box is the service's description of a sandbox.
type box struct {
	ID       string            `json:"sandboxID"`
	Token    string            `json:"envdAccessToken"`
	Domain   string            `json:"domain"`
	State    string            `json:"state"`
	Started  time.Time         `json:"startedAt"`
	Ends     time.Time         `json:"endAt"`
	Metadata map[string]string `json:"metadata"`
}

// hosted are the domains that serve all sandboxes under one host name.
var hosted = map[string]bool{"e2b.app": true, "e2b.dev": true, "e2b.pro": true, "e2b-staging.dev": true}

func newAPI(opts *Options, transport http.RoundTripper) (*api, error) {
	a := &api{key: opts.APIKey, domain: opts.Domain, client: &http.Client{
		Transport: transport,
		// A redirection would send the key to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if a.domain == "" {
		a.domain = "e2b.app"
	}
	address := opts.APIURL
	if address == "" {
		address = "https://api." + a.domain
	}
	var err error
	if a.base, err = parseURL("the address of the API", address); err == nil && opts.SandboxURL != "" {
		a.sandboxURL, err = parseURL("the address of sandboxes", opts.SandboxURL)
	}
	return a, err
}

func parseURL(what, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "e2b.open", Subject: what, Message: "is not an http or https address"}
	}
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Requests that were refused or not answered are repeated if that is safe.
const (
	attempts  = 3
	firstWait = 100 * time.Millisecond
	maxWait   = 30 * time.Second
	maxAnswer = 16 << 20
)

// call makes a request and decodes the answer into out, unless out is nil.
// After a failure of the service, it repeats only idempotent requests. It
// always repeats rate-limited ones.
func (a *api) call(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	for try := 1; ; try++ {
		header, wait, err := a.attempt(ctx, method, path, body, out)
		again := wait > 0 || method != http.MethodPost && sandbox.CodeOf(err) == sandbox.CodeUnavailable
		if err == nil || !again || try == attempts || ctx.Err() != nil {
			return header, err
		}
		if wait == 0 {
			wait = firstWait << (try - 1)
		}
		if wait > maxWait {
			return header, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// attempt makes a request once. If the service limits the rate, it returns how
// long to wait.
func (a *api) attempt(ctx context.Context, method, path string, body []byte, out any) (header http.Header, wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.base.String(), "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("X-API-Key", a.key)
	req.Header.Set("Content-Type", "application/json")
	res, err := a.client.Do(req)
	if err != nil {
		return nil, 0, a.unreachable(ctx, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, 0, a.unreachable(ctx, err)
	}
	if res.StatusCode/100 != 2 {
		return nil, retryAfter(res), a.refused(res.StatusCode, text)
	}
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			return nil, 0, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: a.base.Host, Message: "the service's response is invalid", Cause: err}
		}
	}
	return res.Header, 0, nil
}

func retryAfter(res *http.Response) time.Duration {
	seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if res.StatusCode != http.StatusTooManyRequests || err != nil || seconds < 1 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// unreachable is the error of a request without an answer. It says nothing
// about the sandbox.
func (a *api) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: a.base.Host, Message: "the service cannot be reached: " + a.scrub(err.Error()), Cause: err,
	}
}

var codes = map[int]sandbox.Code{
	http.StatusBadRequest:      sandbox.CodeInvalid,
	http.StatusUnauthorized:    sandbox.CodeUnauthorized,
	http.StatusForbidden:       sandbox.CodeDenied,
	http.StatusNotFound:        sandbox.CodeNotFound,
	http.StatusConflict:        sandbox.CodeConflict,
	http.StatusTooManyRequests: sandbox.CodeExhausted,
	http.StatusNotImplemented:  sandbox.CodeUnsupported,
	// Space on the sandbox's disk.
	http.StatusInsufficientStorage: sandbox.CodeExhausted,
}

// maxMessage limits the length of an answer in errors.
const maxMessage = 300

// refused is the error of an unsuccessful answer. An answer that is not from
// the service itself, but perhaps from a proxy, only means that the service is
// unreachable.
func (a *api) refused(status int, text []byte) error {
	var said struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	ours := json.Unmarshal(text, &said) == nil && said.Code == status
	code, known := codes[status]
	if !known || status == http.StatusNotFound && !ours {
		code = sandbox.CodeUnavailable
	}
	message := fmt.Sprintf("the service answers with status %d", status)
	if ours && said.Message != "" {
		message += ": " + clip(a.scrub(said.Message))
	}
	e := &sandbox.Error{Code: code, Subject: a.base.Host, Message: message}
	if code == sandbox.CodeUnauthorized {
		e.Hint = "set E2B_API_KEY to a key of this service"
	}
	return e
}

// scrub removes the key, because a service may repeat it.
func (a *api) scrub(text string) string {
	if a.key == "" {
		return text
	}
	return strings.ReplaceAll(text, a.key, "[key]")
}

func clip(s string) string {
	if len(s) > maxMessage {
		return strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// newBox is the request for a new sandbox.
type newBox struct {
	Template string            `json:"templateID"`
	Timeout  int64             `json:"timeout"` // seconds
	Metadata map[string]string `json:"metadata"`
	Internet bool              `json:"allow_internet_access"`
	Network  *boxNetwork       `json:"network,omitempty"`

	copied bool // the template is a snapshot
}

// boxNetwork lists what a sandbox may reach. Allow rules take precedence over
// deny rules.
type boxNetwork struct {
	AllowOut []string `json:"allowOut"`
	DenyOut  []string `json:"denyOut"`
}

func (a *api) create(ctx context.Context, req newBox) (b box, err error) {
	_, err = a.call(ctx, http.MethodPost, "/v2/sandboxes", req, &b)
	if err == nil && (b.ID == "" || strings.ContainsAny(b.ID, "/?#")) {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: a.base.Host, Message: "the service's response contains no sandbox id"}
	}
	return b, err
}

func (a *api) get(ctx context.Context, id string) (b box, err error) {
	_, err = a.call(ctx, http.MethodGet, "/sandboxes/"+id, nil, &b)
	return b, err
}

// kill ends a sandbox. A missing sandbox is success.
func (a *api) kill(ctx context.Context, id string) error {
	_, err := a.call(ctx, http.MethodDelete, "/sandboxes/"+id, nil, nil)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = nil
	}
	return err
}

func (a *api) setTimeout(ctx context.Context, id string, seconds int64) error {
	_, err := a.call(ctx, http.MethodPost, "/sandboxes/"+id+"/timeout", map[string]int64{"timeout": seconds}, nil)
	return err
}

// resume continues a paused sandbox. A running sandbox is success.
func (a *api) resume(ctx context.Context, id string, seconds int64) error {
	_, err := a.call(ctx, http.MethodPost, "/sandboxes/"+id+"/resume", map[string]int64{"timeout": seconds}, nil)
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		err = nil
	}
	return err
}

// pageSize is the number of entries per page.
const pageSize = 100

// list returns a page of the sandboxes with this metadata, and the token of the
// next page, "" after the last.
func (a *api) list(ctx context.Context, metadata map[string]string, token string, limit int) (page []box, next string, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}, "state": {"running,paused"}}
	if len(metadata) > 0 {
		inner := url.Values{}
		for k, v := range metadata {
			inner.Set(url.QueryEscape(k), url.QueryEscape(v)) // the service unescapes twice
		}
		q.Set("metadata", inner.Encode())
	}
	if token != "" {
		q.Set("nextToken", token)
	}
	header, err := a.call(ctx, http.MethodGet, "/v2/sandboxes?"+q.Encode(), nil, &page)
	if err != nil {
		return nil, "", err
	}
	return page, header.Get("X-Next-Token"), nil
}
