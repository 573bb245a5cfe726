package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// A machine in a network of its own, which only makes outbound connections, is
// enrolled and used by two sessions at once, while its cable is pulled and the NATS
// server is killed. Nothing runs twice, no byte is lost or repeated. Then its
// program and the daemon are killed, and its sandboxes are still there. In the end
// it is revoked, and leaves nothing.
func TestMachineInItsOwnNetwork(t *testing.T) {
	need.Full(t, "TestMachineCutInTheMiddle cuts the connection of a machine on this network")
	n := newNetwork(t)
	broker := &natsServer{program: filepath.Join(t.TempDir(), "atoll-nats"), dir: t.TempDir(), address: net.JoinHostPort(n.here, "0")}
	build(broker.program, "../atoll-nats")
	certify(t, broker.dir, n.here)
	broker.start(t)
	s := soakerOf(t, built.atoll, filepath.Join(t.TempDir(), "state"), "--machines-file", filepath.Join(broker.dir, "machines.json"))
	m := n.join(t, s, broker)

	ctx, fail := context.WithCancel(t.Context())
	defer fail()
	var busy sync.WaitGroup
	sessions := map[string]*atoll.Session{}
	at := &middle{over: ctx.Done(), fail: fail, reached: make(chan string), release: make(chan struct{}), went: make(chan string)}
	for _, name := range []string{"one", "two"} {
		spec := small
		spec.Provider = m.provider(t, s)
		x, err := s.client.Sessions().Create(t.Context(), spec, atoll.SessionOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		sessions[name] = x
		busy.Go(func() { throughACommand(t, x, at) })
		busy.Go(func() { upload(t, x, at) })
	}
	for i := range cuts {
		if !at.gather(t, 2*len(sessions)) {
			break
		}
		if i%2 == 0 {
			n.cable(t, "down")
			at.goOn(t, 2*len(sessions))
			m.await(t, s, "reconnecting")
			n.cable(t, "up")
		} else {
			broker.kill()
			at.goOn(t, 2*len(sessions))
			broker.start(t)
		}
	}
	busy.Wait()
	if t.Failed() {
		return
	}
	want := func(when string) {
		t.Helper()
		for name, x := range sessions {
			var got string
			err := persist(t.Context(), func() error {
				res, err := x.Run(t.Context(), sandbox.Command{Shell: "wc -l </root/count"})
				got = strings.TrimSpace(string(res.Stdout))
				return err
			})
			if err != nil || got != "1" {
				t.Errorf("%s, session %s: the command ran %q times, %v; want once", when, name, got, err)
			}
		}
	}
	want("after the cuts")
	m.kill()
	m.serve(t)
	want("after the machine's program was killed")
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	_ = m.cmd.Wait()
	wantFiles(t, sessions["one"], catalog.AgentOffline)
	m.serve(t)
	wantFiles(t, sessions["one"], "")
	s.kill()
	s.start(t)
	want("after the daemon was killed")
	m.wantNothingListens(t)

	if err := s.client.Admin().RevokeMachine(t.Context(), "lab"); err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Wait(); err == nil || !strings.Contains(m.said.String(), "revoked") {
		t.Errorf("the revoked machine's program ends with %v: %s", err, &m.said)
	}
	leave := n.command(m.env, built.atoll, "machine", "leave")
	if out, err := leave.CombinedOutput(); err != nil {
		t.Errorf("leave: %v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(m.state, "machine", "enrolment.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the enrolment is still there: %v", err)
	}
	if left := n.processes(t); len(left) > 0 {
		t.Errorf("left on the machine: %q", left)
	}
}

// wantFiles waits until the document of capabilities gives a reason why there are
// no files, "" if there are (RB-28).
func wantFiles(t *testing.T, x *atoll.Session, why catalog.UnavailableReason) {
	t.Helper()
	err := eventually(func() error {
		doc, err := x.Capabilities(t.Context())
		if c := doc.FileSystem; err == nil && (c.Reason != why || c.Available != (why == "") || doc.Terminal.Reason != why) {
			err = fmt.Errorf("files: %+v, terminal: %+v; want the reason %q", c, doc.Terminal, why)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A transfer has transfer bytes. After each of its first parts, it waits for a cut.
const (
	transfer = 6 << 20
	cuts     = 4
	part     = 512 << 10 // all of them fit into what may be under way
)

// middle is where all transfers wait until the connection is cut, to go on while
// it is. It is over when one of them has failed.
type middle struct {
	over    <-chan struct{}
	fail    func()
	reached chan string // who waits for a cut
	release chan struct{}
	went    chan string // who has handed on more during the cut
}

// gather waits until all of n transfers wait for a cut.
func (m *middle) gather(t *testing.T, n int) bool {
	for range n {
		select {
		case who := <-m.reached:
			t.Logf("%s waits for a cut", who)
		case <-m.over:
			return false
		}
	}
	return true
}

// goOn lets all of n transfers go on, and waits until they have.
func (m *middle) goOn(t *testing.T, n int) {
	for _, step := range []func() bool{
		func() bool {
			select {
			case m.release <- struct{}{}:
			case <-m.over:
				return false
			}
			return true
		},
		func() bool {
			select {
			case who := <-m.went:
				t.Logf("%s went on", who)
			case <-m.over:
				return false
			}
			return true
		},
	} {
		for range n {
			if !step() {
				return
			}
		}
	}
}

// held reads what is transferred. At the end of a part it waits for a cut, and
// the next Read says that what came after it was handed on.
type held struct {
	*bytes.Reader
	who  string
	at   *middle
	back <-chan struct{} // has something when a part has come back; nil: it does not come back
	done int             // parts
	cut  bool
}

func (h *held) Read(p []byte) (int, error) {
	if h.cut {
		h.cut = false
		select {
		case h.at.went <- h.who:
		case <-h.at.over:
		}
	}
	most := 64 << 10
	if h.done < cuts {
		left := (h.done+1)*part - (transfer - h.Len())
		if left == 0 {
			if err := h.wait(); err != nil {
				return 0, err
			}
			h.done, h.cut, left = h.done+1, true, part
		}
		most = min(most, left)
	}
	return h.Reader.Read(p[:min(len(p), most)])
}

// wait waits until the connection is cut.
func (h *held) wait() error {
	if h.back != nil {
		select {
		case <-h.back:
		case <-h.at.over:
			return errors.New("another transfer has failed")
		}
	}
	select {
	case h.at.reached <- h.who:
	case <-h.at.over:
		return errors.New("another transfer has failed")
	}
	select {
	case <-h.at.release:
		return nil
	case <-h.at.over:
		return errors.New("another transfer has failed")
	}
}

// throughACommand sends bytes through a command of a session and compares what
// comes back.
func throughACommand(t *testing.T, x *atoll.Session, at *middle) {
	p, err := x.Exec(t.Context(), sandbox.Command{Shell: "echo ran >>/root/count; cat; exit 7", Stdin: true, Hold: time.Minute})
	if err != nil {
		t.Error(err)
		at.fail()
		return
	}
	defer p.Close()
	data, back := seeded(transfer), make(chan struct{}, cuts)
	var writing sync.WaitGroup
	writing.Go(func() {
		in := &held{Reader: bytes.NewReader(data), who: "the command of " + x.Name(), at: at, back: back}
		if _, err := io.Copy(p.Stdin(), struct{ io.Reader }{in}); err != nil {
			t.Errorf("session %s: writing: %v", x.Name(), err)
			at.fail()
		}
		_ = p.Stdin().Close()
	})
	got := sha256.New()
	for range cuts {
		if _, err = io.CopyN(got, p.Stdout(), part); err != nil {
			break
		}
		back <- struct{}{}
	}
	if err == nil {
		_, err = io.Copy(got, p.Stdout())
	}
	if err != nil {
		at.fail()
	}
	writing.Wait()
	if want := sha256.Sum256(data); err != nil || !bytes.Equal(got.Sum(nil), want[:]) {
		t.Errorf("session %s: what came is not what was sent, %v", x.Name(), err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 7 {
		t.Errorf("session %s: the command ended with %+v, %v; want the exit code 7", x.Name(), exit, err)
	}
}

// upload writes a file of a session, and reads it again.
func upload(t *testing.T, x *atoll.Session, at *middle) {
	data := seeded(transfer)
	in := &held{Reader: bytes.NewReader(data), who: "the upload of " + x.Name(), at: at}
	if _, err := x.Files().Write(t.Context(), "/root/big", struct{ io.Reader }{in}, atoll.WriteOptions{}); err != nil {
		t.Errorf("session %s: upload: %v", x.Name(), err)
		at.fail()
		return
	}
	res, err := x.Run(t.Context(), sandbox.Command{Shell: "sha256sum </root/big"})
	if want := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || !strings.HasPrefix(string(res.Stdout), want) {
		t.Errorf("session %s: the uploaded file: %q, %v; want %s", x.Name(), res.Stdout, err, want)
	}
}
