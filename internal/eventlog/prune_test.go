package eventlog_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

var cutKey = []byte("kept outside the database")

func TestPrune(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		anchor := &eventlog.FileAnchor{Dir: t.TempDir()}
		opts := eventlog.Options{CutKey: cutKey, Anchor: anchor, AnchorEvery: time.Millisecond}
		l := eventlog.New(s, opts)
		tenants(t, s, "acme", "rival")
		for i := range 5 {
			_, err := l.Append(t.Context(), event("acme", fmt.Sprint(i+1)))
			ok(t, err)
			_, err = l.Append(t.Context(), event("rival", fmt.Sprint(i+1)))
			ok(t, err)
		}
		ok(t, l.Close()) // keep the newest head
		l = eventlog.New(s, opts)
		done, err := l.Prune(t.Context(), "acme", eventlog.Prune{UpTo: 3}, event("", "x"))
		ok(t, err)
		if done != (eventlog.Pruned{Through: 3, Removed: 3}) {
			t.Errorf("%+v", done)
		}
		r, err := l.Verify(t.Context(), "acme")
		ok(t, err)
		if r.Fault != nil || r.Pruned != 3 || r.PrunedAt.IsZero() || r.Records != 3 || r.Head.Seq != 6 {
			t.Errorf("%+v %+v", r, r.Fault)
		}
		sound(t, l, "rival", 5)
		left, err := l.Read(t.Context(), "acme", eventlog.Filter{}, 0, 0)
		ok(t, err)
		if len(left) != 3 || left[0].Seq != 4 || left[2].Type != eventlog.AuditPruned || left[2].Subject != "1-3" {
			t.Errorf("%+v", left)
		}
		var out bytes.Buffer
		ok(t, l.Export(t.Context(), "acme", eventlog.Filter{}, &out))
		if strings.Count(out.String(), "\n") != 3 {
			t.Error(out.String())
		}
		// No more records are older than that. Then all are, and the newest one
		// stays.
		done, err = l.Prune(t.Context(), "acme", eventlog.Prune{Before: left[0].Time}, event("", "x"))
		ok(t, err)
		if done != (eventlog.Pruned{}) {
			t.Errorf("%+v", done)
		}
		ok(t, l.Close())
		l = eventlog.New(s, opts)
		done, err = l.Prune(t.Context(), "acme", eventlog.Prune{Before: time.Now().Add(time.Hour)}, event("", "x"))
		ok(t, err)
		if done.Through != 5 || done.Removed != 2 {
			t.Errorf("%+v", done)
		}
		_, err = l.Append(t.Context(), event("acme", "later"))
		ok(t, err)
		ok(t, l.Close()) // keep the newest head
		l = eventlog.New(s, opts)
		sound(t, l, "acme", 3)
		ok(t, l.Close())
	})
}

// More than one batch is removed, and recorded in one event.
func TestPruneMany(t *testing.T) {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "atoll.db"), store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	l := eventlog.New(s, eventlog.Options{CutKey: cutKey})
	tenants(t, s, "acme")
	const n = 5100
	for i := range n {
		ok(t, l.AppendLater(event("acme", fmt.Sprint(i))))
	}
	done, err := l.Prune(t.Context(), "acme", eventlog.Prune{UpTo: n}, event("", "x"))
	ok(t, err)
	if done != (eventlog.Pruned{Through: n - 1, Removed: n - 1}) {
		t.Errorf("%+v", done)
	}
	sound(t, l, "acme", 2)
	ok(t, l.Close())
}

