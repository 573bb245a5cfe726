package eventlog_test

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite", used by the simulated attacker

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

func sha(s string) []byte {
	h := sha256.Sum256([]byte(s))
	return h[:]
}

// raw opens the database file directly, as an attacker would.
func raw(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	ok(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

const disarm = "DROP TRIGGER events_append_only_update; DROP TRIGGER events_append_only_delete;"

// TestAttackTampering tries every kind of tampering on a log of five records,
// all of which are anchored.
func TestAttackTampering(t *testing.T) {
	rehash := recompute
	for _, tt := range []struct {
		name     string
		sql      string
		then     func(t *testing.T, db *sql.DB, from int) // recomputes hashes
		seq      int64
		kind     eventlog.FaultKind
		noAnchor bool // detected even without an anchor
	}{
		{name: "an edited record", sql: "UPDATE events SET body = replace(body, '/3', '/x') WHERE seq = 3", seq: 3, kind: eventlog.Edited, noAnchor: true},
		{name: "a spoiled record", sql: "UPDATE events SET body = 'x' WHERE seq = 3", seq: 3, kind: eventlog.Edited, noAnchor: true},
		{name: "an edited column", sql: "UPDATE events SET op = 'files.read' WHERE seq = 2", seq: 2, kind: eventlog.Mislabeled, noAnchor: true},
		{name: "an edited time", sql: "UPDATE events SET time = time + 1 WHERE seq = 2", seq: 2, kind: eventlog.Mislabeled, noAnchor: true},
		{name: "an edited hash", sql: "UPDATE events SET hash = zeroblob(32) WHERE seq = 1", seq: 1, kind: eventlog.Edited, noAnchor: true},
		{name: "a short hash", sql: "UPDATE events SET hash = x'00' WHERE seq = 1", seq: 1, kind: eventlog.Edited, noAnchor: true},
		{name: "a record cut out", sql: "DELETE FROM events WHERE seq = 3", seq: 3, kind: eventlog.Missing, noAnchor: true},
		{name: "the first records cut off", sql: "DELETE FROM events WHERE seq < 3", seq: 1, kind: eventlog.Missing, noAnchor: true},
		{name: "a hole closed", sql: "DELETE FROM events WHERE seq = 3; UPDATE events SET seq = seq - 1 WHERE seq > 3", seq: 3, kind: eventlog.Reordered, noAnchor: true},
		{name: "two exchanged", sql: "UPDATE events SET seq = 99 WHERE seq = 2; UPDATE events SET seq = 2 WHERE seq = 3; UPDATE events SET seq = 3 WHERE seq = 99", seq: 2, kind: eventlog.Reordered, noAnchor: true},
		{name: "another tenant's record", sql: "DELETE FROM events WHERE seq = 2 AND tenant = 'acme'; UPDATE events SET tenant = 'acme' WHERE tenant = 'rival' AND seq = 2", seq: 2, kind: eventlog.Reordered, noAnchor: true},
		{name: "the newest cut off", sql: "DELETE FROM events WHERE seq = 5", seq: 5, kind: eventlog.Truncated, noAnchor: true},
		{name: "the newest cut off, and the head moved", sql: "DELETE FROM events WHERE seq > 3; UPDATE event_heads SET seq = 3, hash = (SELECT hash FROM events WHERE seq = 3 AND tenant = 'acme') WHERE tenant = 'acme'", seq: 4, kind: eventlog.Truncated},
		{name: "everything cut off", sql: "DELETE FROM events WHERE tenant = 'acme'; DELETE FROM event_heads WHERE tenant = 'acme'", seq: 1, kind: eventlog.Truncated},
		{name: "an edit, and every hash made new", sql: "UPDATE events SET body = replace(body, '/3', '/x') WHERE seq = 3", then: rehash, seq: 5, kind: eventlog.Rewritten},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "atoll.db")
			anchor := &eventlog.FileAnchor{Dir: t.TempDir()}
			l, done := five(t, path, anchor)
			sound(t, l, "acme", 5)
			done()

			db := raw(t, path)
			if _, err := db.Exec(strings.SplitN(tt.sql, ";", 2)[0]); err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Fatalf("the database let itself be changed: %v", err)
			}
			_, err := db.Exec(disarm + "PRAGMA foreign_keys = 0;" + tt.sql)
			ok(t, err)
			if tt.then != nil {
				tt.then(t, db, 3)
			}
			ok(t, db.Close())

			for _, a := range []eventlog.Anchor{anchor, nil} {
				s, err := store.Open(t.Context(), path, store.Options{})
				ok(t, err)
				l := eventlog.New(s, eventlog.Options{Anchor: a})
				r, err := l.Verify(t.Context(), "acme")
				ok(t, err)
				if found := r.Fault != nil && r.Fault.Seq == tt.seq && r.Fault.Kind == tt.kind; found != (a != nil || tt.noAnchor) {
					t.Errorf("with anchor %v: %+v", a != nil, r.Fault)
				}
				if a == nil && !tt.noAnchor && r.Fault != nil {
					t.Errorf("found without an anchor, against the documentation: %+v", r.Fault)
				}
				ok(t, l.Close())
				ok(t, s.Close())
			}
		})
	}
}

