package secret

import (
	"bytes"
	"io"
	"slices"
	"sync"
)

// Redactor removes values in all their forms from the output of commands,
// including terminal output. It is safe for concurrent use.
type Redactor struct {
	m       *Matcher
	needles [][]byte
}

// NewRedactor returns a Redactor. Values shorter than MinScrub are ignored.
func NewRedactor(values ...Value) *Redactor {
	var needles [][]byte
	for _, v := range values {
		for _, f := range Forms(v) {
			needles = append(needles, f)
			if shown := bytes.ReplaceAll(f, []byte("\n"), []byte("\r\n")); len(shown) != len(f) {
				needles = append(needles, shown)
			}
		}
	}
	return &Redactor{NewMatcher(needles), needles}
}

// Empty reports that there are no values.
func (r *Redactor) Empty() bool { return len(r.needles) == 0 }

// shown is how many bytes of a possible value are returned immediately, so that
// a user sees what they type even if it begins like a secret. When a value
// arrives in pieces, fewer than this many bytes of it may be visible.
const shown = 3

// Redaction is one stream through a Redactor. It is not safe for concurrent
// use. It preserves lengths, so that offsets in the stream stay valid, and
// delays at most the longest form of a value.
type Redaction struct {
	r     *Redactor
	held  []byte // may be the beginning of a value
	given int    // bytes at the beginning of held that were already returned
	torn  bool   // the stream may begin inside a value
}

// Stream starts a stream. torn means that it does not begin at the beginning of
// the command's output, so it may begin inside a value.
func (r *Redactor) Stream(torn bool) *Redaction { return &Redaction{r: r, torn: torn} }

// Push takes the next bytes of the stream and returns processed bytes, with
// values replaced by asterisks. b is not retained; the caller owns the result.
func (s *Redaction) Push(b []byte) []byte {
	s.held = append(s.held, b...)
	return s.advance(false)
}

// End returns the delayed bytes, and resets the stream to a torn one.
func (s *Redaction) End() []byte {
	out := s.advance(true)
	s.torn = true
	return out
}

func (s *Redaction) advance(last bool) (out []byte) {
	if s.torn && len(s.held) > 0 {
		n, open := s.r.within(s.held)
		if open && !last {
			return s.show(nil)
		}
		s.torn = false
		out = s.mask(out, n)
	}
	for {
		at, n := s.r.m.Find(s.held)
		first := len(s.held)
		if !last {
			first -= s.r.m.unsettled(s.held)
		}
		if n < 0 || first <= at {
			return s.show(s.pass(out, first)) // a value that begins no later has not arrived completely
		}
		out = s.pass(out, at)
		out = s.mask(out, len(s.r.needles[n]))
	}
}

// within returns how many bytes at the beginning of b are a value, or the end
// of a value whose beginning was not seen. open means that more bytes may
// belong to it.
func (r *Redactor) within(b []byte) (n int, open bool) {
	for _, needle := range r.needles {
		for i := range needle {
			rest := needle[i:]
			switch {
			case len(rest) > len(b):
				open = open || bytes.HasPrefix(rest, b)
			case len(rest) < MinScrub || len(rest) <= n:
			case bytes.HasPrefix(b, rest):
				n = len(rest)
			}
		}
	}
	return n, open
}

// pass returns the first n held bytes.
func (s *Redaction) pass(out []byte, n int) []byte {
	return s.drop(append(out, s.held[min(s.given, n):n]...), n)
}

// mask returns asterisks for the first n held bytes.
func (s *Redaction) mask(out []byte, n int) []byte {
	return s.drop(append(out, bytes.Repeat([]byte{'*'}, n-min(s.given, n))...), n)
}

func (s *Redaction) drop(out []byte, n int) []byte {
	s.held, s.given = slices.Delete(s.held, 0, n), max(0, s.given-n)
	return out
}

// show returns the beginning of what stays held.
func (s *Redaction) show(out []byte) []byte {
	if n := min(shown, len(s.held)); n > s.given {
		out, s.given = append(out, s.held[s.given:n]...), n
	}
	return out
}

// Reader returns a reader without the values. torn is as for Stream.
func (r *Redactor) Reader(from io.Reader, torn bool) io.Reader {
	return &redactedReader{from: from, s: r.Stream(torn)}
}

// redactedReader wraps a Redaction; the lock protects against misuse.
type redactedReader struct {
	mu   sync.Mutex
	from io.Reader
	s    *Redaction
	buf  []byte
	out  []byte
	err  error
}

// Read implements io.Reader.
func (r *redactedReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buf == nil {
		r.buf = make([]byte, readSize)
	}
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n, err := r.from.Read(r.buf)
		r.out = r.s.Push(r.buf[:n])
		if r.err = err; err != nil {
			r.out = append(r.out, r.s.End()...)
		}
		if len(p) == 0 {
			return 0, nil
		}
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}
