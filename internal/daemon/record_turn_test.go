package daemon_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// turns lists the recordings of a session.
func (v *viewers) turns(session string) []viewing.Recording {
	v.t.Helper()
	var page struct{ Recordings []viewing.Recording }
	if code := v.call("acme", http.MethodGet, "/v1/recordings?session="+session, "", &page); code != http.StatusOK {
		v.t.Fatal(code)
	}
	return page.Recordings
}

// acts uses the desktop of a sandbox.
func (v *viewers) acts(key string, id sandbox.ID) {
	v.t.Helper()
	if code := v.call(key, http.MethodPost, "/v1/sandboxes/"+string(id)+"/computer", `{"actions":[{"action":"click","x":1,"y":1}]}`, nil); code != http.StatusOK {
		v.t.Fatalf("%s acts: %d", key, code)
	}
}

// A session that says so has a recording of each turn that used the desktop. RB-73.
func TestTurnsAreRecorded(t *testing.T) {
	want := filmed(t)
	v := newViewing(t)
	const session = "/v1/sessions/agent"
	turn := func(id string) sandbox.ID {
		t.Helper()
		var got durable.Acquired
		if code := v.call("acme", http.MethodPost, session+"/acquire", `{"kind":"turn","holder":"`+id+`"}`, &got); code != http.StatusOK {
			t.Fatalf("acquiring: %d", code)
		}
		return got.Sandbox
	}
	release := func(id string) {
		t.Helper()
		if code := v.call("acme", http.MethodPost, session+"/release", `{"kind":"turn","holder":"`+id+`"}`, nil); code != http.StatusNoContent {
			t.Fatalf("releasing: %d", code)
		}
	}
	if code := v.call("acme", http.MethodPost, "/v1/sessions", `{"name":"agent","record":"always"}`, nil); code != http.StatusBadRequest {
		t.Errorf("an unknown mode: %d", code)
	}
	var made durable.Opened
	if code := v.call("acme", http.MethodPost, "/v1/sessions", `{"name":"agent","record":"on-turn","holder":{"kind":"viewer","holder":"keeps it"}}`, &made); code != http.StatusCreated {
		t.Fatalf("the session: %d", code)
	}
	defer func() { v.call("acme", http.MethodDelete, session, "", nil) }()

	// A turn without the desktop leaves nothing, nor does use without a turn.
	turn("idle")
	release("idle")
	id := made.Receipt.Sandbox
	v.acts("acme", id)
	if all := v.turns("agent"); len(all) != 0 {
		t.Fatalf("without use: %+v", all)
	}

	// Who only looks starts none.
	if got := turn("one"); got != id {
		t.Fatalf("the turn got %s, not %s", got, id)
	}
	v.call("reader", http.MethodPost, "/v1/sandboxes/"+string(id)+"/computer", `{"actions":[{"action":"screenshot"}]}`, nil)
	v.call("rival", http.MethodPost, "/v1/sandboxes/"+string(id)+"/computer", `{"actions":[{"action":"click","x":1,"y":1}]}`, nil)
	if all := v.turns("agent"); len(all) != 0 {
		t.Fatalf("looking records: %+v", all)
	}

	// It begins before the first action, once, and ends with the turn.
	v.acts("guest", id)
	v.acts("acme", id)
	all := v.turns("agent")
	if len(all) != 1 || all[0].State != viewing.RecordingRunning || all[0].Kind != viewing.RecordDesktop || all[0].Title != "turn one" || all[0].Sandbox != id {
		t.Fatalf("used: %+v", all)
	}
	release("one")
	if r := v.until(all[0].ID, viewing.RecordingAvailable); r.Reason != viewing.ReasonTurnOver || r.Size != int64(len(want)) {
		t.Errorf("after the turn: %+v", r)
	}
	v.acts("acme", id)
	if again := v.turns("agent"); len(again) != 1 {
		t.Errorf("after the turn is recorded, too: %+v", again)
	}

	// An image without ffmpeg does not stop the agent.
	dir, _, _ := strings.Cut(os.Getenv("PATH"), ":")
	ok(t, os.WriteFile(filepath.Join(dir, "ffmpeg"), []byte("#!/bin/sh\nexit 127\n"), 0o700))
	turn("two")
	v.acts("acme", id)
	release("two")
	if all := v.turns("agent"); len(all) != 1 {
		t.Errorf("without ffmpeg: %+v", all)
	}

	// The mode can be changed.
	if code := v.call("acme", http.MethodPatch, session, `{"record":"manual"}`, nil); code != http.StatusOK {
		t.Errorf("changing: %d", code)
	}
	var doc durable.Session
	if v.call("acme", http.MethodGet, session, "", &doc); doc.Record != viewing.RecordManual {
		t.Errorf("changed: %+v", doc)
	}
}
