package eventlog_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func subjects(t *testing.T, l *eventlog.Log, tenant string) (all []string) {
	t.Helper()
	events, err := l.Read(t.Context(), tenant, eventlog.Filter{}, 0, 0)
	ok(t, err)
	for _, e := range events {
		all = append(all, e.Subject)
	}
	return all
}

// Readers and followers see events of AppendLater in their place.
func TestAppendLater(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		l := eventlog.New(s, eventlog.Options{})
		tenants(t, s, "acme", "other")
		ok(t, l.AppendLater(event("acme", "/1")))
		ok(t, l.AppendLater(event("other", "/x")))
		if got := subjects(t, l, "acme"); !slices.Equal(got, []string{"/1"}) {
			t.Errorf("a reader sees %q", got)
		}
		ok(t, l.AppendLater(event("acme", "/2")))
		_, err := l.Append(t.Context(), event("acme", "/3"))
		ok(t, err)
		ok(t, l.AppendLater(event("acme", "/4")))
		for e, err := range l.Follow(t.Context(), "acme", eventlog.Filter{}, 3) {
			ok(t, err)
			if e.Subject != "/4" {
				t.Errorf("a follower sees %s", e.Subject)
			}
			break
		}
		for i := 5; i <= 40; i++ {
			ok(t, l.AppendLater(event("acme", fmt.Sprintf("/%d", i))))
		}
		ok(t, l.Close())
		if err := l.AppendLater(event("acme", "/late")); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("after the end: %v", err)
		}
		again := eventlog.New(open(store.Options{}), eventlog.Options{})
		got := subjects(t, again, "acme")
		if len(got) != 40 || got[2] != "/3" || got[39] != "/40" {
			t.Errorf("a successor sees %q", got)
		}
		sound(t, again, "acme", 40)
		ok(t, again.Close())
	})
}

// Events of AppendLater survive a failure of the database.
func TestAppendLaterSurvivesAnOutage(t *testing.T) {
	address := storetest.Postgres(t)
	s, err := store.Open(t.Context(), address, store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	failed := make(chan error, 100)
	l := eventlog.New(s, eventlog.Options{OnError: func(err error) { failed <- err }})
	defer func() { ok(t, l.Close()) }()
	tenants(t, s, "acme")
	_, err = l.Append(t.Context(), event("acme", "/1"))
	ok(t, err)

	restore := storetest.Refuse(t, address)
	ok(t, l.AppendLater(event("acme", "/2")))
	if err := <-failed; sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("the outage is told as %v", err)
	}
	ok(t, l.AppendLater(event("acme", "/3")))
	if _, err := l.Append(t.Context(), event("acme", "/never")); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("an append succeeded, or failed with %v", err)
	}
	restore()
	if got := subjects(t, l, "acme"); !slices.Equal(got, []string{"/1", "/2", "/3"}) {
		t.Errorf("the log tells %q", got)
	}
	sound(t, l, "acme", 3)
}
