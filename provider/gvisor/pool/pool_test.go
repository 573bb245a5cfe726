package pool

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
)

// countedSandbox is a sandbox that only counts.
type countedSandbox struct{ alive, undone atomic.Bool }

func (s *countedSandbox) Alive() bool { return s.alive.Load() }
func (s *countedSandbox) Undo()       { s.undone.Store(true) }

func running() *countedSandbox {
	b := new(countedSandbox)
	b.alive.Store(true)
	return b
}

// maker implements Maker with sandboxes that only count.
type maker struct {
	guard atomic.Pointer[guard] // nil: none is needed
	low   atomic.Bool
	made  []*countedSandbox // read while the pool is idle
	stops int
}

// guard is what Guard returns.
type guard struct {
	ended chan struct{}
	fails error
}

func (m *maker) Make(_ context.Context, _ Shape, image string, _ *snapshot.Saved) (*countedSandbox, error) {
	if image == "broken" {
		return nil, errors.New("no such image")
	}
	b := running()
	m.made = append(m.made, b)
	return b, nil
}

func (m *maker) Guard() (<-chan struct{}, func(), error) {
	stop := func() { m.stops++ }
	if g := m.guard.Load(); g != nil {
		return g.ended, stop, g.fails
	}
	return nil, stop, nil
}

func (m *maker) LowMemory() bool { return m.low.Load() }

// empty is a sandbox without files.
type empty struct{}

func (empty) SaveMemory(_, _, _ *os.File) error { return nil }
func (empty) SaveGuest(string) error            { return nil }
func (empty) SaveFiles(io.Writer) error         { return nil }

// TestPoolWants checks that a pool follows the requests, forgets them, and
// never exceeds its limit.
func TestPoolWants(t *testing.T) {
	l := New(&maker{}, 0)
	a, b := Shape{Digest: "a", Stage: AtGuest}, Shape{Digest: "b"}
	ask := func(s Shape, image string) { // as Want does, without the pool's goroutine
		sh := l.of(s, image)
		sh.asked = append(sh.asked, time.Now())
	}
	start := time.Now()
	step := func(after time.Duration, most int, want string, ended int) {
		t.Helper()
		l.most = most
		s, ref, from, surplus := l.next(start.Add(after))
		if ref != want || len(surplus) != ended || from != nil {
			t.Errorf("after %v: make %q, end %d; want %q, %d", after, ref, len(surplus), want, ended)
		}
		if ref != "" {
			l.shapes[s].ready = append(l.shapes[s].ready, running())
		}
	}
	step(0, 9, "", 0)
	for range 3 {
		ask(a, "A")
	}
	end := l.Begin()
	step(0, 9, "", 0) // a caller is being served
	end()
	<-l.idle
	step(0, 9, "A", 0)
	step(0, 9, "A", 0)
	step(0, 2, "", 0) // the limit is reached
	ask(b, "B")
	step(0, 2, "B", 1) // one of each is preferred
	step(0, 2, "", 0)
	step(0, 9, "A", 0)
	step(0, 9, "A", 0)
	step(0, 9, "", 0)
	step(burst+time.Second, 9, "", 2)      // one of each is enough after a while
	step(remembered+time.Second, 9, "", 2) // and then none
	if step(remembered+time.Second, 9, "", 0); len(l.shapes) != 0 {
		t.Errorf("it still remembers %d shapes", len(l.shapes))
	}
	l.empty(true)
	if l.Put(a, "A", running()) {
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
	from, err := snapshot.Reader{}.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	sh := &set[*countedSandbox]{from: from, asked: []time.Time{time.Now()}}
	if n := sh.want(time.Now()); n != 0 {
		t.Errorf("%d of a snapshot that was restored once", n)
	}
	sh.asked = append(sh.asked, time.Now())
	if n := sh.want(time.Now()); n != 2 {
		t.Errorf("%d of a snapshot that was restored twice", n)
	}
}

// TestPoolKeeps checks that requested sandboxes are made, handed out once and
// ended with the pool.
func TestPoolKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		l := New(m, 2)
		a, broken := Shape{Digest: "a"}, Shape{Digest: "broken"}
		end := l.Begin()
		for range 3 {
			l.Want(a, "A", nil)
		}
		l.Want(broken, "broken", nil)
		synctest.Wait()
		if all, _ := l.Ready(); all != 0 {
			t.Errorf("%d are ready while one is made for a caller, want none", all)
		}
		end()
		time.Sleep(2 * pause) // of the bubble
		if all, restored := l.Ready(); all != 2 || restored != 0 || l.Disabled() != nil {
			t.Fatalf("%d are ready, %d of them restored, disabled: %v; want the two that are allowed", all, restored, l.Disabled())
		}
		m.made[0].alive.Store(false)
		b, ok := l.Take(a)
		if !ok || b != m.made[1] || b.undone.Load() || !m.made[0].undone.Load() {
			t.Errorf("the pool hands out %p, %v, ended %v; want %p, and the dead one ended", b, ok, b.undone.Load(), m.made[1])
		}
		if _, ok := l.Take(a); ok {
			t.Error("an empty pool hands out a sandbox")
		}
		time.Sleep(2 * tick)
		if all, _ := l.Ready(); all != 2 {
			t.Errorf("%d are ready, want 2 again", all)
		}
		l.Close()
		for i, made := range m.made {
			if made.undone.Load() == (made == b) {
				t.Errorf("sandbox %d of %d: ended is %v", i, len(m.made), made.undone.Load())
			}
		}
		if m.stops != 1 || len(m.made) != 4 {
			t.Errorf("%d guards were stopped and %d sandboxes made, want 1 and 4", m.stops, len(m.made))
		}
		if l.Put(a, "A", running()) {
			t.Error("a closed pool accepts a sandbox")
		}
	})
}

// TestPoolUnguarded checks that a pool is empty without its guard and while
// memory is low, and fills again afterwards.
func TestPoolUnguarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, first := &maker{}, make(chan struct{})
		m.guard.Store(&guard{ended: first})
		l := New(m, 1)
		defer l.Close()
		a := Shape{Digest: "a"}
		want := func(ready int, disabled bool, when string) {
			t.Helper()
			time.Sleep(tick + 2*pause)
			synctest.Wait()
			if all, _ := l.Ready(); all != ready || (l.Disabled() != nil) != disabled {
				t.Errorf("%s: %d are ready, disabled: %v; want %d, %v", when, all, l.Disabled(), ready, disabled)
			}
		}
		ask := func() {
			for range 2 {
				l.Want(a, "A", nil)
			}
		}
		ask()
		want(1, false, "at first")
		m.low.Store(true)
		want(0, false, "while memory is low")
		m.low.Store(false)
		ask()
		want(1, false, "after that")
		m.guard.Store(&guard{fails: errors.New("no")})
		close(first)
		want(0, true, "without a guard")
		for _, b := range m.made {
			if !b.undone.Load() {
				t.Error("a sandbox has no guard and was not ended")
			}
		}
		m.guard.Store(nil)
		ask()
		time.Sleep(tick)
		want(1, false, "with another guard")
	})
}
