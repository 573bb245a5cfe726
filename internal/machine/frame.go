package machine

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// kind says what a frame is for.
type kind uint64

const (
	kindOpen  kind = 1 // asks for a connection with a new id; answered by a state
	kindData  kind = 2 // bytes, at an offset
	kindState kind = 3 // what was received and consumed
	kindQuery kind = 4 // asks for the state; it also shows that the sender lives
	kindReset kind = 5 // the connection is over, with a reason
)

// Code classifies the reason of a reset.
type Code uint64

// The codes. Their numbers are part of the protocol.
const (
	CodeOver     Code = 0  // the connection ended normally
	CodeDraining Code = 6  // refused before anything was done; it can be repeated
	CodeProtocol Code = 7  // a frame that cannot be
	CodeStream   Code = 8  // the connection does not exist, or failed
	CodeOffline  Code = 9  // the machine does not answer; never sent by a machine
	CodeFenced   Code = 10 // another process serves the machine now
)

// frame is the envelope of everything that the two sides exchange about one
// connection. The id of the connection is in the subject.
type frame struct {
	kind kind
	// generation counts the sender's attachments to the connection. Frames of an
	// earlier one are ignored.
	generation uint64
	offset     uint64 // data: of its first byte; query: how far the sender has sent; state: how far it was received
	consumed   uint64 // how far the receiver's user has read
	upto       uint64 // state: the offset of the query that it answers
	fin        bool   // data: nothing follows it
	closed     bool   // the sender reads nothing any more
	code       Code   // reset
	text       string // reset: the reason, for people
	data       []byte
}

// Numbers of the fields of a frame.
const (
	fieldKind, fieldGeneration, fieldOffset, fieldConsumed, fieldUpto = 1, 2, 3, 4, 5
	fieldFin, fieldClosed, fieldCode, fieldText, fieldData            = 6, 7, 8, 9, 10
)

// overhead is more than the size of a frame without its data.
const overhead = 128

func (f *frame) encode() []byte {
	b := make([]byte, 0, overhead+len(f.data)+len(f.text))
	put := func(field protowire.Number, v uint64) {
		if v != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
		}
	}
	put(fieldKind, uint64(f.kind))
	put(fieldGeneration, f.generation)
	put(fieldOffset, f.offset)
	put(fieldConsumed, f.consumed)
	put(fieldUpto, f.upto)
	put(fieldFin, protowire.EncodeBool(f.fin))
	put(fieldClosed, protowire.EncodeBool(f.closed))
	put(fieldCode, uint64(f.code))
	if f.text != "" {
		b = protowire.AppendString(protowire.AppendTag(b, fieldText, protowire.BytesType), f.text)
	}
	if len(f.data) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldData, protowire.BytesType), f.data)
	}
	return b
}

var errFrame = errors.New("not a frame")

// decode parses a frame. Unknown fields are ignored. The data is part of b.
func decode(b []byte) (f frame, err error) {
	for len(b) > 0 {
		field, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return f, errFrame
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return f, errFrame
			}
			f.set(field, v)
			b = b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return f, errFrame
			}
			switch field {
			case fieldText:
				f.text = string(v)
			case fieldData:
				f.data = v
			}
			b = b[n:]
		default:
			n := protowire.ConsumeFieldValue(field, typ, b)
			if n < 0 {
				return f, errFrame
			}
			b = b[n:]
		}
	}
	if f.kind < kindOpen || f.kind > kindReset {
		return f, errFrame
	}
	return f, nil
}

func (f *frame) set(field protowire.Number, v uint64) {
	switch field {
	case fieldKind:
		f.kind = kind(v)
	case fieldGeneration:
		f.generation = v
	case fieldOffset:
		f.offset = v
	case fieldConsumed:
		f.consumed = v
	case fieldUpto:
		f.upto = v
	case fieldFin:
		f.fin = protowire.DecodeBool(v)
	case fieldClosed:
		f.closed = protowire.DecodeBool(v)
	case fieldCode:
		f.code = Code(v)
	}
}
