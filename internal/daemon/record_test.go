package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// cast is an asciicast file of version 2.
type cast struct {
	Version, Width, Height, Timestamp int
	Title                             string
	text                              map[string]string // by code
}

// parseCast reads a file strictly.
func parseCast(t *testing.T, file []byte) (c cast) {
	t.Helper()
	lines := bytes.Split(bytes.TrimSuffix(file, []byte("\n")), []byte("\n"))
	if err := json.Unmarshal(lines[0], &c); err != nil || c.Version != 2 || c.Width == 0 || c.Height == 0 || !bytes.HasSuffix(file, []byte("\n")) {
		t.Fatalf("the header %s: %v", lines[0], err)
	}
	c.text = map[string]string{}
	last := 0.0
	for _, line := range lines[1:] {
		var at float64
		var code, text string
		if err := json.Unmarshal(line, &[]any{&at, &code, &text}); err != nil || at < last {
			t.Fatalf("after %v: %s: %v", last, line, err)
		}
		last = at
		c.text[code] += text
	}
	return c
}

func (v *viewers) fetch(key, id string) (code int, file []byte) {
	v.t.Helper()
	r, _ := http.NewRequestWithContext(v.t.Context(), http.MethodGet, "http://"+v.at+"/v1/recordings/"+id+"/content", nil)
	r.Header.Set("Authorization", "Bearer "+v.key[key])
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	file, err = io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return resp.StatusCode, file
}

func (v *viewers) record(key, body string) (r viewing.Recording) {
	v.t.Helper()
	if code := v.call(key, http.MethodPost, "/v1/sandboxes/box/recordings", body, &r); code != http.StatusCreated || r.State != viewing.RecordingRunning {
		v.t.Fatalf("recording: %d, %+v", code, r)
	}
	return r
}

func (v *viewers) stop(id string) (r viewing.Recording) {
	v.t.Helper()
	if code := v.call("acme", http.MethodPost, "/v1/recordings/"+id+"/stop", "", &r); code != http.StatusOK {
		v.t.Fatalf("stopping: %d", code)
	}
	return r
}

// until waits until a recording has a state.
func (v *viewers) until(id string, state viewing.RecordingState) (r viewing.Recording) {
	v.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if v.call("acme", http.MethodGet, "/v1/recordings/"+id, "", &r); r.State == state {
			return r
		}
	}
	v.t.Fatalf("the recording is %+v, want %s", r, state)
	return r
}

