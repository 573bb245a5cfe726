package egress

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"github.com/atoll-run/atoll/internal/gateway/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// memoryLimit is above what the gateway should ever need, in bytes. It makes
// the garbage collector work harder before that, and is no hard limit.
const memoryLimit = 1 << 30

// Main runs this process as the gateway if that is what it was started for, and
// does not return then. In any other process it returns at once.
func Main() {
	if len(os.Args) == 0 || os.Args[0] != wire.Argv0 {
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
	conn, err := wire.FileConn(os.NewFile(3, "control"))
	if err != nil {
		return err
	}
	// Read while there still is a file system; later they are remembered.
	_, _ = x509.SystemCertPool()
	if err := confine(os.NewFile(4, "root")); err != nil {
		return fmt.Errorf("confining the process: %w", err)
	}
	return serve(conn)
}

// serve does what the control plane says until it hangs up: without control
// nothing flows.
func serve(conn *wire.Conn) error {
	out := newOutbox(conn)
	defer out.close()
	plane, err := NewPlane(wire.Settings{}, Hooks{
		Event: func(id sandbox.ID, e Event) {
			out.post(&wire.Message{Op: wire.OpEvents, Sandbox: id, Events: []Event{e}})
		},
		Named: func(id sandbox.ID, name string, n uint16) {
			out.post(&wire.Message{Op: wire.OpNames, Sandbox: id, Names: map[string]uint16{name: n}})
		},
		Ended: func(id sandbox.ID) { out.post(&wire.Message{Op: wire.OpEnded, Sandbox: id}) },
	})
	if err != nil {
		return err
	}
	defer plane.Close()
	for {
		m, files, err := conn.Receive()
		if err != nil {
			return nil //nolint:nilerr // it has hung up
		}
		answer := &wire.Message{ID: m.ID, Op: wire.OpAnswer}
		if err := do(plane, m, files); err != nil {
			answer.Error = err.Error()
		}
		if err := conn.Send(answer); err != nil {
			return nil //nolint:nilerr // it has hung up
		}
	}
}

// do carries out one request. The files are its own.
func do(p *Plane, m *wire.Message, files []*os.File) error {
	if m.Op == wire.OpAdd && m.Add != nil && len(files) == 1 {
		return p.Add(m.Sandbox, *m.Add, files[0])
	}
	defer wire.CloseAll(files)
	switch {
	case m.Op == wire.OpSettings && m.Settings != nil:
		return p.Configure(*m.Settings)
	case m.Op == wire.OpPolicy && m.Policy != nil:
		return p.SetPolicy(m.Sandbox, *m.Policy)
	case m.Op == wire.OpRemove:
		p.Remove(m.Sandbox)
		return nil
	}
	return errors.New("the request is not understood")
}

// outbox sends what nobody waits for. It holds a bounded number of messages:
// when the control plane does not read, what is new is dropped, because
// traffic must not wait for it.
type outbox struct {
	messages chan *wire.Message
	done     chan struct{}
	once     sync.Once
}

const (
	outboxSize = 4096
)

func newOutbox(conn *wire.Conn) *outbox {
	o := &outbox{messages: make(chan *wire.Message, outboxSize), done: make(chan struct{})}
	go func() {
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

// post sends a message some time. A name's address is never dropped, because
// another gateway must give the name the same one.
func (o *outbox) post(m *wire.Message) {
	if m.Op == wire.OpEvents {
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
