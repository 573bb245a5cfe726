package daemon_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// linkPage is a browser without a key, at an address of the daemon.
type linkPage struct {
	t    *testing.T
	http *http.Client
	base string
}

// redeem exchanges the code of a link.
func (p linkPage) redeem(id, code string, headers ...string) (a viewing.StreamAccess, status int) {
	p.t.Helper()
	return p.exchange(id, viewing.StreamRedemption{Code: code}, headers...)
}

// again exchanges the token of a link for one that is valid now.
func (p linkPage) again(a viewing.StreamAccess) (viewing.StreamAccess, int) {
	p.t.Helper()
	return p.exchange(a.ID, viewing.StreamRedemption{Token: a.Token})
}

func (p linkPage) exchange(id string, with viewing.StreamRedemption, headers ...string) (a viewing.StreamAccess, status int) {
	p.t.Helper()
	body, _ := json.Marshal(with)
	r, _ := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.base+"/v1/streams/"+id+"/token", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := p.http.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Cache-Control") != "no-store" || len(resp.Cookies()) > 0 {
		p.t.Errorf("the answer has %v", resp.Header)
	}
	_ = json.NewDecoder(resp.Body).Decode(&a)
	return a, resp.StatusCode
}

// views opens the socket of a stream.
func (p linkPage) views(a viewing.StreamAccess) *websocket.Conn {
	p.t.Helper()
	ws, resp, err := websocket.Dial(p.t.Context(), "ws"+strings.TrimPrefix(p.base, "http")+a.URL, &websocket.DialOptions{
		HTTPClient: p.http, Subprotocols: []string{"atoll", "atoll.token." + a.Token},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	p.t.Cleanup(func() { _ = ws.CloseNow() })
	return ws
}

// link opens a stream with a code.
func (v *viewers) link(key, kind, mode string) (s viewing.StreamAccess) {
	v.t.Helper()
	body := `{"kind":"` + kind + `","mode":"` + mode + `","port":` + v.port + `,"ttl":3600,"link":true}`
	if code := v.call(key, http.MethodPost, "/v1/sandboxes/box/streams", body, &s); code != http.StatusCreated || s.Code == "" || s.CodeExpires.IsZero() {
		v.t.Fatalf("%s gets no link to %s: %d, %+v", key, mode, code, s)
	}
	return s
}

func (v *viewers) page() linkPage { return linkPage{v.t, http.DefaultClient, "http://" + v.at} }

func TestAttackLinksOfStreams(t *testing.T) {
	v := newViewing(t)
	p := v.page()
	var plain viewing.StreamAccess
	v.call("acme", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"desktop","port":`+v.port+`}`, &plain)
	if plain.Code != "" {
		t.Error("a stream has a code that nobody asked for")
	}
	one, other, rivals := v.link("acme", "desktop", "view"), v.link("acme", "desktop", "control"), viewing.StreamAccess{}
	theirs := create(t, daemontest.Bearer(t, v.d, v.key["rival"]), sandbox.Spec{Name: "box"})
	t.Cleanup(func() { _ = theirs.Destroy(context.WithoutCancel(t.Context())) })
	v.call("rival", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"desktop","port":5900,"link":true}`, &rivals)
	for name, try := range map[string][]string{
		"a wrong code": {one.ID, "AAAAAAAAAAAAAAAAAAAAAAAAAA"}, "no code": {one.ID, ""}, "the code of another stream": {one.ID, other.Code},
		"the code of another tenant": {one.ID, rivals.Code}, "the code of one without": {plain.ID, one.Code},
		"no stream": {"none", one.Code}, "a code of a stream of another tenant": {rivals.ID, one.Code},
	} {
		if a, status := p.redeem(try[0], try[1]); status != http.StatusUnauthorized || a.Token != "" {
			t.Errorf("%s is exchanged: %d %+v", name, status, a)
		}
	}
	if a, status := p.redeem(other.ID, other.Token[:64]); status != http.StatusUnauthorized || a.Token != "" {
		t.Errorf("a token is exchanged as a code: %d", status)
	}
	if _, status := p.redeem(one.ID, one.Code, "Origin", "http://evil.example"); status != http.StatusForbidden {
		t.Errorf("a page of another origin gets an answer: %d", status)
	}
	ws, err := v.socket(one.URL, one.Code, "")
	if err != nil {
		t.Fatal(err)
	}
	v.closed("a code as a token", ws, "unauthorized")

	a, status := p.redeem(one.ID, one.Code)
	if status != http.StatusOK || a.ID != one.ID || a.Mode != "view" || a.Code != "" || !a.Expires.Equal(one.Expires) {
		t.Fatalf("exchanged: %d, %+v", status, a)
	}
	if a, status := p.redeem(one.ID, one.Code); status != http.StatusUnauthorized || a.Token != "" {
		t.Errorf("a code is exchanged twice: %d", status)
	}
	// What the page has opens this stream in its mode, and nothing else.
	if ws, err = v.socket(other.URL, a.Token, ""); err != nil {
		t.Fatal(err)
	}
	v.closed("the token for another stream", ws, "unauthorized")
	for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/box/streams", "/v1/streams", "/v1/caller"} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, p.base+path, nil)
		r.Header.Set("Authorization", "Bearer "+a.Token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("GET %s with the token of a stream: %d", path, resp.StatusCode)
		}
	}
	if code := v.call("reader", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"desktop","port":5900,"mode":"control","link":true}`, nil); code != http.StatusForbidden {
		t.Errorf("a key that may only read makes a link with control: %d", code)
	}
	var list struct{ Streams []viewing.Stream }
	v.call("acme", http.MethodGet, "/v1/sandboxes/box/streams", "", &list)
	if text, _ := json.Marshal(list); bytes.Contains(text, []byte(other.Code)) || len(list.Streams) != 3 {
		t.Errorf("the list is %s", text)
	}

	ws = p.views(a)
	v.reads(ws, "RFB 003.008\n")
	update := "\x03\x00\x00\x00\x00\x00\x00\x01\x00\x01"
	_ = ws.Write(t.Context(), websocket.MessageBinary, []byte("RFB 003.008\n\x01\x01\x04\x01\x00\x00\x00\x00\x00A"+update))
	var all []byte
	for want := "RFB 003.008\n\x01\x01" + update; string(all) != want; {
		part := <-v.got
		if all = append(all, part...); !strings.HasPrefix(want, string(all)) {
			t.Fatalf("the server received %q, want %q", all, want)
		}
	}
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/box/streams/"+one.ID, "", nil); code != http.StatusNoContent {
		t.Errorf("revoking: %d", code)
	}
	v.closed("revoked", ws, "revoked")
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/box/streams/"+other.ID, "", nil); code != http.StatusNoContent {
		t.Errorf("revoking: %d", code)
	}
	if _, status := p.redeem(other.ID, other.Code); status != http.StatusUnauthorized {
		t.Errorf("the link of a stream that was revoked is opened: %d", status)
	}
}

func TestLinkToATerminal(t *testing.T) {
	v := newViewing(t)
	s := v.link("acme", "terminal", "view")
	a, status := v.page().redeem(s.ID, s.Code)
	if status != http.StatusOK || a.Kind != "terminal" || a.Process == "" {
		t.Fatalf("exchanged: %d, %+v", status, a)
	}
	watcher := v.sit(a, viewing.TerminalMessage{})
	watcher.until("the screen", func() bool { return watcher.last.Type == "screen" })
	watcher.types("echo not-$((1))-typed\n")
	typist := v.sit(v.terminal("acme", "control"), viewing.TerminalMessage{Size: &sandbox.WindowSize{Cols: 100, Rows: 30}})
	typist.types("echo seen-$((40+2))\n")
	watcher.sees("seen-42")
	if strings.Contains(watcher.seen.String(), "not-1-typed") {
		t.Error("a viewer whose link only watches typed")
	}
	// The end of the key that made the link ends the page's socket.
	guests := v.link("guest", "terminal", "control")
	if a, status = v.page().redeem(guests.ID, guests.Code); status != http.StatusOK {
		t.Fatal(status)
	}
	ws := v.page().views(a)
	if err := daemontest.Bearer(t, v.d, v.key["boss"]).Admin().RevokeKey(t.Context(), v.id["guest"]); err != nil {
		t.Fatal(err)
	}
	v.closed("key revoked", ws, "grant-revoked")
}

// What a key made ends with it: links that nobody has opened, and tokens that
// were exchanged before.
func TestAttackLinksOfARevokedKey(t *testing.T) {
	v := newViewing(t)
	p := v.page()
	for _, kind := range []string{"terminal", "desktop"} {
		var made struct{ ID, Token string }
		if code := v.call("boss", http.MethodPost, "/v1/keys", `{"verbs":["read","exec"]}`, &made); code != http.StatusCreated {
			t.Fatal(code)
		}
		v.key[kind] = made.Token
		unopened, opened := v.link(kind, kind, "control"), v.link(kind, kind, "control")
		a, status := p.redeem(opened.ID, opened.Code)
		if status != http.StatusOK {
			t.Fatal(status)
		}
		if err := daemontest.Bearer(t, v.d, v.key["boss"]).Admin().RevokeKey(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		if a, status := p.redeem(unopened.ID, unopened.Code); status != http.StatusUnauthorized || a.ID != "" || a.Token != "" {
			t.Errorf("%s: the link of a revoked key is opened: %d, %+v", kind, status, a)
		}
		v.closed(kind+" with a token of before", p.views(a), "grant-revoked")
		if ws, err := v.socket(a.URL, a.Token, ""); err == nil {
			v.closed(kind+" again", ws, "unauthorized")
		}
	}
	var list struct{ Streams []viewing.Stream }
	if v.call("acme", http.MethodGet, "/v1/sandboxes/box/streams", "", &list); len(list.Streams) > 0 {
		t.Errorf("streams of revoked keys are left: %+v", list.Streams)
	}
	v.records("stream.revoked 0 grant-revoked", "stream.revoked 0 grant-revoked", "stream.revoked 0 grant-revoked", "stream.revoked 0 grant-revoked")
}

// A link to a session works on in the sandbox that serves it next. The page needs
// no key and no new link for that, and gets no more than it had. RB-66.
func TestLinksFollowTheirSession(t *testing.T) {
	v := newViewing(t)
	c := daemontest.Bearer(t, v.d, v.key["acme"])
	session := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	t.Cleanup(func() { _ = session.Destroy(context.WithoutCancel(t.Context())) })
	p := v.page()
	link := func(key, kind, mode string) (s viewing.StreamAccess) {
		t.Helper()
		body := `{"kind":"` + kind + `","mode":"` + mode + `","ttl":3600,"link":true}`
		if kind == "desktop" {
			body = strings.Replace(body, "{", `{"port":`+v.port+`,`, 1)
		}
		if code := v.call(key, http.MethodPost, "/v1/sessions/agent/streams", body, &s); code != http.StatusCreated || s.LeaseEpoch != 1 {
			t.Fatalf("%s links to %s: %d, %+v", key, mode, code, s)
		}
		return s
	}
	opened := func(s viewing.StreamAccess) viewing.StreamAccess {
		t.Helper()
		a, status := p.redeem(s.ID, s.Code)
		if status != http.StatusOK {
			t.Fatal(status)
		}
		return a
	}
	watched, unopened, desktop := opened(link("acme", "terminal", "view")), link("acme", "terminal", "control"), opened(link("acme", "desktop", "control"))
	guests := opened(link("guest", "terminal", "control"))
	var plain viewing.StreamAccess
	v.call("acme", http.MethodPost, "/v1/sessions/agent/streams", `{"kind":"terminal"}`, &plain)
	viewer := v.sit(watched, viewing.TerminalMessage{})
	viewer.until("the screen", func() bool { return viewer.last.Type == "screen" })
	if same, status := p.again(watched); status != http.StatusOK || same.Sandbox != watched.Sandbox || same.LeaseEpoch != 1 || !same.Expires.Equal(watched.Expires) {
		t.Errorf("before the rotation: %d, %+v", status, same)
	}

	replace := func(epoch int64) {
		t.Helper()
		r, err := session.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/"+string(r.Sandbox), "", nil); code != http.StatusNoContent {
			t.Fatalf("the sandbox stays: %d", code)
		}
		viewer.over("reaped")
		// A link makes no sandbox: it waits for one.
		if a, status := p.again(watched); status != http.StatusOK || a.LeaseEpoch != epoch-1 {
			t.Errorf("without a sandbox: %d, %+v", status, a)
		}
		if r, err = session.Acquire(t.Context()); err != nil || r.Epoch != epoch {
			t.Fatalf("acquired: %+v, %v", r, err)
		}
	}
	replace(2)
	next, status := p.again(watched)
	if status != http.StatusOK || next.ID != watched.ID || next.LeaseEpoch != 2 || next.Sandbox == watched.Sandbox || next.Process == "" || next.Mode != "view" || !next.Expires.Equal(watched.Expires) || next.Code != "" {
		t.Fatalf("after the rotation: %d, %+v", status, next)
	}
	viewer = v.sit(next, viewing.TerminalMessage{})
	viewer.until("the screen", func() bool { return viewer.last.Type == "screen" })
	viewer.types("echo not-$((1))-typed\n")
	late := opened(unopened)
	if late.LeaseEpoch != 2 || late.Sandbox != next.Sandbox || late.Process != next.Process {
		t.Errorf("a link that is opened after the rotation: %+v, want the sandbox of %+v", late, next)
	}
	typist := v.sit(late, viewing.TerminalMessage{Size: &sandbox.WindowSize{Cols: 100, Rows: 30}})
	typist.types("echo seen-$((40+2))\n")
	viewer.sees("seen-42")
	if strings.Contains(viewer.seen.String(), "not-1-typed") {
		t.Error("a link that only watches typed after the rotation")
	}
	if a, status := p.again(desktop); status != http.StatusOK || a.LeaseEpoch != 2 || a.Port != desktop.Port {
		t.Errorf("the desktop: %d, %+v", status, a)
	} else {
		v.reads(p.views(a), "RFB 003.008\n")
	}

	// Attacks. Another page of the same link has the token of before, and goes on;
	// its socket does not.
	if a, status := p.again(watched); status != http.StatusOK || a.LeaseEpoch != 2 {
		t.Errorf("the token of before: %d, %+v", status, a)
	}
	ws, err := v.socket(watched.URL, watched.Token, "")
	if err != nil {
		t.Fatal(err)
	}
	v.closed("the token of before", ws, "unauthorized")
	for name, with := range map[string]viewing.StreamAccess{
		"of a stream without a link": plain, "of another stream": {Stream: viewing.Stream{ID: watched.ID}, Token: late.Token},
		"changed": {Stream: viewing.Stream{ID: watched.ID}, Token: next.Token[:len(next.Token)-3] + "AAA"}, "of no stream": {Stream: viewing.Stream{ID: "none"}, Token: next.Token},
		"an API key": {Stream: viewing.Stream{ID: watched.ID}, Token: v.key["acme"]},
	} {
		if a, status := p.again(with); status != http.StatusUnauthorized || a.Token != "" {
			t.Errorf("a token %s is exchanged: %d, %+v", name, status, a)
		}
	}
	if err := daemontest.Bearer(t, v.d, v.key["boss"]).Admin().RevokeKey(t.Context(), v.id["guest"]); err != nil {
		t.Fatal(err)
	}
	if a, status := p.again(guests); status != http.StatusUnauthorized || a.Token != "" {
		t.Errorf("the link of a revoked key follows: %d, %+v", status, a)
	}
	if code := v.call("acme", http.MethodDelete, "/v1/sessions/agent/streams/"+late.ID, "", nil); code != http.StatusNoContent {
		t.Fatal(code)
	}
	if a, status := p.again(late); status != http.StatusUnauthorized || a.Token != "" {
		t.Errorf("a link that was revoked follows: %d, %+v", status, a)
	}
	if next, status = p.again(watched); status != http.StatusOK {
		t.Fatal(status)
	}
	replace(3)
	if a, status := p.again(next); status != http.StatusOK || a.LeaseEpoch != 3 {
		t.Errorf("again: %d, %+v", status, a)
	}

	// Another session of the same name is another session.
	if err := session.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	session = openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	if _, err := session.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, status := p.again(next); status != http.StatusNotFound || a.Token != "" {
		t.Errorf("the link shows another session of the same name: %d, %+v", status, a)
	}
}

func TestALinkForADesktopThatCannotStartIsRefused(t *testing.T) {
	t.Setenv("PATH", "/nothing") // sandboxes of provider host have it
	v := newViewing(t)
	var problem struct{ Code, Hint string }
	if code := v.call("acme", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"desktop","link":true}`, &problem); code < 400 || problem.Code != "unsupported" || !strings.Contains(problem.Hint, "desktop-image") {
		t.Errorf("%d, %+v", code, problem)
	}
}

