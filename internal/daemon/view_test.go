package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// viewers is a daemon with a sandbox of the tenant acme, and a server that
// counts as one inside: sandboxes of provider host share the machine's ports.
type viewers struct {
	at, port string
	dir      string            // the state directory
	key      map[string]string // tokens of keys, by name
	id       map[string]string // ids of keys
	t        *testing.T
	d        *daemon.Daemon
	got      chan []byte // what the server received
}

func newViewing(t *testing.T, set ...func(*daemon.Options)) *viewers {
	m := daemontest.New(t)
	m.Host = true
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(freePort(t))))
	d := m.Start(t, func(o *daemon.Options) {
		o.Listen, o.Plain = addr, true
		for _, one := range set {
			one(o)
		}
	})
	v := &viewers{at: addr, dir: m.Dir, key: map[string]string{}, id: map[string]string{}, t: t, d: d, got: make(chan []byte, 100)}
	admin := daemontest.Client(t, d).Admin()
	for _, tenant := range []string{"acme", "rival"} {
		if _, err := admin.CreateTenant(t.Context(), tenant, operator.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, k := range map[string]operator.NewKey{
		"acme": {Tenant: "acme", Verbs: []string{"read", "exec", "write"}}, "reader": {Tenant: "acme", Verbs: []string{"read"}},
		"guest": {Tenant: "acme", Verbs: []string{"read", "exec"}},
		"rival": {Tenant: "rival", Verbs: []string{"read", "exec", "write"}}, "boss": {Tenant: "acme", Verbs: []string{"admin"}},
	} {
		made, err := admin.CreateKey(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		v.key[name], v.id[name] = made.Token, made.ID
	}
	sb := create(t, daemontest.Bearer(t, d, v.key["acme"]), sandbox.Spec{Name: "box"})
	t.Cleanup(func() { _ = sb.Destroy(context.WithoutCancel(t.Context())) })
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, v.port, _ = net.SplitHostPort(l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write([]byte("RFB 003.008\n"))
				for {
					buf := make([]byte, 1024)
					n, err := c.Read(buf)
					if n > 0 {
						v.got <- buf[:n]
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	return v
}

func (v *viewers) call(key, method, path, body string, out any) int {
	v.t.Helper()
	r, _ := http.NewRequestWithContext(v.t.Context(), method, "http://"+v.at+path, bytes.NewReader([]byte(body)))
	r.Header.Set("Authorization", "Bearer "+v.key[key])
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	if out != nil {
		_ = json.NewDecoder(resp.Body).Decode(out)
	}
	return resp.StatusCode
}

func (v *viewers) open(key, kind, mode string) (s viewing.StreamAccess) {
	v.t.Helper()
	body := `{"kind":"` + kind + `","mode":"` + mode + `","port":` + v.port + `}`
	if code := v.call(key, http.MethodPost, "/v1/sandboxes/box/streams", body, &s); code != http.StatusCreated {
		v.t.Fatalf("%s cannot open a stream to %s: %d", key, mode, code)
	}
	return s
}

func (v *viewers) socket(path, token, origin string) (*websocket.Conn, error) {
	o := &websocket.DialOptions{HTTPHeader: http.Header{}}
	if token != "" {
		o.Subprotocols = []string{"atoll", "atoll.token." + token}
	}
	if origin != "" {
		o.HTTPHeader.Set("Origin", origin)
	}
	ws, resp, err := websocket.Dial(v.t.Context(), "ws://"+v.at+path, o)
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
	if err == nil {
		v.t.Cleanup(func() { _ = ws.CloseNow() })
	}
	return ws, err
}

// closed expects the end of a socket for a reason, without content before it.
func (v *viewers) closed(name string, ws *websocket.Conn, reason string) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), time.Minute)
	defer cancel()
	_, data, err := ws.Read(ctx)
	if err == nil || websocket.CloseStatus(err) != websocket.StatusPolicyViolation || !bytes.Contains([]byte(err.Error()), []byte(reason)) {
		v.t.Errorf("%s: received %q, %v; want the end because of %s", name, data, err, reason)
	}
}

func (v *viewers) reads(ws *websocket.Conn, want string) {
	v.t.Helper()
	_, data, err := ws.Read(v.t.Context())
	if err != nil || string(data) != want {
		v.t.Fatalf("received %q, %v; want %q", data, err, want)
	}
}

// RB-63.
func TestASocketAuthenticatesBeforeContent(t *testing.T) {
	v := newViewing(t)
	s := v.open("acme", "desktop", "control")
	other := v.open("acme", "desktop", "control")
	var port sandbox.PortToken
	v.call("acme", http.MethodPost, "/v1/sandboxes/box/port-tokens", `{}`, &port)
	for name, token := range map[string]string{
		"token of another stream": other.Token, "API key": v.key["acme"], "token of a port": port.Token, "changed": s.Token[:len(s.Token)-3] + "AAA",
	} {
		ws, err := v.socket(s.URL, token, "")
		if err != nil {
			t.Fatal(name, err)
		}
		v.closed(name, ws, "unauthorized")
	}
	ws, err := v.socket(s.URL+"?token="+s.Token, "", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = ws.Write(t.Context(), websocket.MessageBinary, []byte("RFB 003.008\n"))
	v.closed("token in the query", ws, "unauthorized")
	if _, err := v.socket(s.URL, s.Token, "http://8000-box.localhost"); err == nil {
		t.Error("a page of another origin opened the stream")
	}
	if ws, err = v.socket(s.URL, "", "http://"+v.at); err != nil {
		t.Fatal(err)
	}
	_ = ws.Write(t.Context(), websocket.MessageText, []byte(`{"token":"`+s.Token+`"}`))
	v.reads(ws, "RFB 003.008\n")
}

// A stream that is too fast is held up, loses nothing, and is counted (RB-118).
func TestStreamsHaveRates(t *testing.T) {
	const perSecond = 64 << 10
	v := newViewing(t, func(o *daemon.Options) { o.StreamRate = perSecond })
	s := v.open("acme", "port", "control")
	ws, err := v.socket(s.URL, s.Token, "")
	if err != nil {
		t.Fatal(err)
	}
	v.reads(ws, "RFB 003.008\n")
	sent := bytes.Repeat([]byte("0123456789abcdef"), 3*perSecond/16)
	go func() {
		for part := range slices.Chunk(sent, 16<<10) {
			if ws.Write(t.Context(), websocket.MessageBinary, part) != nil {
				return
			}
		}
	}()
	var got []byte
	for len(got) < len(sent) {
		got = append(got, <-v.got...)
	}
	if !bytes.Equal(got, sent) {
		t.Error("what came is not what was sent")
	}
	if _, page := fetch(t, v.d, "/metrics", "", ""); !strings.Contains(page, "\natoll_stream_held_bytes_total ") || strings.Contains(page, "\natoll_stream_held_bytes_total 0\n") {
		t.Errorf("nothing is counted: %s", page)
	}
}

func TestStreamsOfOtherTenants(t *testing.T) {
	v := newViewing(t)
	s := v.open("acme", "desktop", "view")
	if code := v.call("rival", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"desktop"}`, nil); code != http.StatusNotFound {
		t.Errorf("another tenant opens a stream: %d", code)
	}
	if code := v.call("rival", http.MethodGet, "/v1/sandboxes/box/streams", "", nil); code != http.StatusNotFound {
		t.Errorf("another tenant lists: %d", code)
	}
	if code := v.call("rival", http.MethodDelete, "/v1/sandboxes/box/streams/"+s.ID, "", nil); code != http.StatusNotFound {
		t.Errorf("another tenant revokes: %d", code)
	}
	for _, body := range []string{`{"kind":"desktop","mode":"control"}`, `{"kind":"port","port":80}`, `{"kind":"desktop","mode":"view","port":80}`} {
		if code := v.call("reader", http.MethodPost, "/v1/sandboxes/box/streams", body, nil); code != http.StatusForbidden {
			t.Errorf("a key that may only read opens %s: %d", body, code)
		}
	}
	if code := v.call("reader", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"desktop","mode":"view"}`, nil); code != http.StatusCreated {
		t.Errorf("a key that may only read cannot view the desktop: %d", code)
	}
}

func TestViewersOfADesktopCannotType(t *testing.T) {
	v := newViewing(t)
	ws, err := v.socket(v.open("acme", "desktop", "view").URL, "", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = ws.CloseNow()
	s := v.open("acme", "desktop", "view")
	if ws, err = v.socket(s.URL, s.Token, ""); err != nil {
		t.Fatal(err)
	}
	v.reads(ws, "RFB 003.008\n")
	update := "\x03\x00\x00\x00\x00\x00\x00\x01\x00\x01"
	_ = ws.Write(t.Context(), websocket.MessageBinary, []byte("RFB 003.008\n\x01\x01\x04\x01\x00\x00\x00\x00\x00A\x05\x01\x00\x01\x00\x01"+update))
	var all []byte
	for want := "RFB 003.008\n\x01\x01" + update; string(all) != want; {
		select {
		case part := <-v.got:
			all = append(all, part...)
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
		if !bytes.HasPrefix([]byte(want), all) {
			t.Fatalf("the server received %q, want %q", all, want)
		}
	}
}

// RB-67.
func TestEndedStreamsCloseTheirSockets(t *testing.T) {
	v := newViewing(t)
	open := func(key string) (viewing.StreamAccess, *websocket.Conn) {
		s := v.open(key, "desktop", "view")
		ws, err := v.socket(s.URL, s.Token, "")
		if err != nil {
			t.Fatal(err)
		}
		v.reads(ws, "RFB 003.008\n")
		return s, ws
	}
	revoked, ws := open("acme")
	var list struct{ Streams []viewing.Stream }
	v.call("acme", http.MethodGet, "/v1/sandboxes/box/streams", "", &list)
	if len(list.Streams) != 1 || list.Streams[0].Viewers != 1 {
		t.Errorf("the list is %+v", list)
	}
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/box/streams/"+revoked.ID, "", nil); code != http.StatusNoContent {
		t.Errorf("revoking: %d", code)
	}
	v.closed("revoked", ws, "revoked")
	if ws, err := v.socket(revoked.URL, revoked.Token, ""); err == nil {
		v.closed("opened after it was revoked", ws, "unauthorized")
	}
	_, ws = open("guest")
	if err := daemontest.Bearer(t, v.d, v.key["boss"]).Admin().RevokeKey(t.Context(), v.id["guest"]); err != nil {
		t.Fatal(err)
	}
	v.closed("key revoked", ws, "grant-revoked")
	v.records("stream.opened 1", "stream.revoked 0 admin", "stream.closed 0 revoked", "stream.opened 1", "stream.revoked 0 grant-revoked", "stream.closed 0 revoked")
}

// records expects events of streams: types, numbers of viewers and reasons.
func (v *viewers) records(want ...string) {
	v.t.Helper()
	var got []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var page struct{ Events []sandbox.Event }
		v.call("acme", http.MethodGet, "/v1/events?type=stream.opened&type=stream.closed&type=stream.revoked&type=stream.url.rotated", "", &page)
		got = nil
		for _, e := range page.Events {
			got = append(got, strings.TrimSpace(fmt.Sprint(e.Type, " ", e.Viewers, " ", e.Reason)))
			if strings.Contains(fmt.Sprintf("%+v", e), "atollview_") {
				v.t.Errorf("a token was recorded: %+v", e)
			}
		}
		if slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			return
		}
	}
	v.t.Errorf("the log has %q, want %q", got, want)
}

// A stream of a session ends with its sandbox, and a new token shows the next one.
// RB-66.
func TestStreamsRotateWithTheirSession(t *testing.T) {
	v := newViewing(t)
	c := daemontest.Bearer(t, v.d, v.key["acme"])
	session := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	t.Cleanup(func() {
		if err := session.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	var s, again, next viewing.StreamAccess
	if code := v.call("acme", http.MethodPost, "/v1/sessions/agent/streams", `{"kind":"desktop","port":`+v.port+`}`, &s); code != http.StatusCreated || s.LeaseEpoch != 1 {
		t.Fatalf("opened: %d, %+v", code, s)
	}
	if left := time.Until(s.Expires); left < 60*time.Second || left > 2*time.Minute || s.Mode != "view" || s.Transport != "vnc-ws" || s.Client != "novnc" || s.URL != "/v1/streams/"+s.ID {
		t.Errorf("opened %+v, valid for %v; want 120 s", s, left)
	}
	ws, err := v.socket(s.URL, s.Token, "")
	if err != nil {
		t.Fatal(err)
	}
	v.reads(ws, "RFB 003.008\n")
	if code := v.call("acme", http.MethodPost, "/v1/sessions/agent/streams/"+s.ID+"/token", `{"ttl":600}`, &again); code != http.StatusOK || again.ID != s.ID || again.LeaseEpoch != 1 || again.Token == s.Token || again.Viewers != 1 {
		t.Fatalf("a new token: %d, %+v", code, again)
	}
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/"+string(s.Sandbox), "", nil); code != http.StatusNoContent {
		t.Fatalf("the sandbox stays: %d", code)
	}
	v.closed("after the sandbox ended", ws, "reaped")
	if r, err := session.Acquire(t.Context()); err != nil || r.Epoch != 2 {
		t.Fatalf("acquired: %+v, %v", r, err)
	}
	if ws, err = v.socket(s.URL, again.Token, ""); err != nil {
		t.Fatal(err)
	}
	v.closed("with the old epoch", ws, "box-rollover")
	if code := v.call("acme", http.MethodPost, "/v1/sessions/agent/streams/"+s.ID+"/token", `{}`, &next); code != http.StatusOK || next.LeaseEpoch != 2 || next.Sandbox == s.Sandbox {
		t.Fatalf("rotated: %d, %+v", code, next)
	}
	if ws, err = v.socket(s.URL, again.Token, ""); err != nil {
		t.Fatal(err)
	}
	v.closed("an old token after the rotation", ws, "unauthorized")
	if ws, err = v.socket(next.URL, next.Token, ""); err != nil {
		t.Fatal(err)
	}
	v.reads(ws, "RFB 003.008\n")
	v.records("stream.opened 1", "stream.closed 0 reaped", "stream.opened 1", "stream.closed 0 box-rollover", "stream.url.rotated 0", "stream.opened 1")
}
