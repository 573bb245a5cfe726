package gvisor

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
)

// empty is a sandbox without files.
type empty struct{}

func (empty) SaveMemory(_, _, _ *os.File) error { return nil }
func (empty) SaveGuest(string) error            { return nil }
func (empty) SaveFiles(io.Writer) error         { return nil }

// TestPoolWants checks that a pool follows the requests, forgets them, and
// never exceeds its limit.
func TestPoolWants(t *testing.T) {
	l := newPool()
	a, b := shape{digest: "a", stage: atGuest}, shape{digest: "b"}
	start := time.Now()
	step := func(after time.Duration, most int, want string, ended int) {
		t.Helper()
		s, ref, from, surplus := l.next(start.Add(after), most)
		if ref != want || len(surplus) != ended || from != nil {
			t.Errorf("after %v: make %q, end %d; want %q, %d", after, ref, len(surplus), want, ended)
		}
		if ref != "" {
			l.shapes[s].ready = append(l.shapes[s].ready, &maker{})
		}
	}
	step(0, 9, "", 0)
	for range 3 {
		l.ask(a, "A", nil)
	}
	end := l.begin()
	step(0, 9, "", 0) // a caller is being served
	end()
	<-l.idle
	step(0, 9, "A", 0)
	step(0, 9, "A", 0)
	step(0, 2, "", 0) // the limit is reached
	l.ask(b, "B", nil)
	step(0, 2, "B", 1) // one of each is preferred
	step(0, 2, "", 0)
	step(0, 9, "A", 0)
	step(0, 9, "A", 0)
	step(0, 9, "", 0)
	step(poolBurst+time.Second, 9, "", 2)  // one of each is enough after a while
	step(poolMemory+time.Second, 9, "", 2) // and then none
	if step(poolMemory+time.Second, 9, "", 0); len(l.shapes) != 0 {
		t.Errorf("it still remembers %d shapes", len(l.shapes))
	}
	l.empty(true)
	if l.put(a, "A", &maker{}) {
		t.Error("a closed pool accepts a sandbox")
	}
}

// TestPoolWantsSnapshots checks that a snapshot is prewarmed only from its
// second restore on.
func TestPoolWantsSnapshots(t *testing.T) {
	dir := t.TempDir()
	d := snapshot.New(dir, snapshot.Manifest{})
	if err := errors.Join(d.SaveFiles(empty{}), d.Finish(t.Context())); err != nil {
		t.Fatal(err)
	}
	from, err := snapshots.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	sh := &warmSet{from: from, asked: []time.Time{time.Now()}}
	if n := sh.want(time.Now()); n != 0 {
		t.Errorf("%d of a snapshot that was restored once", n)
	}
	sh.asked = append(sh.asked, time.Now())
	if n := sh.want(time.Now()); n != 2 {
		t.Errorf("%d of a snapshot that was restored twice", n)
	}
}