// five makes a log of five records per tenant. done closes everything.
func five(t *testing.T, path string, anchor eventlog.Anchor) (l *eventlog.Log, done func()) {
	t.Helper()
	s, err := store.Open(t.Context(), path, store.Options{})
	ok(t, err)
	l = eventlog.New(s, eventlog.Options{Anchor: anchor, AnchorEvery: time.Millisecond})
	tenants(t, s, "acme", "rival")
	for i := range 5 {
		for _, tenant := range []string{"acme", "rival"} {
			_, err := l.Append(t.Context(), event(tenant, fmt.Sprintf("/%d", i+1)))
			ok(t, err)
		}
	}
	return l, func() {
		ok(t, l.Close())
		ok(t, s.Close())
	}
}

// recompute recomputes the hashes from a record on, as an attacker would.
func recompute(t *testing.T, db *sql.DB, from int) {
	t.Helper()
	var prev []byte
	ok(t, db.QueryRow("SELECT hash FROM events WHERE tenant = 'acme' AND seq = $1", from-1).Scan(&prev))
	for seq := from; seq <= 5; seq++ {
		var body string
		ok(t, db.QueryRow("SELECT body FROM events WHERE tenant = 'acme' AND seq = $1", seq).Scan(&body))
		prev = sha("atoll event v1\n" + string(prev) + body)
		_, err := db.Exec("UPDATE events SET hash = $1 WHERE tenant = 'acme' AND seq = $2", prev, seq)
		ok(t, err)
	}
	_, err := db.Exec("UPDATE event_heads SET hash = $1 WHERE tenant = 'acme'", prev)
	ok(t, err)
}

// TestAttackAnchorDoesNotCoverUp: a log that was truncated and has grown past
// its anchored head must not move the anchor.
func TestAttackAnchorDoesNotCoverUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	anchor := &eventlog.FileAnchor{Dir: t.TempDir(), Key: []byte("kept elsewhere")}
	_, done := five(t, path, anchor)
	done()
	db := raw(t, path)
	_, err := db.Exec(disarm + "DELETE FROM events WHERE seq > 3; UPDATE event_heads SET seq = 3, hash = (SELECT hash FROM events e WHERE seq = 3 AND e.tenant = event_heads.tenant)")
	ok(t, err)
	ok(t, db.Close())

	s, err := store.Open(t.Context(), path, store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	var told error
	l := eventlog.New(s, eventlog.Options{Anchor: anchor, AnchorEvery: time.Millisecond, OnError: func(err error) { told = err }})
	for i := range 10 {
		_, err := l.Append(t.Context(), event("acme", fmt.Sprint("new", i)))
		ok(t, err)
	}
	if err := l.Close(); err == nil || told == nil {
		t.Errorf("OnError was not called: %v, %v", err, told)
	}
	again := eventlog.New(s, eventlog.Options{Anchor: anchor})
	r, err := again.Verify(t.Context(), "acme")
	ok(t, err)
	if r.Fault == nil || r.Fault.Kind != eventlog.Rewritten || r.Fault.Seq != 5 {
		t.Errorf("the cut is covered up: %+v", r.Fault)
	}
	ok(t, again.Close())
}

func TestAttackForgedAnchor(t *testing.T) {
	dir := t.TempDir()
	a := &eventlog.FileAnchor{Dir: dir, Key: []byte("secret")}
	head := eventlog.Head{Seq: 7, Hash: eventlog.Genesis("acme")}
	ok(t, a.Keep("acme", head))
	got, err := a.Kept("acme")
	ok(t, err)
	if got != head {
		t.Errorf("kept %v, want %v", got, head)
	}
	if none, err := a.Kept("rival"); err != nil || none != (eventlog.Head{}) {
		t.Errorf("nothing was kept, and yet: %v, %v", none, err)
	}
	path := filepath.Join(dir, "acme.head")
	good, err := os.ReadFile(path)
	ok(t, err)
	for _, forged := range []string{
		strings.Replace(string(good), `"seq":7`, `"seq":6`, 1), "", "{}", "null", strings.Replace(string(good), "acme", "rival", 1),
		strings.Replace(string(good), `"mac":"`, `"mac":"0`, 1),
	} {
		ok(t, os.WriteFile(path, []byte(forged), 0o600))
		if h, err := a.Kept("acme"); err == nil {
			t.Errorf("%s is believed: %v", forged, h)
		}
	}
	for _, tenant := range []string{"../acme", "", "a/b"} {
		if err := a.Keep(tenant, head); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", tenant, err)
		}
	}
	entries, err := os.ReadDir(dir)
	ok(t, err)
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if err := (&eventlog.FileAnchor{Dir: path}).Keep("acme", head); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is no directory: %v", err)
	}
}
