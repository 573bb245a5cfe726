package guest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"time"

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
func Waken(ctx context.Context, door io.Writer, conn io.ReadWriteCloser) error {
	return greet(ctx, door, nil, conn)
}

// The calls of a host on the door of a virtual machine; see package wire.
const (
	DoorLink     = wire.DoorLink
	DoorRestored = wire.DoorRestored
)

// Machine configures the guest of a virtual machine.
type Machine = wire.Machine

// What the guest of a virtual machine expects; see package wire.
const (
	MachineArg   = wire.MachineArg
	MachineLinks = wire.MachineLinks
	ModulesDir   = wire.ModulesDir
	DiskImage    = wire.DiskImage
	DiskFiles    = wire.DiskFiles
	PortLink     = wire.PortLink
	PortDoor     = wire.PortDoor
)

// Meet tells the guest of a virtual machine through its door to use conn, which
// is connected with a link, and no earlier connection on that link. It waits
// until the guest does. The kind of call is DoorLink or DoorRestored. The caller
// closes the door. After an error conn cannot be used.
func Meet(ctx context.Context, kind byte, link int, door io.Writer, conn io.ReadWriteCloser) error {
	return greet(ctx, door, doorCall(kind, link), conn)
}

// SetTime gives the guest of a virtual machine the time, after a pause.
func SetTime(door io.Writer) error {
	_, err := door.Write(append(doorCall(wire.DoorTime, 0), make([]byte, wire.NonceLen)...))
	return err
}

// Halt tells the guest of a virtual machine to write everything to the disk and
// to stop the machine. It does not wait for that.
func Halt(door io.Writer) error {
	_, err := door.Write(append(doorCall(wire.DoorStop, 0), make([]byte, wire.NonceLen)...))
	return err
}

// doorCall returns a call without its nonce.
func doorCall(kind byte, link int) []byte {
	return binary.LittleEndian.AppendUint64([]byte{kind, byte(link)}, uint64(time.Now().UnixNano()))
}

// greet sends a call and a nonce through the door, and exchanges the nonce on
// the connection.
func greet(ctx context.Context, door io.Writer, call []byte, conn io.ReadWriteCloser) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	nonce := make([]byte, wire.NonceLen)
	_, err := rand.Read(nonce)
	if err == nil {
		_, err = door.Write(append(call, nonce...))
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
