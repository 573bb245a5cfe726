package egress

import (
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// An answer to the control plane follows the events of all earlier decisions.
func TestAnswerFollowsEvents(t *testing.T) {
	s, err := newServer(nil, func(netip.Addr) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	defer s.links.Close()
	ours, theirs := connPair(t)
	served := make(chan error, 1)
	go func() { served <- s.serve(theirs) }()
	ask := func(id uint64) {
		t.Helper()
		if err := ours.Send(&messages.Message{ID: id, Op: messages.OpNames}); err != nil {
			t.Fatal(err)
		}
	}
	receive := func() *messages.Message {
		t.Helper()
		m, _, err := ours.Receive()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	ask(1)
	receive() // it serves the connection
	const events = outboxSize / 2
	for i := range events {
		s.post(&messages.Message{Op: messages.OpEvents, Events: []Event{{Kind: "tcp", Port: uint16(i)}}})
	}
	ask(2)
	for i := range events {
		if m := receive(); m.Op != messages.OpEvents || m.Events[0].Port != uint16(i) {
			t.Fatalf("message %d is %+v", i, m)
		}
	}
	if m := receive(); m.Op != messages.OpAnswer || m.ID != 2 {
		t.Errorf("the last message is %+v", m)
	}
	ours.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// connPair returns the two ends of a connection. The test closes the first.
func connPair(t *testing.T) (ours, theirs *messages.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*messages.Conn
	for i, fd := range fds {
		if ends[i], err = messages.FileConn(os.NewFile(uintptr(fd), "pair")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}
