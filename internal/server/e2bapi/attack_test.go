package e2bapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// victims are the sandboxes sb-one and sb-two. Their port 8000 records every
// byte. The port of sb-two needs a token.
type victims struct {
	mu   sync.Mutex
	got  map[sandbox.ID]string
	addr map[string]string
}

func (v *victims) Enter(ctx context.Context, id sandbox.ID, _ string) (context.Context, sandbox.Sandbox, error) {
	if v.addr[string(id)] == "" {
		return ctx, sandbox.Sandbox{}, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such sandbox"}
	}
	s := sandbox.Sandbox{ID: id, State: sandbox.Running}
	if id == "sb-two" {
		s.Labels = map[string]string{labelPrivate: "yes"}
	}
	return ctx, s, nil
}

func (v *victims) Keys(context.Context, sandbox.ID) ([]string, error) {
	return []string{"key"}, nil
}

// anything are the rights of a key that may do everything.
type anything struct{}

func (anything) Key(context.Context) string                      { return "key" }
func (anything) Allow(context.Context, sandbox.ID, ops.Op) error { return nil }

func (v *victims) Mounted(context.Context, sandbox.ID) ([]sandbox.WorkspaceMount, error) {
	return nil, nil
}

func (v *victims) Live(context.Context) ([]sandbox.ID, error) {
	return []sandbox.ID{"sb-one", "sb-two"}, nil
}

func (v *victims) DialPort(ctx context.Context, ref string, _ uint16) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", v.addr[ref])
}

// take returns the bytes that a sandbox received since the last call.
func (v *victims) take(id sandbox.ID) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer delete(v.got, id)
	return v.got[id]
}

// listen answers every connection and records its data.
func (v *victims) listen(t *testing.T, id sandbox.ID) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	v.addr[string(id)] = l.Addr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				var text strings.Builder
				r := bufio.NewReader(io.TeeReader(conn, &text))
				for {
					req, err := http.ReadRequest(r)
					if err == nil {
						_, err = io.Copy(io.Discard, req.Body)
					}
					v.mu.Lock()
					v.got[id] += text.String()
					v.mu.Unlock()
					text.Reset()
					if err != nil {
						return
					}
					fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}()
		}
	}()
}

// attacked starts a handler for victims.
func attacked(t *testing.T) (v *victims, h *Handler, addr string) {
	t.Helper()
	v = &victims{got: map[sandbox.ID]string{}, addr: map[string]string{}}
	v.listen(t, "sb-one")
	v.listen(t, "sb-two")
	refuse := func(ctx context.Context, _ string) (context.Context, string, error) {
		return ctx, "", unauthorized("no")
	}
	h = New(Services{Authenticate: refuse, Entrance: v, Ports: v, Rights: anything{}}, Options{Secret: make([]byte, 32), Uploads: t.TempDir()})
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.Close()
		h.Close()
	})
	return v, h, s.Listener.Addr().String()
}

// raw sends bytes and returns the first status, and all data after its body
// until the connection is closed.
func raw(t *testing.T, addr, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	first, err := http.ReadResponse(r, nil)
	if err != nil {
		return ""
	}
	_, _ = io.Copy(io.Discard, first.Body)
	_ = conn.(*net.TCPConn).CloseWrite() // closing earlier would look like a canceled request
	rest, _ := io.ReadAll(r)             // the server may reset the connection
	return first.Status + "\n" + string(rest)
}

// TestAttackE2BKeysAtPorts sends keys and tokens of this API to a port in all
// forms that the API accepts, by mistake or because the program inside requests
// it. The program gets none of them, but gets its own headers.
func TestAttackE2BKeysAtPorts(t *testing.T) {
	v, h, addr := attacked(t)
	atollKey := "atoll_0123456789abcdef_secretsecretsecretsecret"
	e2bKey := envd.Key(atollKey)
	token := h.tokens.envd("sb-one", "key")
	secrets := []string{atollKey, e2bKey, token, h.tokens.traffic("sb-one", "key")}
	for _, header := range []string{
		"X-API-Key: " + e2bKey, "x-api-key: " + atollKey, "X-Api-Key: x\r\nX-Api-Key: " + e2bKey,
		"Authorization: Bearer " + e2bKey, "Authorization: bearer   " + atollKey, "Authorization: " + e2bKey,
		"Authorization: Bearer own\r\nAuthorization: Bearer " + e2bKey,
		"X-Access-Token: " + token, "X-Access-Token: x\r\nX-ACCESS-TOKEN: " + token,
		"E2b-Traffic-Access-Token: " + secrets[3], "Connection: X-Api-Key\r\nX-Api-Key: " + e2bKey,
	} {
		answer := raw(t, addr, "GET /path HTTP/1.1\r\nHost: 8000-sbone.box.test\r\nConnection: close\r\n"+header+"\r\n\r\n")
		got := v.take("sb-one")
		if !strings.HasPrefix(got, "GET /path ") {
			t.Errorf("%s: the request did not arrive: %q, %q", header, got, answer)
		}
		for _, secret := range secrets {
			if strings.Contains(got, secret) {
				t.Errorf("%s: the program inside gets %q", header, got)
			}
		}
	}
	for _, own := range []string{"Authorization: Bearer own-token", "Authorization: Basic b3duOnB3"} {
		raw(t, addr, "GET / HTTP/1.1\r\nHost: 8000-sbone.box.test\r\nConnection: close\r\n"+own+"\r\n\r\n")
		if got := v.take("sb-one"); !strings.Contains(got, own) {
			t.Errorf("the program's own %s does not arrive: %q", own, got)
		}
	}
}

