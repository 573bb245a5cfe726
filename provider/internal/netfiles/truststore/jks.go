package truststore

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"unicode/utf16"
)

// A JKS consists of a header (magic, version, number of entries), entries, and
// a digest of all of it with a password, which readers check if they know the
// password. An entry is a tag, an alias, a time in milliseconds, and then a
// certificate with the name of its type, or a key with a list of certificates.
// Numbers are big-endian.
var (
	jksMagic   = []byte{0xfe, 0xed, 0xfe, 0xed}
	jksVersion = uint32(2)
)

const (
	jksHead     = 12
	jksKey      = 1
	jksCert     = 2
	jksPassword = "changeit" // the default password of public stores
	jksType     = "X.509"
)

func editJKS(store, cert []byte, f change) ([]byte, error) {
	if len(store) < jksHead+sha1.Size || binary.BigEndian.Uint32(store[4:]) != jksVersion {
		return nil, ErrForm
	}
	r := &reader{rest: store[jksHead : len(store)-sha1.Size]}
	var entries [][]byte
	for range binary.BigEndian.Uint32(store[8:]) {
		e := r.entry()
		if r.short {
			return nil, ErrForm
		}
		entries = append(entries, e)
	}
	if len(r.rest) > 0 {
		return nil, ErrForm
	}
	entries = f(entries, jksEntry(cert))
	out := binary.BigEndian.AppendUint32(bytes.Clone(store[:8]), uint32(len(entries)))
	out = append(out, bytes.Join(entries, nil)...)
	return append(out, jksDigest(out)...), nil
}

func jksEntry(cert []byte) []byte {
	e := binary.BigEndian.AppendUint32(nil, jksCert)
	e = appendText(e, Alias)
	e = binary.BigEndian.AppendUint64(e, 0) // the time of creation does not matter
	e = appendText(e, jksType)
	e = binary.BigEndian.AppendUint32(e, uint32(len(cert)))
	return append(e, cert...)
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// jksDigest returns the digest at the end of a store. It detects damage but not
// deliberate changes.
func jksDigest(store []byte) []byte {
	h := sha1.New()
	for _, c := range utf16.Encode([]rune(jksPassword)) {
		h.Write([]byte{byte(c >> 8), byte(c)})
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(store)
	return h.Sum(nil)
}

// reader iterates over the entries of a store. After malformed data it stays in
// the error state.
type reader struct {
	rest  []byte
	short bool
}

// entry takes one entry.
func (r *reader) entry() []byte {
	all := r.rest
	tag := r.number(4)
	r.skip(r.number(2)) // alias
	r.skip(8)           // time
	switch tag {
	case jksCert:
		r.cert()
	case jksKey:
		r.skip(r.number(4))
		for range r.number(4) {
			if r.cert(); r.short {
				break
			}
		}
	default:
		r.short = true
	}
	return all[:len(all)-len(r.rest)]
}

func (r *reader) cert() {
	r.skip(r.number(2)) // type
	r.skip(r.number(4))
}

func (r *reader) number(size int) (n uint64) {
	b := r.rest
	if r.skip(uint64(size)); r.short {
		return 0
	}
	for _, c := range b[:size] {
		n = n<<8 | uint64(c)
	}
	return n
}

func (r *reader) skip(n uint64) {
	if r.short = r.short || n > uint64(len(r.rest)); !r.short {
		r.rest = r.rest[n:]
	}
}
