package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"io"
	"net/url"
	"slices"
	"strings"
)

// MinScrub is the minimum length of a value, or encoded form, to be searched
// for: shorter ones occur by chance.
const MinScrub = 6

// Forms returns the encodings in which a value may occur in a message: raw,
// escaped for a URL, JSON or HTML, in hexadecimal, and in base64 at any offset.
func Forms(v Value) [][]byte {
	s := string(v.Reveal())
	forms := [][]byte{
		v.Reveal(), []byte(url.QueryEscape(s)), []byte(url.PathEscape(s)), lowerEscapes(url.QueryEscape(s)), lowerEscapes(url.PathEscape(s)),
		[]byte(html.EscapeString(s)), []byte(hex.EncodeToString(v.Reveal())), bytes.ToUpper([]byte(hex.EncodeToString(v.Reveal()))),
	}
	for _, escape := range []bool{true, false} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(escape)
		if e.Encode(s) == nil {
			doc := bytes.Trim(b.Bytes(), "\n")
			forms = append(forms, doc[1:len(doc)-1], bytes.ReplaceAll(doc[1:len(doc)-1], []byte("/"), []byte(`\/`)))
		}
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			forms = append(forms, inBase64(enc, v.Reveal(), shift))
		}
	}
	var out [][]byte
	for _, f := range forms {
		if len(f) >= MinScrub && !slices.ContainsFunc(out, func(o []byte) bool { return bytes.Equal(o, f) }) {
			out = append(out, f)
		}
	}
	return out
}

// inBase64 returns the base64 characters that depend only on raw, if shift
// bytes (modulo 3) precede it and any number follow.
func inBase64(enc *base64.Encoding, raw []byte, shift int) []byte {
	whole := enc.EncodeToString(append(make([]byte, shift), raw...))
	first := []int{0, 2, 3}[shift]
	last := (shift + len(raw)) * 8 / 6
	if last <= first {
		return nil
	}
	return []byte(whole[first:last])
}

// lowerEscapes returns s with the hex digits of URL escapes in lower case.
func lowerEscapes(s string) []byte {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return b
}

// Matcher finds any of many byte strings. It is immutable and safe for
// concurrent use.
type Matcher struct {
	byStart map[[4]byte][]int // longest first
	starts  [256]bool
	needles [][]byte
	longest int
}

// NewMatcher returns a Matcher. Needles shorter than MinScrub are ignored; Find
// and Reader number the others in the given order.
func NewMatcher(needles [][]byte) *Matcher {
	m := &Matcher{byStart: map[[4]byte][]int{}, needles: needles}
	for i, n := range needles {
		if len(n) < MinScrub {
			continue
		}
		key := [4]byte(n[:4])
		m.byStart[key] = append(m.byStart[key], i)
		m.starts[n[0]] = true
		m.longest = max(m.longest, len(n))
	}
	for _, l := range m.byStart {
		slices.SortStableFunc(l, func(a, b int) int { return len(needles[b]) - len(needles[a]) })
	}
	return m
}

// Needles returns the needles. They must not be changed.
func (m *Matcher) Needles() [][]byte { return m.needles }

// Find returns the position of the first needle in b, and its number; needle is
// -1 if there is none.
func (m *Matcher) Find(b []byte) (at, needle int) {
	for i := 0; i+MinScrub <= len(b); i++ {
		if !m.starts[b[i]] {
			continue
		}
		for _, n := range m.byStart[[4]byte(b[i:i+4])] {
			if bytes.HasPrefix(b[i:], m.needles[n]) {
				return i, n
			}
		}
	}
	return len(b), -1
}

// Replace returns b with all needles replaced. It does not change b, and
// returns b itself if nothing matches.
func (m *Matcher) Replace(b []byte, with func(needle int) []byte) []byte {
	at, n := m.Find(b)
	if n < 0 {
		return b
	}
	var out []byte
	for ; n >= 0; at, n = m.Find(b) {
		out = append(append(out, b[:at]...), with(n)...)
		b = b[at+len(m.needles[n]):]
	}
	return append(out, b...)
}

// Scrubber removes secret values from messages.
type Scrubber struct {
	m     *Matcher
	names *Matcher // the values in lower case
	masks [][]byte
}

