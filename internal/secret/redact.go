package secret

import (
	"bytes"
	"io"
	"slices"
	"sync"
)

// Redactor takes values out of what commands write, in all their forms, and as
// terminals show them. It may be used concurrently.
type Redactor struct {
	m       *Matcher
	needles [][]byte
}

// NewRedactor makes a Redactor. Values shorter than MinScrub are not found.
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

// Empty reports that there is nothing to find.
func (r *Redactor) Empty() bool { return len(r.needles) == 0 }

// shown is how much of what may become a value is given out at once: what
// somebody types must be seen, although it begins like a secret. Less than this
// of a value may be seen where it is written in pieces.
const shown = 3

// Redaction is one stream that goes through a Redactor. It is for one user at a
// time. It keeps the length, so that positions in the stream stay what they are,
// and holds back no more than the longest form of a value.
type Redaction struct {
	r     *Redactor
	held  []byte // may be the beginning of a value
	given int    // bytes at the beginning of held that are out already
	torn  bool   // the stream may begin within a value
}

// Stream begins a stream. One that is torn does not begin where the command's
// output does, and so perhaps in the middle of a value.
func (r *Redactor) Stream(torn bool) *Redaction { return &Redaction{r: r, torn: torn} }

// Push takes the next bytes of the stream and returns what is settled, with
// asterisks in place of values. b is not kept; the result is the caller's.
func (s *Redaction) Push(b []byte) []byte {
	s.held = append(s.held, b...)
	return s.settle(false)
}

// End returns what was held back, and makes the stream begin anew, torn.
func (s *Redaction) End() []byte {
	out := s.settle(true)
	s.torn = true
	return out
}

func (s *Redaction) settle(last bool) (out []byte) {
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
			return s.show(s.pass(out, first)) // one that begins no later has not arrived whole
		}
		out = s.pass(out, at)
		out = s.mask(out, len(s.r.needles[n]))
	}
}

// within returns how many bytes at the beginning of b are a value, or the end of
// one of which the beginning was not seen; open says that more may be.
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

// pass gives out the first n bytes of what is held.
func (s *Redaction) pass(out []byte, n int) []byte {
	return s.drop(append(out, s.held[min(s.given, n):n]...), n)
}

// mask gives out asterisks for them.
func (s *Redaction) mask(out []byte, n int) []byte {
	return s.drop(append(out, bytes.Repeat([]byte{'*'}, n-min(s.given, n))...), n)
}

func (s *Redaction) drop(out []byte, n int) []byte {
	s.held, s.given = slices.Delete(s.held, 0, n), max(0, s.given-n)
	return out
}

// show gives out the beginning of what stays held.
func (s *Redaction) show(out []byte) []byte {
	if n := min(shown, len(s.held)); n > s.given {
		out, s.given = append(out, s.held[s.given:n]...), n
	}
	return out
}

// Reader returns r without the values. A stream that is torn is one that does
// not begin where the output of its command does.
func (r *Redactor) Reader(from io.Reader, torn bool) io.Reader {
	return &redactedReader{from: from, s: r.Stream(torn)}
}

// redactedReader has one user at a time; the lock is for a careless one.
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
