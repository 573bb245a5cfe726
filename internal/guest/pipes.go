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

// The descriptors of a guest that can be restored, as a program that starts
// one has to number them.
const (
	LinkIn   = wire.LinkIn
	LinkOut  = wire.LinkOut
	Door     = wire.Door
	DoorKept = wire.DoorKept
)

// SparseRecord marks a sparse file in an archive; see package wire.
const SparseRecord = wire.SparseRecord

// Pipes is a connection to a guest in a sandbox: two pipes, which unlike a
// socket can be exchanged under a guest that has them open.
type Pipes struct{ in, out *os.File }

// NewPipes makes a connection: one end for Dial, and the two files to become
// LinkIn and LinkOut of a guest, which the caller closes after that.
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

// newPipe makes a pipe that holds as much as everybody may ask for.
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

// Close closes both directions and ends what waits for them.
func (p *Pipes) Close() error { return errors.Join(p.in.Close(), p.out.Close()) }

// Waken tells a guest that was just restored that it was, by its door, and
// waits until it speaks on conn and on nothing that it spoke on before. The
// caller closes the door. After an error conn is of no use.
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