// NewScrubber returns a Scrubber for all forms of values.
func NewScrubber(values ...Value) *Scrubber {
	var forms [][]byte
	for _, v := range values {
		forms = append(forms, Forms(v)...)
	}
	s := &Scrubber{m: NewMatcher(forms), names: NewMatcher(Lower(forms)), masks: make([][]byte, len(forms))}
	for i, f := range forms {
		s.masks[i] = bytes.Repeat([]byte{'*'}, len(f))
	}
	return s
}

// Lower returns forms in lower case, for text whose case is not preserved.
func Lower(forms [][]byte) [][]byte {
	low := make([][]byte, len(forms))
	for i, f := range forms {
		low[i] = bytes.ToLower(f)
	}
	return low
}

// InName reports whether a header name contains a value, ignoring case, because
// HTTP does not preserve the case of names.
func (s *Scrubber) InName(name string) bool {
	_, n := s.names.Find([]byte(strings.ToLower(name)))
	return n >= 0
}

// Bytes returns b with values replaced by asterisks of the same length. It does
// not change b.
func (s *Scrubber) Bytes(b []byte) []byte {
	return s.m.Replace(b, func(n int) []byte { return s.masks[n] })
}

// Reader returns r with values replaced as by Bytes, including values that span
// several reads.
func (s *Scrubber) Reader(r io.Reader) io.Reader {
	return s.m.Reader(r, func(n int) ([]byte, error) { return s.masks[n], nil })
}

// Reader returns r with needles replaced by the result of with. An error of
// with ends the stream. To find needles that span several reads, it delays up
// to the length of a needle less one byte.
func (m *Matcher) Reader(r io.Reader, with func(needle int) ([]byte, error)) io.Reader {
	return &reader{r: r, m: m, with: with}
}

type reader struct {
	r    io.Reader
	m    *Matcher
	with func(int) ([]byte, error)
	buf  []byte // backing array of in
	in   []byte // read, not yet searched
	out  []byte // ready to be returned
	err  error
}

const readSize = 32 << 10

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.out) == 0 {
		if r.err != nil && len(r.in) == 0 {
			return 0, r.err
		}
		if r.err == nil {
			r.fill()
		}
		r.search()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// fill reads once.
func (r *reader) fill() {
	old := r.in
	if need := len(old) + readSize; cap(r.buf) < need {
		r.buf = make([]byte, 2*need)
	}
	r.in = r.buf[:copy(r.buf, old)]
	n, err := r.r.Read(r.buf[len(r.in) : len(r.in)+readSize])
	r.in, r.err = r.buf[:len(r.in)+n], err
}

// search moves processed bytes from in to out.
func (r *reader) search() {
	r.out = r.out[:0]
	for {
		at, n := r.m.Find(r.in)
		keep := 0
		if r.err == nil {
			keep = r.m.unsettled(r.in)
		}
		if n >= 0 {
			// A needle that begins before this one, or a longer one that begins here,
			// may not have arrived completely.
			if first := len(r.in) - keep; first <= at {
				r.release(first)
				return
			}
			replacement, err := r.with(n)
			r.release(at)
			r.in = r.in[len(r.m.needles[n]):]
			if err != nil {
				r.in, r.err = nil, err
				return
			}
			r.out = append(r.out, replacement...)
			continue
		}
		r.release(len(r.in) - keep)
		return
	}
}

// release moves the first n bytes to out.
func (r *reader) release(n int) {
	r.out = append(r.out, r.in[:n]...)
	r.in = r.in[n:]
}

// unsettled returns how many bytes at the end of b may be the beginning of a
// needle.
func (m *Matcher) unsettled(b []byte) int {
	for n := min(len(b), m.longest-1); n > 0; n-- {
		tail := b[len(b)-n:]
		if !m.starts[tail[0]] {
			continue
		}
		if n < 4 {
			for key := range m.byStart {
				if bytes.HasPrefix(key[:], tail) {
					return n
				}
			}
			continue
		}
		for _, i := range m.byStart[[4]byte(tail[:4])] {
			if len(m.needles[i]) > n && bytes.HasPrefix(m.needles[i], tail) {
				return n
			}
		}
	}
	return 0
}