// casts returns the files of recordings in the blob store.
func casts(t *testing.T, dir string) (files []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "blobs", "recordings", "*", "*", "*.cast"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// RB-72.
func TestTerminalsAreRecorded(t *testing.T) {
	v := newViewing(t)
	for name, want := range map[string]int{"reader": http.StatusForbidden, "rival": http.StatusNotFound} {
		if code := v.call(name, http.MethodPost, "/v1/sandboxes/box/recordings", `{}`, nil); code != want {
			t.Errorf("%s records: %d", name, code)
		}
	}
	r := v.record("acme", `{"title":"a \u001b[2J title","size":{"cols":90,"rows":20}}`)
	typing := v.record("acme", `{"input":true}`)
	if r.Process == "" || r.Process != typing.Process {
		t.Fatalf("recorded are %q and %q, want the shared login shell", r.Process, typing.Process)
	}
	driving := v.sit(v.terminal("acme", "control"), viewing.TerminalMessage{Size: &sandbox.WindowSize{Cols: 101, Rows: 33}})
	driving.until("the size", func() bool { return driving.last.Size != nil && driving.last.Size.Cols == 101 })
	driving.types("echo a$((40+2))b; printf '\\342\\202'; sleep 0.1; printf '\\254!\\n'\n")
	driving.sees("a42b")
	driving.sees("€!")
	_ = driving.ws.CloseNow()

	// What there is until now, of one that runs.
	code, file := v.fetch("reader", r.ID)
	if code != http.StatusOK || !strings.Contains(parseCast(t, file).text["o"], "a42b") {
		t.Errorf("fetching one that runs: %d, %q", code, file)
	}
	if files := casts(t, v.dir); len(files) != 0 {
		t.Errorf("stored before the end: %q", files)
	}
	got := v.stop(r.ID)
	if got.State != viewing.RecordingAvailable || got.Reason != viewing.ReasonAdmin || got.Size == 0 || got.Ended.Before(got.Started) {
		t.Errorf("stopped: %+v", got)
	}
	if again := v.stop(r.ID); again != got {
		t.Errorf("stopped again: %+v, want %+v", again, got)
	}
	_, file = v.fetch("reader", r.ID)
	c := parseCast(t, file)
	if int64(len(file)) != got.Size || c.Width != 90 || c.Height != 20 || c.Title != "a [2J title" || c.text["r"] != "101x33" || c.text["i"] != "" ||
		!strings.Contains(c.text["o"], "a42b") || !strings.Contains(c.text["o"], "€!") {
		t.Errorf("the file is %q", file)
	}
	want := filepath.Join(v.dir, "blobs", "recordings", "acme", string(r.Sandbox), r.ID+".cast")
	if files := casts(t, v.dir); !slices.Equal(files, []string{want}) {
		t.Errorf("stored are %q, want %q", files, want)
	}

	v.stop(typing.ID)
	if code, _ := v.fetch("reader", typing.ID); code != http.StatusForbidden {
		t.Errorf("a key that may only read fetches what was typed: %d", code)
	}
	if _, file = v.fetch("acme", typing.ID); !strings.HasPrefix(parseCast(t, file).text["i"], "echo a$((40+2))b;") {
		t.Errorf("typed: %q", file)
	}
	for _, path := range []string{"", "/content", "/stop"} {
		method := http.MethodGet
		if path == "/stop" {
			method = http.MethodPost
		}
		if code := v.call("rival", method, "/v1/recordings/"+r.ID+path, "", nil); code != http.StatusNotFound {
			t.Errorf("another tenant: %s %s: %d", method, path, code)
		}
	}
	if code := v.call("reader", http.MethodDelete, "/v1/recordings/"+r.ID, "", nil); code != http.StatusForbidden {
		t.Errorf("a key that may only read removes: %d", code)
	}
	if code := v.call("acme", http.MethodDelete, "/v1/recordings/"+r.ID, "", nil); code != http.StatusNoContent {
		t.Errorf("removing: %d", code)
	}
	if files := casts(t, v.dir); len(files) != 1 {
		t.Errorf("after one was removed, there are %q", files)
	}
	for query, want := range map[string]int{"": 1, "?sandbox=box": 1, "?sandbox=" + string(r.Sandbox): 1, "?sandbox=other": 0, "?session=box": 0} {
		var page struct{ Recordings []viewing.Recording }
		v.call("reader", http.MethodGet, "/v1/recordings"+query, "", &page)
		if len(page.Recordings) != want {
			t.Errorf("list%s: %+v", query, page)
		}
	}
	var page struct{ Events []sandbox.Event }
	v.call("boss", http.MethodGet, "/v1/events", "", &page)
	seen := map[string]bool{}
	for _, e := range page.Events {
		if e.Subject == r.ID {
			seen[e.Type+" "+e.Op] = true
		}
		if strings.Contains(e.Op, "recording") && strings.Contains(e.Subject+e.Name, "title") {
			t.Errorf("free text is in the log: %+v", e)
		}
	}
	for _, want := range []string{"recording.started recording.start", "done recording.stop", "recording.available recording.stop", "done recording.fetch", "denied recording.remove", "done recording.remove"} {
		if !seen[want] {
			t.Errorf("%q is not in the log: %v", want, seen)
		}
	}
}

// A recording ends with its command, after the time limit, with its sandbox and
// with its tenant. RB-73.
func TestRecordingsEnd(t *testing.T) {
	v := newViewing(t)
	ended := v.record("acme", `{}`)
	shell := v.sit(v.terminal("acme", "control"), viewing.TerminalMessage{})
	shell.types("echo by''e; exit 3\n")
	if r := v.until(ended.ID, viewing.RecordingAvailable); r.Reason != sandbox.ReasonExited {
		t.Errorf("after the exit: %+v", r)
	}
	if _, file := v.fetch("acme", ended.ID); !strings.Contains(parseCast(t, file).text["o"], "bye") {
		t.Errorf("the last words are missing: %q", file)
	}
	short, long := v.record("acme", `{"maxSeconds":1}`), v.record("acme", `{}`)
	if r := v.until(short.ID, viewing.RecordingAvailable); r.Reason != viewing.ReasonTimeLimit {
		t.Errorf("after a second: %+v", r)
	}
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/box", "", nil); code != http.StatusNoContent {
		t.Fatal(code)
	}
	if r := v.until(long.ID, viewing.RecordingAvailable); r.Reason != viewing.ReasonReaped || r.Size == 0 {
		t.Errorf("after the sandbox: %+v", r)
	}
	if code, _ := v.fetch("acme", long.ID); code != http.StatusOK {
		t.Errorf("the recording of a sandbox that is gone: %d", code)
	}
}

