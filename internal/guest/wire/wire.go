// Package wire is the language that Atoll's guest and its client speak: a
// preface, and then frames that carry any number of operations at once over
// one reliable byte stream.
//
// It is a small multiplexer of its own because of what an operation is here: a
// running command has three streams and an exit, and each must get through
// when nobody reads the others. Every operation therefore has lanes with
// credit of their own, and messages that need none. It writes each frame with
// one system call, from the goroutine that has something to say, and needs no
// timer and no goroutine for an operation that waits: inside a sandbox, wake-ups
// and system calls are what costs.
//
// The client trusts nothing that arrives: the size of a frame is checked before
// memory is made for it, and an operation can never hold more than its window.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Argv0 is what the name of the process must be for it to become a guest, or
// Path, where the image with its program is mounted until it runs.
const (
	Argv0 = "atoll-guest"
	Path  = "/dev/.atoll/guest"
)

// ConnectArg, as the first argument of a guest, hands the descriptors of a
// connection to the guest that is process 1, and ends.
const ConnectArg = "connect"

// NestedPrefix begins the path of a guest that runs inside a sandbox which
// somebody else's software keeps, and where it is not process 1.
const NestedPrefix = "/var/lib/atoll/guest-"

// The first argument of such a guest: JoinArg connects the standard input and
// output of a process with it, starting it first if it does not run, and
// NestedArg is the guest itself.
const (
	JoinArg   = "join"
	NestedArg = "nested"
)

// FeedEnv is the variable with which a process that joins speaks in text: it is
// the path of a pipe that the process makes, and into which lines are written
// instead of bytes to its standard input. See package agent.
const FeedEnv = "ATOLL_FEED"

// On its standard input a process that joins takes frames: the length of what
// follows in four bytes, big-endian, and that. An empty one is a keepalive; one
// must arrive within JoinSilence.
const (
	JoinHeader  = 4
	MaxJoin     = 1 << 20
	JoinSilence = 90 * time.Second
)

// The descriptors that a guest is born with. A connection is either one socket,
// LinkIn, or two pipes. A sandbox that can be restored from a snapshot needs
// pipes, because only they can be replaced by others under a guest that has
// them open, and two more descriptors: see package agent for what they do.
const (
	LinkIn   = 3 // what the client says
	LinkOut  = 4 // what the guest says; only with pipes
	Door     = 5 // on which a restored guest is told so
	DoorKept = 6 // the other end of Door, so that it never ends
)

// SparseRecord is a PAX record of a member of an archive that holds only the
// data of a file with holes: its size, a space, and where the pieces of data
// belong, as OFFSET:LENGTH,… in order.
const SparseRecord = "ATOLL.sparse"

// NonceLen is the length of what is said on the door: something never said
// before, that both sides repeat on the pipes of the connection to find where
// its new life begins.
const NonceLen = 32

// HostArg, as the first argument of a guest, makes it serve plain processes on
// the machine itself: its second argument is the directory that file
// operations are confined to. It ends, with all its processes, when its
// connection does.
const HostArg = "host"

// Version changes whenever the two sides would no longer understand each other.
const Version = 1

// Sizes that both sides rely on.
const (
	// MaxData is the most that one data frame carries.
	MaxData = 128 << 10
	// Window is how much of a lane may be under way without being consumed.
	Window = 1 << 20
	// BulkData and BulkWindow are the same for operations that move whole files,
	// where each frame and each credit wakes somebody up. They hold between two
	// sides that have both said so: guests of earlier versions run on.
	BulkData   = 512 << 10
	BulkWindow = 4 << 20
	// BulkFrame is the most that is sent as such a frame, with its header: two
	// fill a pipe of SocketBuffer, where the end of a longer one would have to wait.
	BulkFrame = BulkData
	// overwrites is added to BulkData by a side that knows requests to write into
	// files instead of replacing them.
	overwrites = 1
	// MaxOpen bounds a request, MaxReply a message or a result.
	MaxOpen  = 8 << 20
	MaxReply = 256 << 10
	// Lanes is the number of byte streams an operation has in each direction.
	Lanes = 2
	// HeaderLen is the room a frame needs before its payload.
	HeaderLen = 12
	// SocketBuffer is what the sockets of a connection should buffer, so that a
	// frame is written at once.
	SocketBuffer = 1 << 20
	// LogHeaderLen precedes every piece of a log.
	LogHeaderLen = 16
	// maxMessages bounds the messages of one operation that wait to be read.
	maxMessages = 8
)

// Kinds of frames.
const (
	kindOpen   = 1 + iota // client: a new operation; the payload is method and request
	kindData              // both: bytes of a lane
	kindEOF               // both: no more bytes on a lane
	kindCredit            // both: the payload, four bytes, says how many bytes were consumed
	kindCancel            // client: the operation is wanted no more
	kindMsg               // guest: something to know while the operation goes on
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
	// Of later guests. An earlier one answers that it does not know them.
	ExecHeld
	Rejoin
	LetGo
	Prewarm
	Describe
)

// isBulk reports whether an operation moves whole files.
func (m Method) isBulk() bool {
	switch m {
	case Read, Write, Export, Import, ImportLayer:
		return true
	}
	return false
}

// ErrProtocol is wrapped by every error about bytes that make no sense.
var ErrProtocol = errors.New("guest protocol violated")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// VersionError is the outcome of meeting a guest of another Atoll.
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

// WritePreface says which version the writer speaks, how much data it takes in a
// frame, and what else it knows, of which earlier versions say nothing.
func WritePreface(w io.Writer) error {
	var b [prefaceLen]byte
	copy(b[:], prefaceMagic)
	binary.LittleEndian.PutUint32(b[8:], Version)
	binary.LittleEndian.PutUint32(b[12:], BulkData|overwrites)
	_, err := w.Write(b[:])
	return err
}

// ReadPreface finds out what the other side speaks. Another version is a
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
