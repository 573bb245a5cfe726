package daemon_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/mcpserver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
	"github.com/atoll-run/atoll/stream"
)

// pretend replaces programs of the desktop of filmed.
func pretend(t *testing.T, programs map[string]string) (dir string) {
	t.Helper()
	filmed(t)
	dir, _, _ = strings.Cut(os.Getenv("PATH"), ":")
	for name, text := range programs {
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+strings.ReplaceAll(text, "DIR", dir)+"\n"), 0o700))
	}
	return dir
}

const useComputer = "/v1/sandboxes/box/computer"

// Actions are carried out in order by the programs in the sandbox, and what a
// program says comes back. RB-77.
func TestActionsReachTheDesktop(t *testing.T) {
	dir := pretend(t, map[string]string{
		"xdotool": `echo "$*" >>DIR/done; case $1 in
getmouselocation) printf 'X=7\nY=9\n' ;;
type) cat >>DIR/typed ;;
mousedown) echo 'it is broken' >&2; exit 3 ;;
esac`,
	})
	v := newViewing(t)
	var out viewing.ComputerResult
	code := v.call("acme", http.MethodPost, useComputer, `{"actions":[
		{"action":"move","x":3,"y":4}, {"action":"click","button":"back"}, {"action":"click","x":1,"y":2,"count":2},
		{"action":"scroll","scrollY":300}, {"action":"type","text":"--it's \"$HOME\""}, {"action":"key","keys":["ctrl","f5"]},
		{"action":"drag","path":[{"x":1,"y":2},{"x":3,"y":4}]}, {"action":"wait","durationMs":1}, {"action":"cursor"}]}`, &out)
	if code != http.StatusOK || out.Cursor == nil || *out.Cursor != (viewing.Point{X: 7, Y: 9}) {
		t.Fatalf("used: %d, %+v", code, out)
	}
	done, err := os.ReadFile(filepath.Join(dir, "done"))
	ok(t, err)
	want := `mousemove 3 4
click --repeat 1 --delay 60 8
mousemove 1 2 click --repeat 2 --delay 60 1
click --repeat 3 --delay 10 5
type --delay 12 --file -
key --repeat 1 --delay 12 Control_L+F5
mousemove 1 2 mousedown 1 sleep 0.02 mousemove 3 4 sleep 0.02 mouseup 1
getmouselocation --shell
`
	if string(done) != want {
		t.Errorf("done was\n%s, want\n%s", done, want)
	}
	if typed, err := os.ReadFile(filepath.Join(dir, "typed")); err != nil || string(typed) != `--it's "$HOME"` {
		t.Errorf("typed was %q, %v", typed, err)
	}
	var problem struct {
		Code            sandbox.Code
		Subject, Detail string
	}
	code = v.call("acme", http.MethodPost, useComputer, `{"actions":[{"action":"down"},{"action":"move","x":5,"y":5}]}`, &problem)
	if code != http.StatusServiceUnavailable || problem.Subject != "xdotool" || !strings.Contains(problem.Detail, "exit code 3: it is broken") {
		t.Errorf("a failure: %d, %+v", code, problem)
	}
	if again, _ := os.ReadFile(filepath.Join(dir, "done")); string(again) != want+"mousedown 1\n" {
		t.Errorf("after a failure: %s", again)
	}
}

// An empty or incomplete picture is tried again, and never an answer. RB-76.
func TestScreenshotsOfDesktops(t *testing.T) {
	var whole bytes.Buffer
	ok(t, png.Encode(&whole, image.NewGray(image.Rect(0, 0, 30, 20))))
	dir := pretend(t, map[string]string{
		"scrot": `echo x >>DIR/tries; for f do :; done
case $(wc -l <DIR/tries) in 1) : >"$f" ;; 2) head -c 20 DIR/whole >"$f" ;; *) cat DIR/whole >"$f" ;; esac`,
	})
	ok(t, os.WriteFile(filepath.Join(dir, "whole"), whole.Bytes(), 0o600))
	v := newViewing(t)
	const body = `{"actions":[{"action":"screenshot"}]}`
	var out viewing.ComputerResult
	code := v.call("reader", http.MethodPost, useComputer, body, &out)
	if code != http.StatusOK || out.Screenshot == nil || !bytes.Equal(out.Screenshot.PNG, whole.Bytes()) || out.Screenshot.Width != 30 || out.Screenshot.Height != 20 {
		t.Fatalf("the screenshot: %d, %+v", code, out.Screenshot)
	}
	ok(t, os.Remove(filepath.Join(dir, "whole")))
	var problem struct{ Detail string }
	if code := v.call("reader", http.MethodPost, useComputer, body, &problem); code != http.StatusServiceUnavailable {
		t.Errorf("without a picture: %d, %+v", code, problem)
	}
}