// A proxy may serve the daemon below a path. RB-64.
func TestLinksBehindAPathPrefix(t *testing.T) {
	v := newViewing(t)
	to, _ := url.Parse("http://" + v.at)
	proxy := httptest.NewServer(http.StripPrefix("/some/where", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}}))
	t.Cleanup(proxy.Close)
	s := v.link("acme", "desktop", "view")
	p := linkPage{t, proxy.Client(), proxy.URL + "/some/where"}
	a, status := p.redeem(s.ID, s.Code, "Origin", proxy.URL)
	if status != http.StatusOK {
		t.Fatal(status)
	}
	v.reads(p.views(a), "RFB 003.008\n")
}

// RB-64.
func TestLinksOverTLS(t *testing.T) {
	config, pool := certificate(t)
	m := daemontest.New(t)
	m.Host = true
	d := m.Start(t, func(o *daemon.Options) { o.Listen, o.TLS, o.Hosts = "127.0.0.1:0", config, []string{"example.com"} })
	c := daemontest.Client(t, d)
	sb := create(t, c, sandbox.Spec{Name: "box"})
	t.Cleanup(func() { _ = sb.Destroy(context.WithoutCancel(t.Context())) })
	s, err := sb.OpenStream(t.Context(), viewing.NewStream{Kind: "terminal", Link: true})
	if err != nil {
		t.Fatal(err)
	}
	if c.WebAddress() != "" {
		t.Errorf("the socket is an address for browsers: %s", c.WebAddress())
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "example.com"}}
	t.Cleanup(transport.CloseIdleConnections)
	p := linkPage{t, &http.Client{Transport: transport}, "https://" + d.TCP().String()}
	a, status := p.redeem(s.ID, s.Code, "Origin", p.base)
	if status != http.StatusOK {
		t.Fatal(status)
	}
	ws := p.views(a)
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(`{"type":"join"}`)); err != nil {
		t.Fatal(err)
	}
	if _, text, err := ws.Read(t.Context()); err != nil || !bytes.Contains(text, []byte(`"screen"`)) {
		t.Errorf("received %s, %v", text, err)
	}
}
