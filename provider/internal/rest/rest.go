// Package rest makes requests to the API of a hosted service. It limits the
// size of answers, repeats requests where that is safe, keeps credentials out
// of errors, and follows no redirects.
package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/sandbox"
)

// Client makes requests to a service. Its methods may be called concurrently.
type Client struct {
	HTTP *http.Client
	Base *url.URL
	Sign func(http.Header)
	// Fresh, if set, is called before each request and ensures that Sign has a
	// credential. With refused, the service rejected the present one: Fresh gets
	// another or returns an error.
	Fresh func(ctx context.Context, refused bool) error
	// Hidden, if set, returns further Secrets.
	Hidden func() []string
	// Secrets are replaced in errors, because a service may repeat them.
	Secrets []string
	// ParseError parses an error of the service. ok means that the error is from the
	// service itself, not from a proxy.
	ParseError func(status int, body []byte) (code, message string, ok bool)
	// Rejects, if set, reports that the service refuses the credential with another
	// status than 401.
	Rejects func(*Refusal) bool
	// Hint says what to do if the service refuses the credential.
	Hint string
	// Advise, if set, says what to do about another refusal of the service itself, or
	// returns "".
	Advise func(*Refusal) string
}

// NewHTTP returns a client that does not follow redirections, because they
// would send credentials to another host. Nil: a new transport.
func NewHTTP(transport http.RoundTripper) *http.Client {
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.IdleConnTimeout, t.MaxIdleConnsPerHost, t.DisableCompression = idle, 16, true
		transport = t
	}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// idle is how long an unused connection to the service is kept.
const idle = 10 * time.Second

// ParseURL parses the address of a service.
func ParseURL(op, what, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: op, Subject: what, Message: "is not an http or https address"}
	}
	return u, nil
}

// Loopback reports whether a host is this machine.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Refusal is an unsuccessful answer.
type Refusal struct {
	Status     int
	Code       string // the service's error code
	Text       string
	Ours       bool // the answer comes from the service itself
	Header     http.Header
	RetryAfter time.Duration // positive if the service limits the rate of requests
}

func (r *Refusal) Error() string { return fmt.Sprintf("status %d", r.Status) }

const (
	attempts  = 3
	firstWait = 100 * time.Millisecond
	maxWait   = 30 * time.Second
	maxAnswer = 16 << 20
	// maxMessage limits the length of an answer in errors.
	maxMessage = 300
)

// Call makes a request and reads the answer into out, unless that is nil. It
// repeats GET, DELETE and PATCH after a failure of the service, and every
// request that is rate-limited.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	_, err := c.Ask(ctx, method, path, in, out)
	return err
}