// The tools carry out what they are named after, and what goes wrong is a text for
// the model. RB-79.
func TestTools(t *testing.T) {
	var whole bytes.Buffer
	ok(t, png.Encode(&whole, image.NewGray(image.Rect(0, 0, 30, 20))))
	dir := pretend(t, map[string]string{
		"xdotool": `echo "$*" >>DIR/done; [ "$1" != mousedown ] || exit 3`,
		"scrot":   `for f do :; done; cat DIR/whole >"$f"`,
	})
	ok(t, os.WriteFile(filepath.Join(dir, "whole"), whole.Bytes(), 0o600))
	v := newViewing(t)
	tools := httptest.NewServer(mcpserver.New(daemontest.Client(t, v.d), "test").Handler())
	t.Cleanup(tools.Close)
	connect := func(key string) *mcp.ClientSession {
		t.Helper()
		client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
		session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: tools.URL, HTTPClient: &http.Client{Transport: bearing(v.key[key])}}, nil)
		ok(t, err)
		t.Cleanup(func() { _ = session.Close() })
		return session
	}
	use := func(session *mcp.ClientSession, tool string, arguments map[string]any) *mcp.CallToolResult {
		t.Helper()
		arguments["sandbox"] = "box"
		got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "computer_" + tool, Arguments: arguments})
		ok(t, err)
		return got
	}
	agent := connect("acme")
	for _, one := range []struct {
		tool      string
		arguments map[string]any
		want      string
	}{
		{"click", map[string]any{"x": 1, "y": 2, "button": "right", "keys": []string{"ctrl"}}, "mousemove 1 2 keydown Control_L click --repeat 1 --delay 60 3 keyup Control_L"},
		{"double_click", map[string]any{"x": 1, "y": 2}, "mousemove 1 2 click --repeat 2 --delay 60 1"},
		{"move", map[string]any{"x": 0, "y": 0}, "mousemove 0 0"},
		{"scroll", map[string]any{"x": 1, "y": 2, "scroll_y": -100}, "mousemove 1 2 click --repeat 1 --delay 10 4"},
		{"drag", map[string]any{"x": 1, "y": 2, "to_x": 3, "to_y": 4}, "mousemove 1 2 mousedown 1 sleep 0.02 mousemove 3 4 sleep 0.02 mouseup 1"},
		{"keypress", map[string]any{"keys": []string{"ctrl", "s"}}, "key --repeat 1 --delay 12 Control_L+s"},
		{"type", map[string]any{"text": "hi"}, "type --delay 12 --file -"},
	} {
		if got := use(agent, one.tool, one.arguments); got.IsError {
			t.Errorf("%s: %+v", one.tool, got.Content[0])
		}
		done, err := os.ReadFile(filepath.Join(dir, "done"))
		ok(t, err)
		if string(done) != one.want+"\n" {
			t.Errorf("%s did %q, want %q", one.tool, done, one.want)
		}
		ok(t, os.Remove(filepath.Join(dir, "done")))
	}
	pictures := 0
	for _, content := range use(connect("reader"), "screenshot", map[string]any{}).Content {
		if shot, is := content.(*mcp.ImageContent); is && bytes.Equal(shot.Data, whole.Bytes()) && shot.MIMEType == "image/png" {
			pictures++
		}
	}
	if pictures != 1 {
		t.Errorf("the screenshot has %d pictures", pictures)
	}
	for _, key := range []string{"reader", "rival"} {
		if got := use(connect(key), "click", map[string]any{"x": 1, "y": 2}); !got.IsError {
			t.Errorf("%s clicks: %+v", key, got)
		}
	}
	ok(t, os.WriteFile(filepath.Join(dir, "xdotool"), []byte("#!/bin/sh\necho 'it is broken' >&2; exit 3\n"), 0o700))
	got := use(agent, "move", map[string]any{"x": 1, "y": 2})
	if text, is := got.Content[0].(*mcp.TextContent); !got.IsError || !is || !strings.Contains(text.Text, "exit code 3: it is broken") {
		t.Errorf("a failure: %+v", got.Content[0])
	}
}

