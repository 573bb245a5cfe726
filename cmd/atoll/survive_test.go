package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// sandbox creates a small sandbox.
func (s *soaker) sandbox(t testing.TB, name string) *atoll.Sandbox {
	t.Helper()
	b, err := s.client.Create(t.Context(), sandbox.Spec{Name: name, Resources: sandbox.Resources{Memory: 256 << 20}}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs a script in a sandbox, and fails unless it succeeds.
func run(t testing.TB, b *atoll.Sandbox, script string) string {
	t.Helper()
	res, err := b.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
	if err != nil || res.Exit.Code != 0 {
		t.Fatalf("%s: %v, %+v, %s", script, err, res.Exit, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// kernel returns the kernel process of a sandbox from its record.
func (s *soaker) kernel(t testing.TB, b *atoll.Sandbox) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.state, "gvisor", "boxes", string(b.ID()), "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Kernel struct{ PID int } }
	if err := json.Unmarshal(text, &r); err != nil || r.Kernel.PID < 2 {
		t.Fatalf("%d, %v", r.Kernel.PID, err)
	}
	return r.Kernel.PID
}

func signal(t testing.TB, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, what string, err error, want ...sandbox.Code) {
	t.Helper()
	if !slices.Contains(want, sandbox.CodeOf(err)) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// seeded returns the same random bytes every time.
func seeded(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// Output and input of a command continue without lost or repeated bytes while
// the daemon is killed repeatedly.
func TestStreamsOutliveTheDaemon(t *testing.T) {
	s := newSoaker(t)
	b := s.sandbox(t, "streams")
	const total = 24 << 20 // far more than can be in transit
	data := seeded(total)
	p, err := b.Exec(t.Context(), sandbox.Command{Shell: "cat; echo the end >&2; exit 7", Stdin: true, Hold: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var writing sync.WaitGroup
	writing.Go(func() {
		if _, err := p.Stdin().Write(data); err != nil {
			t.Errorf("writing: %v", err)
		}
		_ = p.Stdin().Close()
	})
	got := sha256.New()
	for kills := range 3 { // each after reading a part
		if _, err := io.CopyN(got, p.Stdout(), total/4); err != nil {
			t.Fatalf("after %d kills: %v", kills, err)
		}
		s.kill()
		s.start(t)
	}
	n, err := io.Copy(got, p.Stdout())
	if err != nil || n != total/4 {
		t.Errorf("the last quarter: %d bytes, %v", n, err)
	}
	writing.Wait()
	if want := sha256.Sum256(data); !bytes.Equal(got.Sum(nil), want[:]) {
		t.Error("what came is not what was sent")
	}
	if text, err := io.ReadAll(p.Stderr()); err != nil || string(text) != "the end\n" {
		t.Errorf("standard error: %q, %v", text, err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 7 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// cutter forwards a daemon's socket and cuts all connections on demand.
type cutter struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func newCutter(t *testing.T, socket string) *cutter {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l}
	t.Cleanup(func() { l.Close(); c.cut() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", socket)
			if err != nil {
				near.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, near, far)
			c.mu.Unlock()
			go func() { _, _ = io.Copy(near, far); near.Close() }()
			go func() { _, _ = io.Copy(far, near); far.Close() }()
		}
	}()
	return c
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// The same if only the connection is cut, and the daemon still has its side.
func TestStreamsOutliveTheirConnection(t *testing.T) {
	s := newSoaker(t)
	s.sandbox(t, "cuts")
	wire := newCutter(t, filepath.Join(s.state, atoll.SocketName))
	far, err := atoll.New(atoll.Options{Host: "unix://" + wire.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	b, err := far.Get(t.Context(), "cuts")
	if err != nil {
		t.Fatal(err)
	}
	const total = 16 << 20
	for _, cmd := range []sandbox.Command{
		{Shell: "cat", Stdin: true, Hold: time.Minute},
		{Shell: "cat", Stdin: true, Hold: time.Minute, TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}},
	} {
		data := seeded(total)
		if cmd.TTY != nil {
			cmd.Shell = "stty raw -echo; echo ready; cat"
			data = []byte(hex.EncodeToString(data[:total/16]))
		}
		p, err := b.Exec(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		if cmd.TTY != nil { // before that the terminal would change the input
			if _, err := io.CopyN(io.Discard, p.Stdout(), int64(len("ready\n"))); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _, _ = p.Stdin().Write(data) }()
		got := make([]byte, len(data))
		for i := range 8 {
			if i > 0 {
				wire.cut()
			}
			if _, err := io.ReadFull(p.Stdout(), got[i*len(data)/8:(i+1)*len(data)/8]); err != nil {
				t.Fatalf("part %d: %v", i, err)
			}
		}
		if !bytes.Equal(got, data) {
			t.Errorf("with a terminal: %v: what came is not what was sent", cmd.TTY != nil)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// atoll exec and atoll attach survive the daemon, and the exits of their
// commands are recorded.
func TestExecOutlivesTheDaemon(t *testing.T) {
	s := newSoaker(t)
	b := s.sandbox(t, "verbs")
	script := "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); [ -e /go ] || sleep 0.2; done; exit 5"
	bg, err := b.Exec(t.Context(), sandbox.Command{Shell: script, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = bg.Close()
	var want strings.Builder
	for i := range 60 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	var verbs sync.WaitGroup
	begun := make(chan struct{}, 2)
	for _, args := range [][]string{{"exec", "verbs", "--", "sh", "-c", script}, {"attach", "verbs", bg.Info().ID}} {
		verbs.Go(func() {
			cmd := exec.Command(built.atoll, args...)
			cmd.Env = s.env
			var errs bytes.Buffer
			out := &signalling{first: func() { begun <- struct{}{} }}
			cmd.Stdout, cmd.Stderr = out, &errs
			_ = cmd.Run()
			if cmd.ProcessState.ExitCode() != 5 || out.buf.String() != want.String() {
				t.Errorf("%v ended with %d, wrote %q, and said %q", args, cmd.ProcessState.ExitCode(), out.buf.String(), errs.String())
			}
		})
	}
	<-begun
	<-begun
	for range 2 {
		s.kill()
		s.start(t)
	}
	run(t, b, "touch /go")
	verbs.Wait()
	ends := 0
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for e, err := range s.client.FollowEvents(deadline, sandbox.EventQuery{Types: []string{"exec.ended"}}) {
		if err != nil {
			t.Fatalf("%d commands are recorded to have ended with 5: %v", ends, err)
		}
		if e.Exit != nil && *e.Exit == 5 {
			if ends++; ends == 2 {
				return
			}
		}
	}
}

// signalling is a buffer that signals when the first bytes are written.
type signalling struct {
	buf   bytes.Buffer
	once  sync.Once
	first func()
}

func (b *signalling) Write(p []byte) (int, error) {
	b.once.Do(b.first)
	return b.buf.Write(p)
}
