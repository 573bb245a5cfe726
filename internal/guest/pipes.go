package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// The descriptor numbers that a guest which can be restored must be started
// with.
const (
	LinkIn   = wire.LinkIn
	LinkOut  = wire.LinkOut
	Door     = wire.Door
	DoorKept = wire.DoorKept
)

// SparseRecord marks a sparse file in an archive; see package wire.
const SparseRecord = wire.SparseRecord

// Pipes is a connection to a guest in a sandbox. It consists of two pipes
// because these, unlike a socket, can be replaced while the guest has them
// open.
type Pipes struct{ in, out *os.File }

// NewPipes creates a connection: one end for Dial, and the two files to become
// LinkIn and LinkOut of a guest. The caller closes the files after the guest
// has started.
func NewPipes() (conn *Pipes, theirs [2]*os.File, err error) {
	guestIn, ourOut, err := newPipe()
	if err != nil {
		return nil, theirs, err
	}
	ourIn, guestOut, err := newPipe()
	if err != nil {
		guestIn.Close()
		ourOut.Close()
		return nil, theirs, err
	}
	return &Pipes{ourIn, ourOut}, [2]*os.File{guestIn, guestOut}, nil
}

// newPipe creates a pipe with the largest buffer that needs no privilege.
func newPipe() (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	raw, err := w.SyscallConn()
	if err != nil {
		r.Close()
		w.Close()
		return nil, nil, err
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, wire.SocketBuffer)
	})
	return r, w, nil
}

func (p *Pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *Pipes) Write(b []byte) (int, error) { return p.out.Write(b) }

// Close closes both directions and unblocks their readers and writers.
func (p *Pipes) Close() error { return errors.Join(p.in.Close(), p.out.Close()) }

// Waken tells a restored guest through its door that it was restored, and waits
// until the guest uses conn and no earlier connection. The caller closes the
// door. After an error conn cannot be used.
func Waken(ctx context.Context, door io.Writer, conn *Pipes) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	nonce := make([]byte, wire.NonceLen)
	_, err := rand.Read(nonce)
	if err == nil {
		_, err = door.Write(nonce)
	}
	if err == nil {
		err = wire.SkipPast(conn, nonce)
	}
	if err == nil {
		_, err = conn.Write(nonce)
	}
	if !stop() && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return classify("guest.waken", "", err)
	}
	return nil
}