// A file is written only if it has the content that the caller knows. RB-84.
func TestWritesOfKnownContent(t *testing.T) {
	v := newViewing(t)
	const files = "/v1/sandboxes/box/files"
	var home struct{ Stdout struct{ Data string } }
	v.call("acme", http.MethodPost, "/v1/sandboxes/box/exec", `{"args":["sh","-c","printf %s \"$HOME\""]}`, &home)
	name := home.Stdout.Data + "/known/file"
	put := func(key, expect, content string) (int, sandbox.Code) {
		t.Helper()
		var problem struct{ Code sandbox.Code }
		code := v.call(key, http.MethodPut, files+"?path="+name+"&expect="+expect, content, &problem)
		return code, problem.Code
	}
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	get := func(at string) string {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+v.at+files+at, nil)
		r.Header.Set("Authorization", "Bearer "+v.key["acme"])
		resp, err := http.DefaultClient.Do(r)
		ok(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		ok(t, err)
		return string(text)
	}
	if code, _ := put("acme", "", "one"); code/100 != 2 {
		t.Fatalf("a new file: %d", code)
	}
	for _, one := range []struct {
		key, expect, content string
		want                 int
		code                 sandbox.Code
		left                 string
	}{
		{"acme", "abc", "x", http.StatusBadRequest, sandbox.CodeInvalid, "one"},
		{"acme", sum("other"), "x", http.StatusConflict, sandbox.CodeConflict, "one"},
		{"reader", sum("one"), "x", http.StatusForbidden, sandbox.CodeDenied, "one"},
		{"rival", sum("one"), "x", http.StatusNotFound, sandbox.CodeNotFound, "one"},
		{"acme", sum("one"), strings.Repeat("two", 200_000), http.StatusOK, "", strings.Repeat("two", 200_000)},
		{"acme", sum("one"), "x", http.StatusConflict, sandbox.CodeConflict, strings.Repeat("two", 200_000)},
	} {
		code, problem := put(one.key, one.expect, one.content)
		left := get("?path=" + name)
		if code != one.want && code/100 != 2 || (code/100 == 2) != (one.want == http.StatusOK) || problem != one.code || left != one.left {
			t.Errorf("%s writes %.9s where %.9s is expected: %d %s, left %.9s", one.key, one.content, one.expect, code, problem, left)
		}
	}
	// What was not written leaves nothing beside the file.
	if list := get("/list?path=" + path.Dir(name)); strings.Count(list, "\n") != 1 {
		t.Errorf("left are %s", list)
	}
}

// A token that the daemon signed is refused when its claims do not hold, at every
// socket. RB-62.
func TestTokensOfSockets(t *testing.T) {
	v := newViewing(t)
	s := v.open("acme", "desktop", "view")
	secret, err := os.ReadFile(filepath.Join(v.dir, "streams.key"))
	ok(t, err)
	good := stream.OpenViewer(secret, s.Token, time.Now())
	if good == nil {
		t.Fatal("the daemon signs with another secret")
	}
	seal := func(kind stream.Kind, change func(*stream.Claims)) string {
		t.Helper()
		c := *good
		change(&c)
		token, err := stream.Seal(secret, kind, c)
		ok(t, err)
		return token
	}
	other := v.open("acme", "desktop", "view")
	theirs := stream.OpenViewer(secret, other.Token, time.Now())
	for name, token := range map[string]string{
		"that has ended":      seal(stream.Viewer, func(c *stream.Claims) { c.Expires = time.Now().Add(-2 * time.Second).Unix() }),
		"of another kind":     seal(stream.Delegated, func(*stream.Claims) {}),
		"of another tenant":   seal(stream.Viewer, func(c *stream.Claims) { c.Tenant = "rival" }),
		"of an unknown mode":  seal(stream.Viewer, func(c *stream.Claims) { c.Mode = "admin" }),
		"of another stream":   seal(stream.Viewer, func(c *stream.Claims) { c.Stream = theirs.Stream }),
		"of a negative epoch": seal(stream.Viewer, func(c *stream.Claims) { c.LeaseEpoch = -1 }),
		"without a dot":       strings.ReplaceAll(s.Token, ".", ""), "that was cut": s.Token[:len(s.Token)-2], "that is longer": s.Token + "AA",
	} {
		ws, err := v.socket(s.URL, token, "")
		if err != nil {
			t.Fatal(name, err)
		}
		v.closed(name, ws, "unauthorized")
	}
	text, _ := json.Marshal(map[string]string{"token": s.Token})
	ws, err := v.socket(s.URL, "", "")
	ok(t, err)
	_ = ws.Write(t.Context(), websocket.MessageText, text)
	v.reads(ws, "RFB 003.008\n")
}