// Ask is Call, and also returns the header of the answer.
func (c *Client) Ask(ctx context.Context, method, path string, in, out any) (header http.Header, err error) {
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	for try := 1; ; try++ {
		err := c.Signed(ctx, func() (err error) {
			header, err = c.attempt(ctx, method, path, body, out)
			return err
		})
		var r *Refusal
		wait := time.Duration(0)
		if errors.As(err, &r) {
			wait = r.RetryAfter
		}
		again := wait > 0 || method != http.MethodPost && sandbox.CodeOf(err) == sandbox.CodeUnavailable
		if err == nil || !again || try == attempts || ctx.Err() != nil || wait > maxWait {
			return header, err
		}
		if wait == 0 {
			wait = firstWait << (try - 1)
		}
		if err := Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// Signed calls f, which signs and makes a request, and calls it again if the
// service rejected the credential and there is another.
func (c *Client) Signed(ctx context.Context, f func() error) error {
	if c.Fresh == nil {
		return f()
	}
	if err := c.Fresh(ctx, false); err != nil {
		return err
	}
	err := f()
	if sandbox.CodeOf(err) != sandbox.CodeUnauthorized || RefusalOf(err).Status == 0 {
		return err
	}
	switch renewed := c.Fresh(ctx, true); {
	case renewed == nil:
		return f()
	case sandbox.CodeOf(renewed) != sandbox.CodeUnauthorized:
		return renewed // it is unknown whether the credential is valid
	}
	return err
}

// Patient calls f, which signs and makes a request once, and calls it again
// while the request is rate-limited.
func (c *Client) Patient(ctx context.Context, f func() error) error {
	for n := 1; ; n++ {
		err := c.Signed(ctx, f)
		wait := RefusalOf(err).RetryAfter
		if wait == 0 || wait > maxWait || n == attempts {
			return err
		}
		if err := Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// RefusalOf returns the Refusal in an error, or an empty one.
func RefusalOf(err error) *Refusal {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	return new(Refusal)
}

// Delays for removing a sandbox whose state is changing.
const (
	removals     = 11
	firstRemoval = 100 * time.Millisecond
	maxRemoval   = 5 * time.Second
)

// Remove makes a DELETE request and repeats it for a while after a conflict. It
// returns the error for a missing resource.
func (c *Client) Remove(ctx context.Context, path string) error {
	for n := range removals {
		err := c.Call(ctx, http.MethodDelete, path, nil, nil)
		if sandbox.CodeOf(err) != sandbox.CodeConflict || n == removals-1 {
			return err
		}
		if err := Sleep(ctx, min(firstRemoval<<n, maxRemoval)); err != nil {
			return err
		}
	}
	return nil
}

// Sleep waits, or returns the error of a context that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) attempt(ctx context.Context, method, path string, body []byte, out any) (http.Header, error) {
	header := http.Header{}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	res, err := c.Send(ctx, method, path, header, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, c.Unreachable(ctx, err)
	}
	if out == nil || len(text) == 0 && res.StatusCode == http.StatusNoContent {
		return res.Header, nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: c.Base.Host, Message: "the service's response is invalid", Cause: err}
	}
	return res.Header, nil
}

// Send makes a request with a body, once, as Do does.
func (c *Client) Send(ctx context.Context, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Base.String(), "/")+path, body)
	if err != nil {
		return nil, err
	}
	c.Sign(req.Header)
	maps.Copy(req.Header, header)
	return c.Do(req)
}

// Listen makes a request whose answer is read while it arrives. It repeats it only
// while it is rate-limited. in is sent as JSON, unless it is nil, and accept is the
// kind of the answer. The caller closes it.
func (c *Client) Listen(ctx context.Context, method, path string, in any, accept string) (answer io.ReadCloser, err error) {
	header, text := http.Header{"Accept": {accept}}, []byte{}
	if in != nil {
		header.Set("Content-Type", "application/json")
		if text, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	err = c.Patient(ctx, func() error {
		res, err := c.Send(ctx, method, path, header, bytes.NewReader(text)) //nolint:bodyclose // the caller closes it
		if err == nil {
			answer = res.Body
		}
		return err
	})
	return answer, err
}

// Events and Records are kinds of answers that are read while they arrive.
const (
	Events  = "text/event-stream"
	Records = "application/x-ndjson"
)

// Upload makes one request with a body and ignores the answer's content.
func (c *Client) Upload(ctx context.Context, method, path, kind string, body io.Reader) error {
	res, err := c.Send(ctx, method, path, http.Header{"Content-Type": {kind}}, body)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Form returns the content type and the body of a form: fields, each a name and
// a value, and then a file.
func Form(field string, file io.Reader, fields ...string) (kind string, body io.Reader) {
	var head bytes.Buffer // writing to it never fails
	form := multipart.NewWriter(&head)
	for i := 0; i+1 < len(fields); i += 2 {
		_ = form.WriteField(fields[i], fields[i+1])
	}
	_, _ = form.CreateFormFile(field, "file")
	return form.FormDataContentType(), io.MultiReader(&head, file, strings.NewReader("\r\n--"+form.Boundary()+"--\r\n"))
}

// Dial opens a WebSocket. The context limits only opening it.
func (c *Client) Dial(ctx context.Context, url string, protocols ...string) (*websocket.Conn, error) {
	header := http.Header{}
	c.Sign(header)
	//nolint:bodyclose // Dial closes the body, and keeps the beginning of a refusal
	ws, res, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: c.HTTP, HTTPHeader: header, Subprotocols: protocols, CompressionMode: websocket.CompressionDisabled,
	})
	switch {
	case err == nil:
		return ws, nil
	case res != nil && res.StatusCode != http.StatusSwitchingProtocols && ctx.Err() == nil:
		return nil, c.Refused(res)
	}
	return nil, c.Unreachable(ctx, err)
}

