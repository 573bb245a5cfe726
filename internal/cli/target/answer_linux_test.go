package target

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// slowDaemon listens in a state directory and answers when open is closed. Its
// socket stays when it ends.
func slowDaemon(t *testing.T, state string, open <-chan struct{}) *http.Server {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(state, atoll.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	s := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-open:
		case <-r.Context().Done():
		}
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// waiting calls a function when it hears that a command waits for the daemon.
type waiting struct {
	bytes.Buffer
	heard func()
}

func (w *waiting) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("waiting for the daemon")) {
		w.heard()
	}
	return w.Buffer.Write(p)
}

// impatient returns an Env that says at once that it waits.
func impatient(t *testing.T, heard func()) *Env {
	return &Env{
		Term:     &term.Term{Stderr: &waiting{heard: heard}, LookupEnv: clitest.Lookup(nil)},
		StateDir: t.TempDir(), patience: patience{ping: time.Nanosecond},
	}
}

// A daemon that accepts connections runs, however slow it is to answer.
func TestSlowDaemonIsAwaited(t *testing.T) {
	open := make(chan struct{})
	a := impatient(t, sync.OnceFunc(func() { close(open) }))
	slowDaemon(t, a.StateDir, open)
	c, err := a.Daemon(t.Context())
	if err != nil || c == nil {
		t.Fatalf("the slow daemon counts as none: %v, %v", c, err)
	}
	defer c.Close()
	if runs, err := runs(t.Context(), a); err != nil || !runs {
		t.Errorf("another one may be started: %v, %v", runs, err)
	}
}

// A daemon that never answers is an error that says what to do.
func TestSilentDaemonIsAnError(t *testing.T) {
	a := impatient(t, func() {})
	a.patience.answer = time.Millisecond
	slowDaemon(t, a.StateDir, nil)
	c, err := a.Daemon(t.Context())
	if c != nil || sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Fatalf("got %v, %v", c, err)
	}
	if text, hint := term.Explain(err); !strings.Contains(text, "has not answered") || !strings.Contains(hint, "atoll down") {
		t.Errorf("the error is %q, the hint %q", text, hint)
	}
}

// The socket of a daemon that was killed, or is killed while a command waits for
// it, is not a daemon.
func TestKilledDaemonIsNone(t *testing.T) {
	a := impatient(t, nil)
	s := slowDaemon(t, a.StateDir, nil)
	a.Stderr = &waiting{heard: func() { _ = s.Close() }}
	for range 2 {
		if c, err := a.Daemon(t.Context()); c != nil || err != nil {
			t.Errorf("got %v, %v", c, err)
		}
	}
}

// A daemon that holds the lock of the state directory and has no socket, because
// it is starting, keeps another one from being started.
func TestStartingDaemonIsAwaited(t *testing.T) {
	a := impatient(t, func() {})
	a.patience.answer = time.Millisecond
	lock := filepath.Join(a.StateDir, LockName)
	if runs, err := awaitOther(t.Context(), a, lock); runs || err != nil {
		t.Errorf("without a daemon: %v, %v", runs, err)
	}
	release, err := LockFile(t.Context(), lock)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := awaitOther(t.Context(), a, lock); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("while one starts: %v", err)
	}
	release()
	if runs, err := awaitOther(t.Context(), a, lock); runs || err != nil {
		t.Errorf("after it has ended: %v, %v", runs, err)
	}
}

// The error of a daemon that was started in the background is that in its log.
func TestStartError(t *testing.T) {
	log := filepath.Join(t.TempDir(), logName)
	const earlier = "atoll: error: of an earlier daemon\natoll: hint: for that one\n"
	for text, want := range map[string][2]string{
		"": {"see " + log, "atoll up"},
		"atoll: error: a:1: the address is already in use\natoll: hint: choose another port\n": {"a:1: the address is already in use", "choose another port"},
		"atoll: warning: w\natoll: error: no hint\n":                                           {"no hint", "atoll up"},
	} {
		if err := os.WriteFile(log, []byte(earlier+text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, hint := term.Explain(startError(log, int64(len(earlier))))
		if !strings.HasSuffix(got, "the daemon ended at once: "+want[0]) || !strings.Contains(hint, want[1]) {
			t.Errorf("of %q the error is %q, the hint %q", text, got, hint)
		}
	}
}