const desktopPath = "/v1/sandboxes/box/desktop"

// starting are programs of a display that runs when Xvfb was started.
func starting() map[string]string {
	return map[string]string{
		"xdpyinfo": `[ ! -e DIR/size ] || echo "  dimensions:    $(cat DIR/size) pixels (1x1 millimeters)"`,
		"Xvfb":     `echo "$5" >>DIR/started; echo "${5%x24}" >DIR/size`,
		"pkill":    `echo "$*" >>DIR/ended; rm -f DIR/size`, "pgrep": "exit 1", "wmctrl": "",
		"flock":     `for f in /usr/bin/flock /bin/flock; do [ ! -x $f ] || exec $f "$@"; done; exit 9`,
		"setxkbmap": "", "startxfce4": "", "x11vnc": "touch DIR/vnc",
		"netstat": `[ ! -e DIR/vnc ] || echo "tcp 0 0 127.0.0.1:5900 0.0.0.0:* LISTEN"`,
	}
}

// Concurrent callers start a desktop once; another size is down, then up. RB-68.
func TestDesktopsStartOnce(t *testing.T) {
	dir := pretend(t, starting())
	v := newViewing(t)
	const callers = 6
	got := make(chan viewing.DesktopState, callers)
	for range callers {
		go func() {
			var one viewing.DesktopState
			v.call("acme", http.MethodPut, desktopPath, `{"vnc":true}`, &one)
			got <- one
		}()
	}
	for range callers {
		if one := <-got; one != (viewing.DesktopState{Width: 1280, Height: 800, Port: 5900}) {
			t.Errorf("a desktop: %+v", one)
		}
	}
	read := func(name string) string {
		t.Helper()
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return string(text)
	}
	if started := read("started"); started != "1280x800x24\n" || read("ended") != "" {
		t.Errorf("%d callers started %q, and ended %q", callers, started, read("ended"))
	}
	var other viewing.DesktopState
	if code := v.call("acme", http.MethodPut, desktopPath, `{"width":640,"height":480}`, &other); code != http.StatusOK || other.Width != 640 || other.Height != 480 {
		t.Errorf("another size: %d, %+v", code, other)
	}
	if started, ended := read("started"), read("ended"); started != "1280x800x24\n640x480x24\n" || ended != "-x x11vnc\n-x Xvfb\n" {
		t.Errorf("started: %q, ended: %q", started, ended)
	}
	for _, name := range []string{"reader", "rival"} {
		if code := v.call(name, http.MethodPut, desktopPath, `{"width":320,"height":200}`, nil); code == http.StatusOK {
			t.Errorf("%s starts a desktop", name)
		}
	}
}

// The error names what did not start, its exit code and its output. RB-69.
func TestFailedStages(t *testing.T) {
	programs := starting()
	programs["sleep"] = "exec /bin/sleep 0.03" // 50 attempts take less time
	dir := pretend(t, programs)
	v := newViewing(t)
	for _, one := range []struct{ program, text, subject, detail string }{
		{"Xvfb", "echo 'no memory' >&2; exit 1", "xvfb", "exit code 11: no memory"},
		{"x11vnc", "echo 'no port' >&2; exit 1", "x11vnc", "exit code 12: no port"},
		{"flock", "exit 1", "lock", "exit code 10"},
	} {
		old, err := os.ReadFile(filepath.Join(dir, one.program))
		ok(t, err)
		ok(t, os.WriteFile(filepath.Join(dir, one.program), []byte("#!/bin/sh\n"+one.text+"\n"), 0o700))
		_ = os.Remove(filepath.Join(dir, "size"))
		var problem struct {
			Code            sandbox.Code
			Subject, Detail string
		}
		code := v.call("acme", http.MethodPut, desktopPath, `{"vnc":true}`, &problem)
		if code != http.StatusServiceUnavailable || problem.Subject != one.subject || !strings.Contains(problem.Detail, one.detail) {
			t.Errorf("without %s: %d, %+v", one.program, code, problem)
		}
		ok(t, os.WriteFile(filepath.Join(dir, one.program), old, 0o700))
	}
}
