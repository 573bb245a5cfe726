package wire

import (
	"encoding/binary"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

// Encoder appends values to a request or an answer. Strings are byte strings:
// paths, arguments and environment need not be UTF-8.
type Encoder struct{ B []byte }

// Uint appends an unsigned number.
func (e *Encoder) Uint(v uint64) { e.B = binary.AppendUvarint(e.B, v) }

// Int appends a signed number.
func (e *Encoder) Int(v int64) { e.B = binary.AppendVarint(e.B, v) }

// Bool appends a truth value.
func (e *Encoder) Bool(v bool) {
	if v {
		e.B = append(e.B, 1)
	} else {
		e.B = append(e.B, 0)
	}
}

// String appends a byte string with its length.
func (e *Encoder) String(s string) {
	e.Uint(uint64(len(s)))
	e.B = append(e.B, s...)
}

// Bytes appends a byte string with its length.
func (e *Encoder) Bytes(b []byte) {
	e.Uint(uint64(len(b)))
	e.B = append(e.B, b...)
}

// Strings appends a list.
func (e *Encoder) Strings(list []string) {
	e.Uint(uint64(len(list)))
	for _, s := range list {
		e.String(s)
	}
}

// Time appends a point in time.
func (e *Encoder) Time(t time.Time) {
	e.Int(t.Unix())
	e.Int(int64(t.Nanosecond()))
}

// Decoder decodes untrusted bytes. After the first missing or malformed value
// all values are zero and Err is set.
type Decoder struct {
	B   []byte
	bad bool
}

// Err returns an error if a value was missing or malformed.
func (d *Decoder) Err() error {
	if d.bad {
		return violation("malformed message")
	}
	return nil
}

// End is Err, and also fails if bytes are left over.
func (d *Decoder) End() error {
	if len(d.B) > 0 {
		d.bad = true
	}
	return d.Err()
}

func (d *Decoder) fail() { d.bad, d.B = true, nil }

// Uint takes an unsigned number.
func (d *Decoder) Uint() uint64 {
	v, n := binary.Uvarint(d.B)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.B = d.B[n:]
	return v
}

// Int takes a signed number.
func (d *Decoder) Int() int64 {
	v, n := binary.Varint(d.B)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.B = d.B[n:]
	return v
}

// Bool takes a boolean.
func (d *Decoder) Bool() bool {
	if len(d.B) == 0 || d.B[0] > 1 {
		d.fail()
		return false
	}
	v := d.B[0] == 1
	d.B = d.B[1:]
	return v
}

// View takes bytes without copying them.
func (d *Decoder) View() []byte {
	n := d.Uint()
	if n > uint64(len(d.B)) {
		d.fail()
		return nil
	}
	b := d.B[:n:n]
	d.B = d.B[n:]
	return b
}

// String takes bytes.
func (d *Decoder) String() string { return string(d.View()) }

// Strings takes a list. Its length is limited by the remaining bytes.
func (d *Decoder) Strings() []string {
	n := d.Uint()
	if n > uint64(len(d.B)) {
		d.fail()
		return nil
	}
	list := make([]string, 0, min(n, 1024))
	for range n {
		list = append(list, d.String())
	}
	if d.bad || n == 0 {
		return nil
	}
	return list
}

// Time takes a point in time. It rejects times that no file or process can
// have.
func (d *Decoder) Time() time.Time {
	sec, nsec := d.Int(), d.Int()
	const most = 1 << 40
	if sec > most || sec < -most || nsec < 0 || nsec >= 1e9 {
		d.fail()
		return time.Time{}
	}
	return time.Unix(sec, nsec)
}

// RemoteError is an error reported by the guest. Its texts are safe to print:
// the decoder limits their length and removes control characters.
type RemoteError struct {
	Code    sandbox.Code
	Subject string
	Message string
}

func (e *RemoteError) Error() string {
	if e.Subject == "" {
		return e.Message
	}
	return e.Subject + ": " + e.Message
}

func (e *RemoteError) append(b []byte) []byte {
	enc := Encoder{B: b}
	enc.String(string(e.Code))
	enc.String(clip(e.Subject))
	enc.String(clip(e.Message))
	return enc.B
}

// guestCodes are the codes that a guest may report. A guest cannot report that
// its sandbox is gone.
var guestCodes = map[sandbox.Code]bool{
	sandbox.CodeInvalid: true, sandbox.CodeNotFound: true, sandbox.CodeAlreadyExists: true,
	sandbox.CodeConflict: true, sandbox.CodeDenied: true, sandbox.CodeExhausted: true,
	sandbox.CodeUnsupported: true, sandbox.CodeUnavailable: true,
}

func decodeRemoteError(b []byte) error {
	d := Decoder{B: b}
	e := &RemoteError{Code: sandbox.Code(d.String()), Subject: Printable(d.String()), Message: Printable(d.String())}
	if err := d.End(); err != nil {
		return err
	}
	if !guestCodes[e.Code] {
		e.Code = sandbox.CodeInternal
	}
	return e
}

const maxText = 1024

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

// Printable makes a guest's text safe to print: short, valid UTF-8, one line.
func Printable(s string) string {
	s = strings.ToValidUTF8(clip(s), "\uFFFD")
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) || r == utf8.RuneError || (r >= 0x200e && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			return '\uFFFD'
		}
		return r
	}, s)
}