// TestAttackE2BSmuggling hides a second request in the first, for another sandbox
// whose port the caller may not reach.
func TestAttackE2BSmuggling(t *testing.T) {
	v, _, addr := attacked(t)
	const head = "POST /first HTTP/1.1\r\nHost: 8000-sbone.box.test\r\n"
	const hidden = "GET /hidden HTTP/1.1\r\nHost: 8000-sbtwo.box.test\r\n\r\n"
	for name, request := range map[string]string{
		"both lengths":       head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 5+len(hidden)) + hidden,
		"two lengths":        head + "Content-Length: 0\r\nContent-Length: 10\r\n\r\n" + hidden,
		"odd encoding":       head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		"encoding twice":     head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
		"space before":       head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
		"two hosts":          strings.Replace(head, "Host", "Host: 8000-sbtwo.box.test\r\nHost", 1) + "\r\n",
		"line in a header":   head + "E2b-Sandbox-Id: x\nHost: 8000-sbtwo.box.test\r\n\r\n",
		"headers and a host": head + "E2b-Sandbox-Id: sbtwo\r\nE2b-Sandbox-Port: 8000\r\nConnection: close\r\n\r\n",
		"folded":             head + "X: a\r\n Host: 8000-sbtwo.box.test\r\nConnection: close\r\n\r\n",
		"negative length":    head + "Content-Length: -1\r\n\r\n" + hidden,
		"long chunk":         head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + hidden,
	} {
		raw(t, addr, request)
		if got := v.take("sb-one"); strings.Contains(got, "hidden") {
			t.Errorf("%s: one got %q", name, got)
		}
		if got := v.take("sb-two"); got != "" {
			t.Errorf("%s: another sandbox got %q", name, got)
		}
	}
	// An address in the request line is the host, as HTTP says, and overrides the
	// Host header.
	raw(t, addr, "GET http://8000-sbtwo.box.test/line HTTP/1.1\r\nHost: 8000-sbone.box.test\r\nConnection: close\r\n\r\n")
	if got := v.take("sb-one"); strings.Contains(got, "/line") || strings.Contains(got, "hidden") {
		t.Errorf("the request line lost against the header: %q", got)
	}
}

// TestAttackE2BSignedAddress uses a URL that was signed for one file for
// another one: the signed text does not escape its separators.
func TestAttackE2BSignedAddress(t *testing.T) {
	const token = "secret-token"
	now := time.Unix(1000, 0)
	signed := func(operation, path, user, expires string) string {
		return signature(token, operation, path, user, expires)
	}
	for _, tc := range []struct {
		name, sum, operation, path, user, expires string
	}{
		{"another operation", signed("read", "a:write:root", "", ""), "write", "a", "root:read:", ""},
		{"another user", signed("read", "/home/a", "x:y", ""), "read", "/home/a:read:x", "y", ""},
		{"the time as part of the token", signed("read", "/f", "", "1"), "read", "/f", "", ""},
		{"a sum of another version", "v2_" + strings.TrimPrefix(signed("read", "/f", "", ""), "v1_"), "read", "/f", "", ""},
		{"padding", signed("read", "/f", "", "") + "=", "read", "/f", "", ""},
		{"a time that is no number", signed("read", "/f", "", "1e9"), "read", "/f", "", "1e9"},
		{"a time too large", signed("read", "/f", "", "99999999999999999999"), "read", "/f", "", "99999999999999999999"},
		{"a time before 1970", signed("read", "/f", "", "-5"), "read", "/f", "", "-5"},
	} {
		q := url.Values{"path": {tc.path}, "username": {tc.user}, "signature": {tc.sum}}
		if tc.expires != "" {
			q.Set("signature_expiration", tc.expires)
		}
		err := checkSignature(token, tc.operation, q, now)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		// The signature is valid, so no user may be found by that name.
		n := &names{logins: map[string]login{"root": {}, "user": {}, "y": {}}}
		if a, err := n.account(tc.user, defaults{}); err == nil {
			t.Errorf("%s: acts as %s", tc.name, a.name)
		}
	}
	ok := url.Values{"path": {"/f"}, "username": {"root"}, "signature": {signed("read", "/f", "root", "2000")}, "signature_expiration": {"2000"}}
	if err := checkSignature(token, "read", ok, now); err != nil {
		t.Errorf("a good address: %v", err)
	}
}

