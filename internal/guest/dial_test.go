package guest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

var _ driver.Dialer = (*guest.Client)(nil)

// listen listens on a loopback address of this machine. A guest for plain
// processes shares it.
func listen(t testing.TB, address string) (net.Listener, uint16) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, uint16(l.Addr().(*net.TCPAddr).Port)
}

// connect dials a port and returns both ends.
func connect(t testing.TB, c *guest.Client) (ours net.Conn, theirs *net.TCPConn) {
	t.Helper()
	l, port := listen(t, "127.0.0.1:0")
	ours, err := c.Dial(testContext(t), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return ours, conn.(*net.TCPConn)
}

// TestDialIsAConn runs the standard suite for connections, deadlines included.
func TestDialIsAConn(t *testing.T) {
	c := newClient(t, t.TempDir())
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, nil, err
		}
		defer l.Close()
		ours, err := c.Dial(context.Background(), uint16(l.Addr().(*net.TCPAddr).Port))
		if err != nil {
			return nil, nil, nil, err
		}
		theirs, err := l.Accept()
		if err != nil {
			ours.Close()
			return nil, nil, nil, err
		}
		return ours, theirs, func() { ours.Close(); theirs.Close() }, nil
	})
}

func TestDialRefused(t *testing.T) {
	c := newClient(t, t.TempDir())
	l, port := listen(t, "127.0.0.1:0")
	l.Close()
	_, err := c.Dial(testContext(t), port)
	wantCode(t, err, sandbox.CodeUnavailable)
	if err == nil || !strings.Contains(err.Error(), "nothing listens") {
		t.Errorf("%v does not say why", err)
	}
	_, err = c.Dial(testContext(t), 0)
	wantCode(t, err, sandbox.CodeInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = c.Dial(ctx, port); !errors.Is(err, context.Canceled) {
		t.Errorf("dialing with a canceled context: %v", err)
	}
}

func TestDialIPv6(t *testing.T) {
	c := newClient(t, t.TempDir())
	l, port := listen(t, "[::1]:0")
	conn, err := c.Dial(testContext(t), port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if b, err := io.ReadAll(conn); err != nil || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
}

// TestDialHalfClose closes either direction first.
func TestDialHalfClose(t *testing.T) {
	c := newClient(t, t.TempDir())
	t.Run("ours", func(t *testing.T) {
		ours, theirs := connect(t, c)
		io.WriteString(ours, "question")
		ours.(interface{ CloseWrite() error }).CloseWrite()
		if _, err := ours.Write([]byte("x")); err == nil {
			t.Error("writing after CloseWrite works")
		}
		if b, err := io.ReadAll(theirs); err != nil || string(b) != "question" {
			t.Fatalf("%q, %v", b, err)
		}
		io.WriteString(theirs, "answer")
		theirs.Close()
		if b, err := io.ReadAll(ours); err != nil || string(b) != "answer" {
			t.Errorf("%q, %v", b, err)
		}
	})
	t.Run("theirs", func(t *testing.T) {
		ours, theirs := connect(t, c)
		io.WriteString(theirs, "greeting")
		theirs.CloseWrite()
		if b, err := io.ReadAll(ours); err != nil || string(b) != "greeting" {
			t.Fatalf("%q, %v", b, err)
		}
		io.WriteString(ours, "thanks")
		ours.Close() // at once: what was written still arrives
		if b, err := io.ReadAll(theirs); err != nil || string(b) != "thanks" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// TestDialReset checks that a reset connection does not look like a closed one.
func TestDialReset(t *testing.T) {
	ours, theirs := connect(t, newClient(t, t.TempDir()))
	theirs.SetLinger(0)
	theirs.Close()
	if b, err := io.ReadAll(ours); err == nil {
		t.Errorf("a reset looks like an end after %q", b)
	} else if code := guest.ErrorCode(err); code != sandbox.CodeUnavailable {
		t.Errorf("%v has code %q", err, code)
	}
}

// TestDialStalled checks that a program that does not read blocks only its own
// writer, and that Close unblocks the writer.
func TestDialStalled(t *testing.T) {
	c := newClient(t, t.TempDir())
	ours, _ := connect(t, c)
	stuck := make(chan error)
	go func() {
		block := make([]byte, 1<<20)
		for {
			if _, err := ours.Write(block); err != nil {
				stuck <- err
				return
			}
		}
	}()
	other, theirs := connect(t, c)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	go func() {
		theirs.Write(content)
		theirs.Close()
	}()
	if b, err := io.ReadAll(other); err != nil || !bytes.Equal(b, content) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	select {
	case err := <-stuck:
		t.Fatalf("the stalled writer ended with %v", err)
	default:
	}
	ours.Close()
	if err := <-stuck; err == nil {
		t.Error("no error after Close")
	}
}

// TestDialLost checks that connections fail when the connection to the guest is
// lost.
func TestDialLost(t *testing.T) {
	c := newClient(t, t.TempDir())
	ours, theirs := connect(t, c)
	c.Close()
	if b, err := io.ReadAll(ours); err == nil {
		t.Errorf("reading ended well after %q", b)
	}
	if _, err := theirs.Read(make([]byte, 1)); err == nil {
		t.Error("the program inside still has its connection")
	}
}