// ProtocolError returns the error of a service that behaves incorrectly.
func (c *Client) ProtocolError(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: c.Base.Host, Message: message}
}

// Do makes one request. An answer other than 2xx is an error with a *Refusal.
// The caller closes the body.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	res, err := c.HTTP.Do(req)
	if err != nil {
		return nil, c.Unreachable(req.Context(), err)
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, c.Refused(res)
}

// Refused returns the error of an unsuccessful answer. An answer that is not
// from the service itself only means that the service is unreachable.
func (c *Client) Refused(res *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil && res.Request != nil && res.Request.Context().Err() != nil {
		return res.Request.Context().Err()
	}
	r := &Refusal{Status: res.StatusCode, Header: res.Header}
	r.Code, r.Text, r.Ours = c.ParseError(res.StatusCode, text)
	if !r.Ours {
		r.Code, r.Text = "", string(text)
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 && r.Status == http.StatusTooManyRequests {
		r.RetryAfter = time.Duration(s) * time.Second
	}
	code, known := codes[r.Status]
	if !known || r.Status == http.StatusNotFound && !r.Ours {
		code = sandbox.CodeUnavailable
	}
	if r.Ours && c.Rejects != nil && c.Rejects(r) {
		code = sandbox.CodeUnauthorized
	}
	message := fmt.Sprintf("the service answers with status %d", r.Status)
	if r.Ours && r.Text != "" {
		message += ": " + c.Clip(r.Text)
	}
	r.Text = c.Scrub(r.Text)
	e := &sandbox.Error{Code: code, Subject: c.Base.Host, Message: message, Cause: r}
	switch {
	case code == sandbox.CodeUnauthorized:
		e.Hint = c.Hint
	case r.Ours && c.Advise != nil:
		e.Hint = c.Advise(r)
	}
	return e
}

var codes = map[int]sandbox.Code{
	http.StatusBadRequest:          sandbox.CodeInvalid,
	http.StatusUnauthorized:        sandbox.CodeUnauthorized,
	http.StatusForbidden:           sandbox.CodeDenied,
	http.StatusNotFound:            sandbox.CodeNotFound,
	http.StatusConflict:            sandbox.CodeConflict,
	http.StatusUnprocessableEntity: sandbox.CodeInvalid,
	http.StatusTooManyRequests:     sandbox.CodeExhausted,
	http.StatusNotImplemented:      sandbox.CodeUnsupported,
	http.StatusInsufficientStorage: sandbox.CodeExhausted,
}

// Unreachable returns the error of a request without an answer. It says nothing
// about the sandbox.
func (c *Client) Unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	text := c.Scrub(err.Error())
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: c.Base.Host, Message: "the service cannot be reached: " + clip(text), Cause: errors.New(text),
	}
}

// Scrub replaces secrets in a text.
func (c *Client) Scrub(text string) string {
	secrets := c.Secrets
	if c.Hidden != nil {
		secrets = slices.Concat(secrets, c.Hidden())
	}
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "[secret]")
		}
	}
	return text
}

// Clip returns the beginning of a service's text for an error, without secrets.
func (c *Client) Clip(text string) string { return clip(c.Scrub(text)) }

func clip(s string) string {
	if s = strings.ToValidUTF8(s, "\ufffd"); len(s) > maxMessage {
		return strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}