// TestAttackE2BCrowdingOut: a tenant with any number of builds and uploads does
// not block another one.
func TestAttackE2BCrowdingOut(t *testing.T) {
	all := newBuilds()
	defer all.close()
	add := func(tenant string, i int) error {
		return all.add(&build{tenant: tenant, status: buildWaiting, created: time.Unix(int64(i), 0), want: order{ID: fmt.Sprint(tenant, i), Name: "x"}})
	}
	if err := add("victim", 0); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxBuilds {
		if err := add("rival", i+1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := all.get("victim", "x", "victim0"); err != nil {
		t.Errorf("the build of another tenant is lost: %v", err)
	}
	if len(all.known) > 1+maxBuilds {
		t.Errorf("%d builds are remembered", len(all.known))
	}

	var tickets tickets
	now := time.Unix(0, 0)
	var refused error
	for range maxTickets + 1 {
		_, refused = tickets.add("key", "rival", "h", now)
	}
	if sandbox.CodeOf(refused) != sandbox.CodeExhausted {
		t.Errorf("announcements without end: %v", refused)
	}
	if _, err := tickets.add("key", "victim", "h", now); err != nil {
		t.Errorf("another tenant cannot announce: %v", err)
	}
	if _, err := tickets.add("key", "rival", "h", now.Add(2*ticketLife)); err != nil {
		t.Errorf("announcements do not expire: %v", err)
	}
}

// slow is a body that a test feeds.
type slow struct {
	begun chan struct{}
	end   chan error
	once  sync.Once
}

func (s *slow) Read([]byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	return 0, <-s.end
}

// TestAttackE2BUploadTwice uses a one-time upload URL twice at once.
func TestAttackE2BUploadTwice(t *testing.T) {
	services := &Services{Authenticate: func(ctx context.Context, _ string) (context.Context, string, error) { return ctx, "", nil }}
	h := &buildAPI{common: &common{rights: anything{}, opts: Options{Now: time.Now, Logger: slog.New(slog.DiscardHandler), Uploads: t.TempDir()}}, services: services, builds: newBuilds()}
	h.uploads = uploads{h.opts.Uploads}
	defer h.builds.close()
	name, err := h.tickets.add("key", "", strings.Repeat("ab", 32), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	put := func(body io.Reader) int {
		r := httptest.NewRequest(http.MethodPut, "/uploads/"+name, body)
		r.SetPathValue("ticket", name)
		w := httptest.NewRecorder()
		h.putUpload(w, r)
		return w.Code
	}
	first := &slow{begun: make(chan struct{}), end: make(chan error, 1)}
	answer := make(chan int, 1)
	go func() { answer <- put(first) }()
	<-first.begun
	if code := put(strings.NewReader("second")); code != http.StatusForbidden {
		t.Errorf("a second upload at the same time: %d", code)
	}
	first.end <- errors.New("cut off")
	if code := <-answer; code < 400 {
		t.Errorf("an upload that was cut off: %d", code)
	}
	if code := put(strings.NewReader("again")); code != http.StatusOK {
		t.Errorf("an upload that is repeated: %d", code)
	}
	if code := put(strings.NewReader("late")); code != http.StatusForbidden {
		t.Errorf("an upload after the upload: %d", code)
	}
}

// FuzzDestination: any request names at most one sandbox, by a name that cannot
// change a path or header.
func FuzzDestination(f *testing.F) {
	f.Add("8000-sbabc.box.test", "", "", "/")
	f.Add("localhost:80", "sbabc", "49983", "/files")
	f.Add("[::1]:80", "sb..", "0", "/process.Process/List")
	f.Fuzz(func(t *testing.T, host, id, port, path string) {
		r := &http.Request{Host: host, URL: &url.URL{Path: path}, Header: http.Header{headerID: {id}, headerPort: {port}}}
		got, number, named, err := destination(r)
		if err != nil || !named {
			return
		}
		if sandbox.ValidateName(string(got)) != nil || !strings.HasPrefix(string(got), idPrefix) || number == 0 {
			t.Errorf("%q, %d", got, number)
		}
		if again, err := privateID(publicID(got)); err == nil && again != got && !strings.Contains(strings.TrimPrefix(string(got), idPrefix), "-") {
			t.Errorf("%q is %q elsewhere", got, again)
		}
	})
}
