package agent

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/guest/spawn"
)

// TestEarlyEnds keeps the end of a process until every start that was in
// progress has finished, although there is always a start in progress.
func TestEarlyEnds(t *testing.T) {
	r := newReaper()
	r.begun = 3
	r.starting = map[int]bool{2: true, 3: true}
	r.early = map[int]earlyEnding{11: {begun: 1}, 12: {begun: 2}, 13: {begun: 3}}
	for _, c := range []struct {
		over int
		kept []int
	}{{over: 1, kept: []int{12, 13}}, {over: 2, kept: []int{13}}, {over: 3}} {
		delete(r.starting, c.over)
		r.begun++
		r.starting[r.begun] = true
		r.forget()
		if kept := slices.Sorted(maps.Keys(r.early)); !slices.Equal(kept, c.kept) {
			t.Errorf("after start %d the ends of %v are kept, not of %v", c.over, kept, c.kept)
		}
	}
}

// TestCredential switches to an account unless the guest already runs as it.
func TestCredential(t *testing.T) {
	root := self{root: true, account: account{groups: []uint32{0}}}
	user := self{account: account{uid: 1000, gid: 1000}}
	for name, c := range map[string]struct {
		self     self
		account  account
		switches bool
		refused  bool
	}{
		"root":                   {self: root, account: account{groups: []uint32{0}, name: "root", home: "/root"}},
		"root with other groups": {self: root, account: account{groups: []uint32{0, 27}}, switches: true},
		"root with no groups":    {self: root, switches: true},
		"root of another group":  {self: root, account: account{gid: 5, groups: []uint32{0}}, switches: true},
		"a user":                 {self: root, account: account{uid: 1000, groups: []uint32{0}}, switches: true},
		"of unknown identity":    {self: self{root: true, account: account{gid: noID}}, account: account{}, switches: true},
		"himself":                {self: user, account: account{uid: 1000, gid: 7, groups: []uint32{7}}},
		"somebody else":          {self: user, account: account{uid: 1001}, refused: true},
	} {
		cred, err := c.self.credential(c.account)
		if (cred != nil) != c.switches || (err != nil) != c.refused {
			t.Errorf("%s: %+v, %v", name, cred, err)
		}
		if cred != nil && (cred.Uid != c.account.uid || cred.Gid != c.account.gid || !slices.Equal(cred.Groups, c.account.groups)) {
			t.Errorf("%s: %+v", name, cred)
		}
	}
}

// A process that starts after "no child is left" was read, and is collected
// before that is noted, does not make it seem that there is a child for ever.
func TestChildlessAfterCollect(t *testing.T) {
	r := newReaper()
	births := r.births
	r.births++    // started
	r.none = true // collected: no child is left
	r.calls++
	r.rest(births, 0)
	if !r.childless() {
		t.Error("a child seems to be left")
	}
}

// The same holds if a start fails while another process is collected.
func TestChildlessAfterFailedStart(t *testing.T) {
	r := newReaper()
	go r.run()
	rests := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); !r.childless(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("a child seems to be left")
			}
		}
	}
	rests()
	r.mu.Lock()
	r.none = false // collected during the start
	r.mu.Unlock()
	if _, err := r.start("/does/not/exist", []string{"x"}, &spawn.Attr{}, func(ending) {}); err == nil {
		t.Fatal("it started")
	}
	rests()
}
