package guest_test

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/wire"
)

// hostile is a restored guest whose answer the test chooses.
func hostile(t *testing.T, answer func(door io.Reader, in io.Reader, out io.Writer)) (*os.File, *guest.Pipes) {
	t.Helper()
	door, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	conn, theirs, err := guest.NewPipes()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer(door, theirs[0], theirs[1])
		theirs[1].Close()
	}()
	t.Cleanup(func() {
		ours.Close()
		conn.Close()
		<-done
		door.Close()
		theirs[0].Close()
	})
	return ours, conn
}

func TestWaken(t *testing.T) {
	door, conn := hostile(t, func(door, in io.Reader, out io.Writer) {
		nonce := make([]byte, wire.NonceLen)
		_, _ = io.ReadFull(door, nonce)
		_, _ = out.Write([]byte("what it had begun to say"))
		_, _ = out.Write(nonce)
		_ = wire.SkipPast(in, nonce)
		_, _ = out.Write([]byte("hello"))
	})
	if err := guest.Waken(testContext(t), door, conn); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestPipeHoldsFrames checks that exactly two frames of a file fit into a pipe
// without a reader, so that no rest of a frame waits for a reader.
func TestPipeHoldsFrames(t *testing.T) {
	conn, theirs, err := guest.NewPipes()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	defer theirs[0].Close()
	defer theirs[1].Close()
	raw, err := theirs[1].SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	write := func(size int) (n int, err error) {
		_ = raw.Control(func(fd uintptr) { n, err = unix.Write(int(fd), make([]byte, size)) })
		return n, err
	}
	for range 2 {
		if n, err := write(wire.BulkFrame); n != wire.BulkFrame || err != nil {
			t.Errorf("%d of %d bytes: %v", n, wire.BulkFrame, err)
		}
	}
	if _, err := write(1); err != unix.EAGAIN {
		t.Errorf("a full pipe takes one more: %v", err)
	}
}

// TestWakenLiar restores a guest that answers with anything but the nonce, or
// not at all.
func TestWakenLiar(t *testing.T) {
	door, conn := hostile(t, func(_, _ io.Reader, out io.Writer) {
		junk := make([]byte, 1<<16)
		for {
			if _, err := out.Write(junk); err != nil {
				return
			}
		}
	})
	if err := guest.Waken(testContext(t), door, conn); err == nil {
		t.Error("a wrong answer was accepted")
	}
	conn.Close()
	door, conn = hostile(t, func(door, _ io.Reader, _ io.Writer) { _, _ = io.ReadAll(door) })
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := guest.Waken(ctx, door, conn); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
