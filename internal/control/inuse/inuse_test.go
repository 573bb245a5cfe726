package inuse_test

import (
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/control/inuse"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns a clock that shows some seconds after the start.
func at(seconds int) func() time.Time {
	return func() time.Time { return start.Add(time.Duration(seconds) * time.Second) }
}

// A sandbox is closed only if it is not in use and was not used since a time.
func TestClose(t *testing.T) {
	for _, tt := range []struct {
		name        string
		use         func(*inuse.Sandboxes)
		since, now  int
		ok          bool
		last        int
		neverBefore bool
	}{
		{name: "never used", use: func(*inuse.Sandboxes) {}, since: 5, now: 10, ok: true, neverBefore: true},
		{name: "in use", use: func(u *inuse.Sandboxes) { u.Begin("sb-1", at(1)) }, since: 5, now: 10, last: 10},
		{name: "used before", use: func(u *inuse.Sandboxes) { _, leave := u.Begin("sb-1", at(1)); leave() }, since: 5, now: 10, ok: true, last: 1},
		{name: "used since", use: func(u *inuse.Sandboxes) { _, leave := u.Begin("sb-1", at(7)); leave() }, since: 5, now: 10, last: 7},
		{name: "left twice", use: func(u *inuse.Sandboxes) {
			u.Begin("sb-1", at(1))
			_, leave := u.Begin("sb-1", at(2))
			leave()
			leave()
		}, since: 5, now: 10, last: 10},
		{name: "another one in use", use: func(u *inuse.Sandboxes) { u.Begin("sb-2", at(1)) }, since: 5, now: 10, ok: true, neverBefore: true},
		{name: "the clock was set back", use: func(u *inuse.Sandboxes) { _, leave := u.Begin("sb-1", at(100)); leave() }, since: 5, now: 10, last: 10},
		{name: "closed already", use: func(u *inuse.Sandboxes) { u.Close("sb-1", at(1)(), at(2)()) }, since: 5, now: 10, last: 10},
		{name: "reopened", use: func(u *inuse.Sandboxes) {
			reopen, _, _ := u.Close("sb-1", at(1)(), at(2)())
			reopen()
		}, since: 5, now: 10, ok: true, neverBefore: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var u inuse.Sandboxes
			tt.use(&u)
			_, last, ok := u.Close("sb-1", at(tt.since)(), at(tt.now)())
			want := at(tt.last)()
			if tt.neverBefore {
				want = time.Time{}
			}
			if ok != tt.ok || !last.Equal(want) {
				t.Errorf("closed %v, last used %v; want %v, %v", ok, last, tt.ok, want)
			}
		})
	}
}

// A new use of a sandbox that is being closed waits until it is reopened.
func TestBeginWaits(t *testing.T) {
	var u inuse.Sandboxes
	reopen, _, ok := u.Close("sb-1", at(5)(), at(10)())
	if !ok {
		t.Fatal("it is not in use, and could not be closed")
	}
	closing, leave := u.Begin("sb-1", at(10))
	defer leave()
	select {
	case <-closing:
		t.Fatal("a use does not wait for the end of the pause")
	default:
	}
	reopen()
	<-closing
	if closing, leave := u.Begin("sb-1", at(11)); closing != nil {
		t.Error("a use waits although the sandbox is open")
	} else {
		leave()
	}
}

// A mark tells whether a sandbox was suspended after it.
func TestSuspendedSince(t *testing.T) {
	var u inuse.Sandboxes
	before := u.Mark()
	if u.SuspendedSince("sb-1", before) {
		t.Error("suspended without a suspension")
	}
	u.Suspend("sb-1")
	if !u.SuspendedSince("sb-1", before) || u.SuspendedSince("sb-2", before) || u.SuspendedSince("sb-1", u.Mark()) {
		t.Error("a suspension counts for its sandbox, and for marks before it")
	}
	u.Suspend("sb-2")
	if u.SuspendedSince("sb-1", u.Mark()) {
		t.Error("the suspension of another sandbox counts")
	}
	u.Forget("sb-1")
	if u.SuspendedSince("sb-1", before) {
		t.Error("a sandbox that is gone is remembered")
	}
}
