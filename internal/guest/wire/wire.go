// Package wire is the protocol between Atoll's guest and its client: a preface,
// and then frames that carry any number of concurrent operations over one
// reliable byte stream.
//
// It is a custom multiplexer because of the shape of an operation: a running
// command has three streams and an exit status, and each must get through even
// if the others are not read. Every operation therefore has lanes with separate
// credit, and messages that need none. A sender writes each frame with one
// system call from its own goroutine. A waiting operation needs no timer and no
// goroutine. Inside a sandbox, wake-ups and system calls are the main cost.
//
// The client does not trust incoming data: it checks the size of a frame before
// it allocates memory for it, and an operation never buffers more than its
// window.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// A process becomes a guest if its name is Argv0 or Path. Path is where the
// image with the guest's program is mounted until it runs.
const (
	Argv0 = "atoll-guest"
	Path  = "/dev/.atoll/guest"
)

// ConnectArg, as the first argument of a guest, hands the descriptors of a
// connection to the guest that is process 1, and exits.
const ConnectArg = "connect"

// NestedPrefix is the prefix of the path of a guest that is not process 1, in a
// sandbox of another product.
const NestedPrefix = "/var/lib/atoll/guest-"

// The first argument of such a guest. JoinArg connects the standard input and
// output of a process with the guest, and starts the guest if it does not run.
// NestedArg runs the guest itself.
const (
	JoinArg   = "join"
	NestedArg = "nested"
)

// FeedEnv is the environment variable that makes a joining process use text.
// Its value is the path of a named pipe that the process creates and that takes
// lines instead of bytes on standard input. See package agent.
const FeedEnv = "ATOLL_FEED"

// A joining process reads frames from its standard input: a length of four
// bytes, big-endian, and the data. An empty frame is a keepalive. A frame must
// arrive within JoinSilence.
const (
	JoinHeader  = 4
	MaxJoin     = 1 << 20
	JoinSilence = 90 * time.Second
)

// The descriptors that a guest is started with. A connection is either one
// socket, LinkIn, or two pipes. A sandbox that can be restored from a snapshot
// needs pipes, because only pipes can be replaced while the guest has them
// open. It also needs two more descriptors, which package agent describes.
const (
	LinkIn   = 3 // from the client
	LinkOut  = 4 // to the client; only with pipes
	Door     = 5 // tells a guest that it was restored
	DoorKept = 6 // the other end of Door, so that Door never reaches its end
)

// SparseRecord is a PAX record of an archive member that contains only the data
// of a file with holes. It holds the file's size, a space, and the ranges of
// the data as OFFSET:LENGTH,… in order.
const SparseRecord = "ATOLL.sparse"

// NonceLen is the length in bytes of the message on the door: a random value
// that both sides repeat on the connection's pipes to find where the data after
// the restore starts.
const NonceLen = 32

// HostArg, as the first argument of a guest, makes it run plain processes on
// the machine itself. The second argument is the directory that file operations
// are confined to. The guest exits when its connection closes, and ends all its
// processes.
const HostArg = "host"

// Version changes whenever the protocol becomes incompatible.
const Version = 1

// Sizes that both sides rely on.
const (
	// MaxData is the most that one data frame carries.
	MaxData = 128 << 10
	// Window is the number of unconsumed bytes that a lane may have in transit.
	Window = 1 << 20
	// BulkData and BulkWindow replace MaxData and Window for operations that move
	// whole files, because each frame and each credit wakes a process. They apply
	// if both sides support them: guests of earlier versions keep running.
	BulkData   = 512 << 10
	BulkWindow = 4 << 20
	// BulkFrame is the largest such frame that is sent, with its header. Two fill
	// a pipe of SocketBuffer; the end of a longer one would have to wait.
	BulkFrame = BulkData
	// overwrites is added to BulkData in the preface by a side that supports
	// writing into existing files.
	overwrites = 1
	// MaxOpen limits a request, MaxReply a message or a result, in bytes.
	MaxOpen  = 8 << 20
	MaxReply = 256 << 10
	// Lanes is the number of byte streams an operation has in each direction.
	Lanes = 2
	// HeaderLen is the size of the header before a frame's payload.
	HeaderLen = 12
	// SocketBuffer is the buffer size of a connection's sockets, so that a frame
	// is written at once.
	SocketBuffer = 1 << 20
	// LogHeaderLen is the size of the header before every piece of a log.
	LogHeaderLen = 16
	// maxMessages limits the unread messages of one operation.
	maxMessages = 8
)

// Kinds of frames.
const (
	kindOpen   = 1 + iota // client: a new operation; the payload is method and request
	kindData              // both: bytes of a lane
	kindEOF               // both: no more bytes on a lane
	kindCredit            // both: the payload, four bytes, is the number of bytes consumed
	kindCancel            // client: stop the operation
	kindMsg               // guest: a message during the operation
	kindEnd               // guest: the outcome; nothing follows on this operation
)

// Method names an operation.
type Method byte

// The operations.
const (
	Configure Method = 1 + iota
	Exec
	Attach
	Logs
	Processes
	Kill
	Resize
	Stat
	List
	Read
	Write
	Mkdir
	Remove
	Move
	Export
	Import
	Watch
	Dial
	ImportLayer
	// Of later guests. An earlier guest answers that it does not know them.
	ExecHeld
	Rejoin
	LetGo
	Prewarm
	Describe
	ShowLimits
	Background
	Sync
)

// isBulk reports whether an operation moves whole files.
func (m Method) isBulk() bool {
	switch m {
	case Read, Write, Export, Import, ImportLayer:
		return true
	}
	return false
}

// ErrProtocol is wrapped by every error about malformed or unexpected data.
var ErrProtocol = errors.New("guest protocol violated")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// VersionError means that the other side uses another version of the protocol.
type VersionError struct{ Theirs uint32 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the other side speaks version %d of the guest protocol, this one %d", e.Theirs, Version)
}

const (
	prefaceLen   = 16
	prefaceMagic = "atollgst"
)

// Peer describes the other side.
type Peer struct{ bulk, overwrites bool }

// WritePreface writes the writer's protocol version, the size of the data
// frames it accepts, and its optional features, which earlier versions do not
// announce.
func WritePreface(w io.Writer) error {
	var b [prefaceLen]byte
	copy(b[:], prefaceMagic)
	binary.LittleEndian.PutUint32(b[8:], Version)
	binary.LittleEndian.PutUint32(b[12:], BulkData|overwrites)
	_, err := w.Write(b[:])
	return err
}

// ReadPreface reads the other side's preface. Another version is a
// *VersionError.
func ReadPreface(r io.Reader) (Peer, error) {
	var b [prefaceLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Peer{}, err
	}
	if string(b[:8]) != prefaceMagic {
		return Peer{}, violation("not a guest")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != Version {
		return Peer{}, &VersionError{Theirs: v}
	}
	more := binary.LittleEndian.Uint32(b[12:])
	return Peer{bulk: more >= BulkData, overwrites: more >= BulkData && more&overwrites != 0}, nil
}

// header is the fixed beginning of every frame.
type header struct {
	size uint32 // of the payload
	op   uint32
	kind byte
	lane byte
}

func (h header) put(b []byte) {
	binary.LittleEndian.PutUint32(b, h.size)
	binary.LittleEndian.PutUint32(b[4:], h.op)
	b[8], b[9], b[10], b[11] = h.kind, h.lane, 0, 0
}

func parseHeader(b []byte) header {
	return header{
		size: binary.LittleEndian.Uint32(b),
		op:   binary.LittleEndian.Uint32(b[4:]),
		kind: b[8],
		lane: b[9],
	}
}