// Secrets are removed from what is shown and from what is typed.
func TestRecordingsAreRedacted(t *testing.T) {
	v := newViewing(t)
	c := daemontest.Bearer(t, v.d, v.key["boss"])
	const value = "sesame-open-4711"
	_, err := c.CreateSecret(t.Context(), durable.NewSecret{Name: "door", Value: []byte(value), AllowEnv: true})
	ok(t, err)
	sb := create(t, c, sandbox.Spec{Name: "quiet", Redact: true, Secrets: []sandbox.SecretRef{{Name: "door", Env: "DOOR", Mode: sandbox.SecretEnv}}})
	defer func() { _ = sb.Destroy(context.WithoutCancel(t.Context())) }()
	r, err := sb.Record(t.Context(), viewing.NewRecording{Input: true})
	ok(t, err)
	term, err := sb.Terminal(t.Context(), atoll.TerminalOptions{})
	ok(t, err)
	defer term.Close()
	go func() { _, _ = io.WriteString(term.Stdin(), "echo first $DOOR; echo "+value+"; exit\n") }()
	_, err = io.ReadAll(term.Stdout())
	ok(t, err)
	v.until(r.ID, viewing.RecordingAvailable)
	content, err := c.FetchRecording(t.Context(), r.ID)
	ok(t, err)
	defer content.Close()
	file, err := io.ReadAll(content)
	ok(t, err)
	got := parseCast(t, file)
	if bytes.Contains(file, []byte(value[4:])) || !strings.Contains(got.text["o"], "first ***") || !strings.Contains(got.text["i"], "; exit\n") {
		t.Errorf("recorded: %q", file)
	}
}

// What was recorded is stored before a session is saved, and the recording of a
// session ends with its sandbox. cmd/atoll tests the same before a pause. RB-74.
func TestSessionsFlushRecordings(t *testing.T) {
	m := daemontest.New(t)
	m.Host = true
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	t.Cleanup(func() { _ = s.Destroy(context.WithoutCancel(t.Context())) })
	r, err := s.Record(t.Context(), viewing.NewRecording{})
	ok(t, err)
	if r.Session != "agent" || r.State != viewing.RecordingRunning {
		t.Errorf("recording %+v", r)
	}
	stored := func(word string) bool {
		for _, file := range casts(t, m.Dir) {
			if text, err := os.ReadFile(file); err == nil && strings.HasSuffix(file, "/recordings/default/agent/"+r.ID+".cast") && strings.Contains(parseCast(t, text).text["o"], word) {
				return true
			}
		}
		return false
	}
	term, err := s.Terminal(t.Context(), atoll.TerminalOptions{})
	ok(t, err)
	defer term.Close()
	typed := func(word string) {
		t.Helper()
		_, err := io.WriteString(term.Stdin(), "echo "+word[:1]+"''"+word[1:]+"\n")
		ok(t, err)
		buf, all := make([]byte, 4096), ""
		for !strings.Contains(all, word) {
			n, err := term.Stdout().Read(buf)
			ok(t, err)
			all += string(buf[:n])
		}
	}
	typed("saved")
	if stored("saved") {
		t.Error("it is stored before anything asked for it")
	}
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !stored("saved") {
		t.Error("it was not stored when the session was saved")
	}
	now, err := c.Recording(t.Context(), r.ID)
	ok(t, err)
	if now.State != viewing.RecordingRunning || now.Size == 0 {
		t.Errorf("after the save: %+v", now)
	}
	ok(t, s.Destroy(t.Context()))
	for deadline := time.Now().Add(time.Minute); now.State != viewing.RecordingAvailable; time.Sleep(20 * time.Millisecond) {
		if now, err = c.Recording(t.Context(), r.ID); err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", now, err)
		}
	}
	if now.Reason != viewing.ReasonReaped && now.Reason != viewing.ReasonRollover {
		t.Errorf("after the end: %+v", now)
	}
}

