package messages_test

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// pair returns both ends of a connection: one with messages, and the socket of
// an attacker.
func pair(t *testing.T) (*messages.Conn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := messages.FileConn(os.NewFile(uintptr(fds[0]), "ours"))
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "theirs")
	defer f.Close()
	theirs, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs.(*net.UnixConn)
}

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// Frames that are none end the reading, and descriptors that came with them are
// closed.
func TestFramesThatAreNone(t *testing.T) {
	for name, sent := range map[string][]byte{
		"part of a length":  {0, 0},
		"no body":           {0, 0, 0, 4},
		"part of a body":    append([]byte{0, 0, 0, 9}, `{"id":1`...),
		"too long":          binary.BigEndian.AppendUint32(nil, messages.MaxFrame+1),
		"longest":           {0xff, 0xff, 0xff, 0xff},
		"no JSON":           frame("{"),
		"empty":             frame(""),
		"JSON of no object": frame("[]"),
		"two values":        frame(`{"id":1}{"id":2}`),
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := pair(t)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, _, err := theirs.WriteMsgUnix(sent, unix.UnixRights(int(w.Fd())), nil); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if !strings.Contains(name, "long") { // those must not wait for the body
				theirs.Close()
			}
			if m, files, err := ours.Receive(); err == nil || len(files) > 0 {
				t.Errorf("received %+v with %d files", m, len(files))
			}
			_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
			if n, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("a descriptor is open: read %d, %v", n, err)
			}
		})
	}
}

// A message with more descriptors than the other end takes is not sent: it would
// arrive with some of them.
func TestTooManyDescriptors(t *testing.T) {
	ours, theirs := pair(t)
	sender := messages.NewConn(theirs)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := sender.Send(&messages.Message{ID: 1}, f, f, f, f, f); err == nil {
		t.Error("five descriptors are sent")
	}
	if err := sender.Send(&messages.Message{ID: 2}, f, f, f, f); err != nil {
		t.Fatal(err)
	}
	m, files, err := ours.Receive()
	messages.CloseAll(files)
	if err != nil || m.ID != 2 || len(files) != 4 {
		t.Errorf("received %+v with %d files, %v", m, len(files), err)
	}
}
