package hostedtest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Handover tests how installations with a provider hand over a session.
type Handover struct {
	Name string
	// Open and Other open a provider with one account and with another.
	Open, Other func(dir string) (driver.Provider, error)
	// Records: the service stores the owner of a sandbox, so that the former
	// installation no longer touches it.
	Records bool
	// Unmarked: nothing keeps the former installation from ending the sandbox.
	Unmarked bool
	// Count returns the number of the service's sandboxes.
	Count func() int
}

// installation is a daemon with its own store and directories.
type installation struct {
	t    *testing.T
	h    *Handover
	dir  string
	c    *atoll.Client
	stop func()
}

func (h *Handover) install(t *testing.T, open func(dir string) (driver.Provider, error)) *installation {
	t.Helper()
	i := &installation{t: t, h: h, dir: t.TempDir()}
	i.c, i.stop = start(t, i.dir, h.Name, true, open)
	t.Cleanup(func() { i.stop() })
	return i
}

// restart restarts the daemon, which compares its records with the service's
// sandboxes, and returns its session.
func (i *installation) restart() *atoll.Session {
	i.t.Helper()
	i.stop()
	i.c, i.stop = start(i.t, i.dir, i.h.Name, true, i.h.Open)
	s, err := i.c.Sessions().Get(i.t.Context(), "agent")
	if err != nil {
		i.t.Fatal(err)
	}
	return s
}

// resume resumes from an envelope in its encoded form.
func (i *installation) resume(e durable.Envelope) (*atoll.Session, error) {
	i.t.Helper()
	text, err := json.Marshal(e)
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		i.t.Fatal(err)
	}
	if strings.Contains(string(text), "hello") {
		i.t.Errorf("the envelope contains a value of the environment: %s", text)
	}
	return i.c.Sessions().Resume(i.t.Context(), e, atoll.SessionOptions{Name: "agent"})
}

// count waits until the service has a number of sandboxes: another process may
// still be removing one.
func (h *Handover) count(t *testing.T, when string, want int) {
	t.Helper()
	n := h.Count()
	for end := time.Now().Add(patience); n != want && time.Now().Before(end); n = h.Count() {
		time.Sleep(20 * time.Millisecond)
	}
	if n != want {
		t.Errorf("%s the service has %d sandboxes, want %d", when, n, want)
	}
}

func envelope(t *testing.T, s *atoll.Session) durable.Envelope {
	t.Helper()
	e, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Run continues a session of one installation in another one through its
// envelope, with the same sandbox and its files. There is never a second
// sandbox.
func (h *Handover) Run(t *testing.T) {
	first, second, stranger := h.install(t, h.Open), h.install(t, h.Open), h.install(t, h.Other)
	spec := sandbox.Spec{Provider: h.Name, Env: map[string]string{"GREETING": "hello"}}
	s, err := first.c.Sessions().Create(t.Context(), spec, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	sessionSays(t, s, "mkdir -p /workspace && echo kept >/workspace/note", "")
	e := envelope(t, s)
	if _, err := stranger.resume(e); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("with another account: %v, want unavailable", err)
	}

	taken, err := second.resume(e)
	if err != nil {
		t.Fatal(err)
	}
	if r := taken.Receipt(); r.Outcome != durable.OutcomeAttached || string(r.Sandbox) != e.Sandbox {
		t.Errorf("the receipt is %+v, want that of %s", r, e.Sandbox)
	}
	sessionSays(t, taken, "cat /workspace/note; echo more >>/workspace/note", "kept\n")
	h.count(t, "taken over,", 1)

	if h.Records {
		h.settled(t, first, second, s, taken)
	}
	if taken = second.restart(); taken.Info().Lease.Sandbox != sandbox.ID(e.Sandbox) {
		t.Errorf("after a restart the second installation has %+v", taken.Info().Lease)
	}
	if _, err := taken.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	sessionSays(t, taken, "cat /workspace/note", "kept\nmore\n")
	h.count(t, "after a restart", 1)
	if err := taken.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.count(t, "removed by the second installation,", 0)

	// The first installation notices that, and reports it when it makes another.
	s = first.restart()
	h.count(t, "when the first installation finds that out,", 0)
	if r, err := s.Acquire(t.Context()); err != nil || r.Outcome != durable.OutcomeCreated || r.Why == "" || len(r.Lost) == 0 || string(r.Sandbox) == e.Sandbox {
		t.Errorf("the first installation gets %+v, %v; want another sandbox, and that everything is lost", r, err)
	}
	if !h.Unmarked {
		h.forgotten(t, first, second, s)
	} else if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	h.count(t, "in the end", 0)
}

// settled checks that a sandbox belongs to one installation at a time, that the
// other one does not touch it, and that it can return.
func (h *Handover) settled(t *testing.T, first, second *installation, s, taken *atoll.Session) *atoll.Session {
	t.Helper()
	refused := func(when string, s *atoll.Session) {
		t.Helper()
		_, err := s.Run(t.Context(), sandbox.Command{Shell: "echo mine >>/workspace/note"}, atoll.RunOptions{})
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: %v, want unavailable", when, err)
		}
		if _, err := s.Acquire(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s, acquiring it: %v, want unavailable", when, err)
		}
	}
	refused("the first installation still uses it", s)
	s = first.restart()
	refused("the first installation uses it after a restart", s)

	back, err := first.resume(envelope(t, taken))
	if err != nil {
		t.Fatal(err)
	}
	sessionSays(t, back, "cat /workspace/note", "kept\nmore\n")
	taken = second.restart()
	refused("the second installation uses what went back", taken)
	if taken, err = second.resume(envelope(t, back)); err != nil {
		t.Fatal(err)
	}
	h.count(t, "there and back and there,", 1)
	return taken
}

// forgotten checks that an installation that removes its session does not end a
// sandbox that now belongs to another installation.
func (h *Handover) forgotten(t *testing.T, first, second *installation, s *atoll.Session) {
	t.Helper()
	sessionSays(t, s, "echo new >/tmp/note", "")
	taken, err := second.resume(envelope(t, s))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Errorf("the first installation removes its session: %v", err)
	}
	h.count(t, "forgotten by the first installation,", 1)
	first.stop()
	first.c, first.stop = start(t, first.dir, h.Name, true, h.Open)
	for b, err := range first.c.List(t.Context(), atoll.ListOptions{}) {
		if err != nil || b.State != sandbox.Gone {
			t.Errorf("after a restart the first installation has %+v, %v", b, err)
		}
	}
	h.count(t, "after a restart of the first installation", 1)
	sessionSays(t, taken, "cat /tmp/note", "new\n")
	if err := taken.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