// A daemon that ends stores what runs. One that was killed is followed by one
// that stores what it left, without a line that was not written completely. RB-73.
func TestRecordingsOfADaemonThatEnds(t *testing.T) {
	m := daemontest.New(t)
	m.Host = true
	var processes driver.Provider // which live on
	d := m.Start(t, func(o *daemon.Options) {
		open := o.Providers[0].Open
		o.Providers[0].Open = func(h providerset.Host) (p driver.Provider, err error) {
			processes, err = open(h)
			return processes, err
		}
	})
	sb := create(t, daemontest.Client(t, d), sandbox.Spec{Name: "box"})
	r, err := sb.Record(t.Context(), viewing.NewRecording{})
	ok(t, err)
	ok(t, d.Close())
	left, err := processes.Attach(t.Context(), sb.ID())
	ok(t, err)
	ok(t, left.Destroy(t.Context()))
	db := m.Store(t)
	get := func(id string) store.Recording {
		t.Helper()
		row, err := store.Read(t.Context(), db, func(tx *store.Tx) (store.Recording, error) { return tx.Recordings().Get(t.Context(), "default", id) })
		ok(t, err)
		return row
	}
	row := get(r.ID)
	if row.State != viewing.RecordingAvailable || row.Reason != viewing.ReasonReaped || row.Size == 0 || len(casts(t, m.Dir)) != 1 {
		t.Fatalf("the daemon left %+v", row)
	}

	whole := "{\"version\":2,\"width\":80,\"height\":24}\n[0.1,\"o\",\"a\"]\n"
	leave := func(id, text string) {
		t.Helper()
		row.ID, row.State, row.Reason, row.Ended, row.Size = id, viewing.RecordingRunning, "", time.Time{}, 0
		ok(t, db.Update(t.Context(), func(tx *store.Tx) error { return tx.Recordings().Create(t.Context(), row, 100, 1<<30) }))
		if text != "" {
			ok(t, os.WriteFile(filepath.Join(m.Dir, "recordings", id+".cast"), []byte(text), 0o600))
		}
	}
	leave("rec-killed", whole+"[0.2,\"o\",\"b")
	leave("rec-nothing", "")
	d = m.Start(t, nil)
	c := daemontest.Client(t, d)
	for id, want := range map[string]viewing.RecordingState{"rec-killed": viewing.RecordingAvailable, "rec-nothing": viewing.RecordingFailed} {
		for deadline := time.Now().Add(time.Minute); get(id).State != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s is %+v", id, get(id))
			}
		}
	}
	if row := get("rec-nothing"); row.Reason != viewing.ReasonSandboxDeath {
		t.Errorf("without a file: %+v", row)
	}
	content, err := c.FetchRecording(t.Context(), "rec-killed")
	ok(t, err)
	defer content.Close()
	if file, err := io.ReadAll(content); err != nil || string(file) != whole {
		t.Errorf("stored is %q, %v", file, err)
	}
}

// A recording that cannot be stored is kept on the machine, can be fetched, and
// is stored later. RB-72.
func TestFailedUploadsAreTriedAgain(t *testing.T) {
	v := newViewing(t)
	r := v.record("acme", `{}`)
	blocked := filepath.Join(v.dir, "blobs", "recordings")
	ok(t, os.WriteFile(blocked, nil, 0o600))
	if got := v.stop(r.ID); got.State != viewing.RecordingFailed || got.Reason != viewing.ReasonUploadFailed {
		t.Errorf("stored although it cannot be: %+v", got)
	}
	if code, file := v.fetch("acme", r.ID); code != http.StatusOK || parseCast(t, file).Width != 80 {
		t.Errorf("fetching what is not stored: %d, %q", code, file)
	}
	ok(t, os.Remove(blocked))
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/box", "", nil); code != http.StatusNoContent {
		t.Fatal(code)
	}
	ok(t, v.d.Close())
	m := &daemontest.Machine{Dir: v.dir, Host: true}
	d := m.Start(t, nil)
	c := daemontest.Bearer(t, d, v.key["acme"])
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		now, err := c.Recording(t.Context(), r.ID)
		ok(t, err)
		if now.State == viewing.RecordingAvailable {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", now)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(v.dir, "recordings", "*")); len(left) != 0 || len(casts(t, v.dir)) != 1 {
		t.Errorf("left are %q", left)
	}
}
