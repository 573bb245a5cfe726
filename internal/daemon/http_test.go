package daemon_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// TestBrokenRequests: an invalid request is not reported as a fault of the
// daemon, neither in the response nor in the log, and changes nothing.
func TestBrokenRequests(t *testing.T) {
	var logged bytes.Buffer
	d := daemontest.New(t).Start(t, func(o *daemon.Options) {
		plainTCP(o)
		o.Logger = logTo(&logged)
	})
	owner := daemontest.Client(t, d)
	sb := create(t, owner, sandbox.Spec{Name: "one"})
	_, err := sb.Files().Write(t.Context(), "/f", strings.NewReader("as it was"), atoll.WriteOptions{})
	ok(t, err)
	k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"admin"}})
	ok(t, err)
	send := func(head, body string) (*http.Response, string) {
		t.Helper()
		conn, err := net.Dial("tcp", d.TCP().String())
		ok(t, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n%s", head, d.TCP(), k.Token, body)
		ok(t, err)
		method, _, _ := strings.Cut(head, " ")
		if method == http.MethodPut { // of others it would be the end of the caller
			ok(t, conn.(*net.TCPConn).CloseWrite())
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%s: %v", head, err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		ok(t, err)
		return resp, string(text)
	}
	const file, archive = "PUT /v1/sandboxes/one/files?path=/f", "PUT /v1/sandboxes/one/files/archive?path=/"
	for _, tt := range []struct {
		head, body string
		status     []int
	}{
		{file, "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n", []int{400}},
		{archive, "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n", []int{400}},
		{file, "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", []int{400, 499}},
		{file, "Content-Length: 100\r\n\r\nhello", []int{400, 499}},
		{"HEAD /v1/sandboxes/one/files?path=/f", "\r\n", []int{200}},
		{"HEAD /v1/sandboxes/one/files/archive?path=/", "\r\n", []int{405}},
		{"HEAD /v1/events/stream", "\r\n", []int{405}},
		{"HEAD /healthz", "\r\n", []int{200}},
		{"GET /v1/events/stream", "Last-Event-ID: -1\r\n\r\n", []int{400}},
		{"GET /v1/events?after=1000000", "\r\n", []int{400}},
		{"GET /v1/events?type=sandbox.create", "\r\n", []int{400}},
		{"GET /v1/events/stream?type=sandbox.create", "\r\n", []int{400}},
		{"GET /v1/audit/export?type=sandbox.create", "\r\n", []int{400}},
	} {
		resp, text := send(tt.head, tt.body)
		if !slices.Contains(tt.status, resp.StatusCode) {
			t.Errorf("%s %q: %s %s", tt.head, tt.body, resp.Status, text)
		}
		if resp.Request.Method == http.MethodHead && strings.Contains(tt.head, "path=/f") && resp.ContentLength != int64(len("as it was")) {
			t.Errorf("%s: a length of %d", tt.head, resp.ContentLength)
		}
	}
	for what, first := range map[string]func(*websocket.Conn) error{
		"binary": func(ws *websocket.Conn) error {
			return ws.Write(t.Context(), websocket.MessageBinary, []byte(`{"type":"start"}`))
		},
		"empty":   func(ws *websocket.Conn) error { return ws.Write(t.Context(), websocket.MessageText, nil) },
		"no JSON": func(ws *websocket.Conn) error { return ws.Write(t.Context(), websocket.MessageText, []byte("{")) },
		"another": func(ws *websocket.Conn) error {
			return ws.Write(t.Context(), websocket.MessageText, []byte(`{"type":"signal","signal":9}`))
		},
		"too long": func(ws *websocket.Conn) error {
			return ws.Write(t.Context(), websocket.MessageText, bytes.Repeat([]byte(" "), 8<<20))
		},
		"nothing": func(ws *websocket.Conn) error { return ws.CloseNow() },
	} {
		ws, _, err := websocket.Dial(t.Context(), "ws://"+d.TCP().String()+"/v1/sandboxes/one/exec", &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + k.Token}},
		})
		ok(t, err)
		_ = first(ws) // the other side need not read it all
		for err == nil {
			var text []byte
			if _, text, err = ws.Read(t.Context()); bytes.Contains(text, []byte(`"internal"`)) {
				t.Errorf("%s: %s", what, text)
			}
		}
		_ = ws.CloseNow()
	}
	if text := shell(t, sb, "cat /f"); text != "as it was" {
		t.Errorf("the file is %q", text)
	}
	ok(t, d.Close())
	if strings.Contains(logged.String(), "request failed") {
		t.Errorf("logged as faults of the daemon:\n%s", &logged)
	}
}
