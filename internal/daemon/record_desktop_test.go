package daemon_test

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox/viewing"
)

// filmed writes programs that pretend to be a desktop and ffmpeg to a directory,
// which sandboxes of provider host have as PATH.
func filmed(t *testing.T) (video []byte) {
	t.Helper()
	dir := t.TempDir()
	sandbox := func(name string, content ...[]byte) []byte {
		all := bytes.Join(content, nil)
		b := binary.BigEndian.AppendUint32(nil, uint32(8+len(all)))
		return append(append(b, name...), all...)
	}
	head := append(sandbox("ftyp", []byte("iso5")), sandbox("moov", []byte("how"))...)
	one := append(sandbox("moof", sandbox("mfhd", make([]byte, 8)), sandbox("traf", sandbox("tfdt", append([]byte{1}, make([]byte, 11)...)))), sandbox("mdat", []byte("pictures"))...)
	binary.BigEndian.PutUint32(one[8+8+4:], 1) // its number
	video = append(bytes.Clone(head), one...)
	ok(t, os.WriteFile(filepath.Join(dir, "video"), append(bytes.Clone(video), "\x00\x00\x00\x10moof"...), 0o600))
	for name, text := range map[string]string{
		"xdpyinfo": "echo '  dimensions:    640x480 pixels (1x1 millimeters)'",
		// It ends when it is asked to, without the fragment that it had begun.
		"ffmpeg": "trap 'exit 255' INT; cat '" + dir + "/video'; while :; do sleep 0.1; done",
		"Xvfb":   "", "xdotool": "", "scrot": "", "flock": "",
	} {
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return video
}

// RB-71.
func TestDesktopsAreRecorded(t *testing.T) {
	want := filmed(t)
	v := newViewing(t)
	const path, body = "/v1/sandboxes/box/recordings", `{"kind":"desktop","title":"a desktop"}`
	for name, code := range map[string]int{"reader": http.StatusForbidden, "rival": http.StatusNotFound} {
		if got := v.call(name, http.MethodPost, path, body, nil); got != code {
			t.Errorf("%s records: %d, want %d", name, got, code)
		}
	}
	for _, verb := range []string{"exec", "write"} { // who may not look may not record
		v.key[verb] = v.oneRight(verb)
		if got := v.call(verb, http.MethodPost, path, body, nil); got != http.StatusForbidden && got != http.StatusNotFound {
			t.Errorf("a key that has only %s records: %d", verb, got)
		}
	}
	for _, wrong := range []string{`"process":"p1"`, `"input":true`, `"size":{"cols":80,"rows":24}`, `"fps":31`, `"fps":-1`} {
		if got := v.call("acme", http.MethodPost, path, `{"kind":"desktop",`+wrong+`}`, nil); got != http.StatusBadRequest && got != http.StatusUnprocessableEntity {
			t.Errorf("a desktop with %s: %d", wrong, got)
		}
	}
	if got := v.call("acme", http.MethodPost, path, `{"fps":5}`, nil); got != http.StatusBadRequest {
		t.Errorf("a terminal with fps: %d", got)
	}

	r := v.record("acme", body)
	if r.Kind != viewing.RecordDesktop || r.Format != viewing.FormatVideo || r.FPS != 15 || r.Max != 600 || r.Process != "" {
		t.Errorf("started: %+v", r)
	}
	got := v.stop(r.ID)
	if got.State != viewing.RecordingAvailable || got.Reason != viewing.ReasonAdmin || got.Size != int64(len(want)) {
		t.Errorf("stopped: %+v, want %d bytes", got, len(want))
	}
	if code, file := v.fetch("reader", r.ID); code != http.StatusOK || !bytes.Equal(file, want) {
		t.Errorf("fetched: %d, %q, want %q", code, file, want)
	}
	for _, name := range []string{"rival", "exec", "write"} {
		if code, file := v.fetch(name, r.ID); code == http.StatusOK || bytes.Contains(file, []byte("pictures")) {
			t.Errorf("%s fetches it: %d", name, code)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+v.at+"/v1/recordings/"+r.ID+"/content", nil)
	req.Header.Set("Authorization", "Bearer "+v.key["acme"])
	resp, err := http.DefaultClient.Do(req)
	ok(t, err)
	_ = resp.Body.Close()
	// A browser never shows what a sandbox wrote as a page of the daemon.
	if h := resp.Header; h.Get("Content-Type") != viewing.VideoType || h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Disposition"), "attachment") {
		t.Errorf("headers: %v", h)
	}
	if _, err := os.Stat(filepath.Join(v.dir, "blobs", "recordings", "acme", string(r.Sandbox), r.ID+".mp4")); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(v.dir, "recordings", "*")); len(left) != 0 {
		t.Errorf("left are %q", left)
	}

	// It ends with its sandbox, and keeps what it has.
	last := v.record("acme", body)
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/box", "", nil); code != http.StatusNoContent {
		t.Fatal(code)
	}
	if r := v.until(last.ID, viewing.RecordingAvailable); r.Reason != viewing.ReasonReaped || r.Size != int64(len(want)) {
		t.Errorf("after the sandbox: %+v", r)
	}
}

// oneRight returns the token of a key of acme with one permission.
func (v *viewers) oneRight(verb string) string {
	v.t.Helper()
	var made struct{ Token string }
	if code := v.call("boss", http.MethodPost, "/v1/keys", `{"verbs":["`+verb+`"]}`, &made); code != http.StatusCreated || made.Token == "" {
		v.t.Fatalf("making a key: %d", code)
	}
	return made.Token
}

// Where nothing can be recorded, the answer says why, and there is no recording.
// RB-73.
func TestDesktopsThatCannotBeRecorded(t *testing.T) {
	filmed(t)
	dir, _, _ := strings.Cut(os.Getenv("PATH"), ":")
	v := newViewing(t)
	for text, want := range map[string]struct {
		code int
		says string
	}{
		"exit 127": {http.StatusNotImplemented, "has no ffmpeg"},
		"echo 'Cannot open display :0, error 1.' >&2; exit 1": {http.StatusServiceUnavailable, "display"},
		"echo 'No space left on device' >&2; exit 1":          {http.StatusServiceUnavailable, "No space left"},
		"echo '<html>this is a page, and a long one</html>'":  {http.StatusServiceUnavailable, "no video"},
	} {
		ok(t, os.WriteFile(filepath.Join(dir, "ffmpeg"), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
		var problem struct{ Detail, Hint string }
		code := v.call("acme", http.MethodPost, "/v1/sandboxes/box/recordings", `{"kind":"desktop"}`, &problem)
		if code != want.code || !strings.Contains(problem.Detail, want.says) {
			t.Errorf("%s: %d %+v, want %d %s", text, code, problem, want.code, want.says)
		}
	}
	ok(t, os.Remove(filepath.Join(dir, "xdpyinfo")))
	if code := v.call("acme", http.MethodPost, "/v1/sandboxes/box/recordings", `{"kind":"desktop"}`, nil); code == http.StatusCreated {
		t.Error("an image without a desktop is recorded")
	}
	var page struct{ Recordings []viewing.Recording }
	if v.call("acme", http.MethodGet, "/v1/recordings", "", &page); len(page.Recordings) != 0 {
		t.Errorf("recordings: %+v", page)
	}
}