// Records without an outcome, unsent records and damaged logs are not pruned.
func TestPruneSpares(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	s, err := store.Open(t.Context(), path, store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	tenants(t, s, "acme")
	l := eventlog.New(s, eventlog.Options{CutKey: cutKey, Sends: "n1"})
	defer func() { ok(t, l.Close()) }()
	for i := range 3 {
		_, err := l.Append(t.Context(), event("acme", fmt.Sprint(i)))
		ok(t, err)
	}
	_, err = l.Announce(t.Context(), "n1", event("acme", "open"))
	ok(t, err)
	for i := range 3 {
		_, err := l.Append(t.Context(), event("acme", fmt.Sprint(i)))
		ok(t, err)
	}
	prune := func(want eventlog.Pruned) {
		t.Helper()
		done, err := l.Prune(t.Context(), "acme", eventlog.Prune{UpTo: 100}, event("", "x"))
		ok(t, err)
		if done != want {
			t.Errorf("%+v, want %+v", done, want)
		}
	}
	prune(eventlog.Pruned{})
	ok(t, l.Sent(t.Context(), "n1", "acme", 2))
	prune(eventlog.Pruned{Through: 2, Removed: 2})
	ok(t, l.Sent(t.Context(), "n1", "acme", 7))
	prune(eventlog.Pruned{Through: 3, Removed: 1})
	if _, err := raw(t, path).Exec(disarm + "UPDATE events SET body = replace(body, '\"/', '\"/x'), op = 'x' WHERE seq = 5"); err != nil {
		t.Fatal(err)
	}
	_, err = l.Prune(t.Context(), "acme", eventlog.Prune{UpTo: 100}, event("", "x"))
	if sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("what is not sound was pruned: %v", err)
	}
	_, err = eventlog.New(s, eventlog.Options{}).Prune(t.Context(), "acme", eventlog.Prune{UpTo: 100}, event("", "x"))
	if sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("pruned without a seal: %v", err)
	}
}

// An attacker who can write to the database removes the oldest records and
// tries to hide it.
func TestPrunedByIntruder(t *testing.T) {
	const cut = "INSERT OR REPLACE INTO event_cuts (tenant, seq, hash, time, seal) "
	for _, tt := range []struct {
		name, sql string
		pruned    bool // the log was properly pruned up to 2 before
		kind      eventlog.FaultKind
	}{
		{name: "just removes them", sql: "DELETE FROM events WHERE tenant = 'acme' AND seq <= 3", kind: eventlog.Missing},
		{name: "invents a cut", sql: cut + "SELECT tenant, seq, hash, time, zeroblob(32) FROM events WHERE tenant = 'acme' AND seq = 3; DELETE FROM events WHERE tenant = 'acme' AND seq <= 3", kind: eventlog.Cut},
		{name: "moves the cut", pruned: true, sql: "UPDATE event_cuts SET seq = 3, hash = (SELECT hash FROM events WHERE tenant = 'acme' AND seq = 3) WHERE tenant = 'acme'; DELETE FROM events WHERE tenant = 'acme' AND seq <= 3", kind: eventlog.Cut},
		{name: "removes more than was cut", pruned: true, sql: "DELETE FROM events WHERE tenant = 'acme' AND seq <= 3", kind: eventlog.Missing},
		{name: "removes the cut", pruned: true, sql: "DELETE FROM event_cuts WHERE tenant = 'acme'", kind: eventlog.Missing},
		{name: "takes another tenant's cut", pruned: true, sql: cut + "SELECT 'acme', seq, hash, time, seal FROM event_cuts WHERE tenant = 'rival'", kind: eventlog.Cut},
		{name: "changes when", pruned: true, sql: "UPDATE event_cuts SET time = time + 1", kind: eventlog.Cut},
		{name: "removes everything", sql: cut + "SELECT tenant, seq, hash, time, zeroblob(32) FROM events WHERE tenant = 'acme' AND seq = 5; DELETE FROM events WHERE tenant = 'acme'", kind: eventlog.Cut},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "atoll.db")
			anchor := &eventlog.FileAnchor{Dir: t.TempDir()}
			_, done := five(t, path, anchor)
			done()
			if tt.pruned {
				s, err := store.Open(t.Context(), path, store.Options{})
				ok(t, err)
				l := eventlog.New(s, eventlog.Options{Anchor: anchor, CutKey: cutKey})
				for _, tenant := range []string{"acme", "rival"} {
					_, err := l.Prune(t.Context(), tenant, eventlog.Prune{UpTo: 2}, event("", "x"))
					ok(t, err)
				}
				sound(t, l, "acme", 4)
				ok(t, l.Close())
				ok(t, s.Close())
			}
			db := raw(t, path)
			_, err := db.Exec(disarm + "PRAGMA foreign_keys = 0;" + tt.sql)
			ok(t, err)
			ok(t, db.Close())
			s, err := store.Open(t.Context(), path, store.Options{})
			ok(t, err)
			for _, key := range [][]byte{cutKey, nil} {
				l := eventlog.New(s, eventlog.Options{Anchor: anchor, CutKey: key})
				r, err := l.Verify(t.Context(), "acme")
				ok(t, err)
				if r.Fault == nil || key != nil && r.Fault.Kind != tt.kind {
					t.Errorf("with key %v: %+v", key != nil, r.Fault)
				}
				ok(t, l.Close())
			}
			ok(t, s.Close())
		})
	}
}
