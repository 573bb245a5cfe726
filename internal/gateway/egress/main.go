package egress

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/internal/confine"
	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/ownaddr"
	"github.com/atoll-run/atoll/sandbox"
)

// memoryLimit is above what the gateway should ever need, in bytes. It is a
// soft limit for the garbage collector.
const memoryLimit = 1 << 30

// Main runs this process as the gateway if it was started as one, and then does
// not return. Otherwise it returns immediately.
func Main() {
	if len(os.Args) == 0 || os.Args[0] != messages.Argv0 {
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "atoll gateway:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run() error {
	debug.SetMemoryLimit(memoryLimit)
	conn, err := messages.FileConn(os.NewFile(3, "control"))
	if err != nil {
		return err
	}
	var next *net.UnixListener
	if len(os.Args) > 1 && os.Args[1] == messages.Linger {
		if next, err = listener(os.NewFile(5, "next")); err != nil {
			return err
		}
	}
	// Load these while the file system is still visible.
	_, _ = x509.SystemCertPool()
	// Open what cannot be opened after confinement.
	own, err := ownaddr.Open()
	if err != nil {
		return err
	}
	if err := confine.Enter(os.NewFile(4, "root"), confine.Keeps{}); err != nil {
		return fmt.Errorf("confining the process: %w", err)
	}
	s, err := newServer(next, own.Own)
	if err != nil {
		return err
	}
	defer s.links.Close()
	return s.serve(conn)
}

func listener(f *os.File) (*net.UnixListener, error) {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, errors.New("not a UNIX socket")
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

// server serves control planes, one after the other.
type server struct {
	links *Links
	next  *net.UnixListener      // nil: there is only one control plane
	out   atomic.Pointer[outbox] // nil: no control plane is connected
}

func newServer(next *net.UnixListener, own func(netip.Addr) bool) (*server, error) {
	s := &server{next: next}
	var err error
	s.links, err = NewLinks(messages.Settings{}, Hooks{
		Own: own,
		Event: func(id sandbox.ID, e Event) {
			s.post(&messages.Message{Op: messages.OpEvents, Sandbox: id, Events: []Event{e}})
		},
		Named: func(id sandbox.ID, name string, n uint16) {
			s.post(&messages.Message{Op: messages.OpNames, Sandbox: id, Names: map[string]uint16{name: n}})
		},
		Ended: func(id sandbox.ID) {
			s.post(&messages.Message{Op: messages.OpEnded, Sandbox: id})
			s.unneeded()
		},
	})
	return s, err
}

func (s *server) post(m *messages.Message) {
	if out := s.out.Load(); out != nil {
		out.post(m)
	}
}

// unneeded ends the wait for a control plane when no sandbox is left.
func (s *server) unneeded() {
	if s.next != nil && s.out.Load() == nil && s.links.Len() == 0 {
		s.next.Close()
	}
}

// serve serves a control plane until it disconnects. With Linger, it then waits
// for the next one and hands over the links.
func (s *server) serve(conn *messages.Conn) error {
	s.obey(conn)
	if s.next == nil {
		return nil
	}
	for s.links.Len() > 0 {
		c, err := s.next.AcceptUnix()
		if err != nil {
			return nil //nolint:nilerr // no link is left, so the process ends
		}
		if s.handOver(messages.NewConn(c)) {
			return nil
		}
	}
	return nil
}

// obey handles the messages of a control plane until it disconnects.
func (s *server) obey(conn *messages.Conn) {
	defer conn.Close()
	out := newOutbox(conn)
	s.out.Store(out)
	defer func() {
		s.out.Store(nil)
		out.close()
	}()
	for {
		m, files, err := conn.Receive()
		if err != nil {
			return
		}
		answer := &messages.Message{ID: m.ID, Op: messages.OpAnswer}
		if err := do(s.links, m, files); err != nil {
			answer.Error = err.Error()
		} else if m.Op == messages.OpNames {
			answer.Names = s.links.Names(m.Sandbox)
		}
		out.post(answer)
	}
}

// handOver hands all links to another control plane, and reports whether it has
// accepted them.
func (s *server) handOver(conn *messages.Conn) bool {
	defer conn.Close()
	err := s.links.Handover(func(id sandbox.ID, a messages.Add, link *os.File) error {
		return conn.Send(&messages.Message{Op: messages.OpHeld, Sandbox: id, Add: &a}, link)
	})
	if err != nil || conn.Send(&messages.Message{Op: messages.OpHandedOver}) != nil {
		return false
	}
	m, files, err := conn.Receive()
	messages.CloseAll(files)
	return err == nil && m.Op == messages.OpQuit
}

// do carries out one request. It takes ownership of the files.
func do(p *Links, m *messages.Message, files []*os.File) error {
	if m.Op == messages.OpAdd && m.Add != nil && len(files) == 1 {
		return p.Add(m.Sandbox, *m.Add, files[0])
	}
	defer messages.CloseAll(files)
	switch {
	case m.Op == messages.OpSettings && m.Settings != nil:
		return p.Configure(*m.Settings)
	case m.Op == messages.OpPolicy && m.Policy != nil:
		return p.SetPolicy(m.Sandbox, *m.Policy)
	case m.Op == messages.OpRemove:
		p.Remove(m.Sandbox)
		return nil
	case m.Op == messages.OpNames:
		return nil
	}
	return errors.New("unknown request")
}

// outbox sends notifications and answers asynchronously, in the order in which
// they were posted: an answer follows the events of all earlier decisions. It
// holds a limited number of messages. If the control plane does not read, new
// events are dropped, because traffic must not wait for it.
type outbox struct {
	messages chan *messages.Message
	done     chan struct{}
	once     sync.Once
}

const outboxSize = 4096 // messages

func newOutbox(conn *messages.Conn) *outbox {
	o := &outbox{messages: make(chan *messages.Message, outboxSize), done: make(chan struct{})}
	go func() {
		defer o.close() // the connection has failed: no message may wait
		for {
			select {
			case m := <-o.messages:
				if conn.Send(m) != nil {
					return
				}
			case <-o.done:
				return
			}
		}
	}()
	return o
}

// post queues a message. Only events may be dropped: the next gateway must give
// a name the same address, and a request needs its answer.
func (o *outbox) post(m *messages.Message) {
	if m.Op == messages.OpEvents {
		select {
		case o.messages <- m:
		default:
		}
		return
	}
	select {
	case o.messages <- m:
	case <-o.done:
	}
}

func (o *outbox) close() { o.once.Do(func() { close(o.done) }) }
