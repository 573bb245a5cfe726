package fake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/atoll-run/atoll/driver"
)

// all reads a log to its end.
func all(t *testing.T, r *logReader) (data []byte, dropped int64) {
	t.Helper()
	for {
		c, err := r.Next()
		if errors.Is(err, io.EOF) {
			return data, dropped
		}
		if err != nil {
			t.Fatal(err)
		}
		data, dropped = append(data, c.Data...), dropped+c.Dropped
	}
}

func TestLogKeepsTheEnd(t *testing.T) {
	for _, size := range []int{1, 100, 16 << 10, 70000, logSize, 3*logSize + 7} {
		l := newOutputLog()
		var want []byte
		for i := 0; len(want) < 3*logSize; i++ {
			part := bytes.Repeat([]byte{byte(i)}, size)
			if size == 1 {
				part = fmt.Appendf(nil, "%07d\n", i)
			}
			l.append(1+i%2, part)
			want = append(want, part...)
		}
		got, dropped := all(t, newLogReader(&command{log: l}, driver.LogOptions{}))
		kept := logSize
		if size == 1 {
			kept = 8 * logPieces // The pieces are 8 bytes long and of alternating streams.
		}
		if len(got) != kept || dropped != int64(len(want)-kept) || !bytes.HasSuffix(want, got) {
			t.Errorf("in pieces of %d: %d bytes kept, %d dropped of %d", size, len(got), dropped, len(want))
		}
	}
}

func TestLogTail(t *testing.T) {
	for text, want := range map[string]map[int]string{
		"":            {1: "", 5: ""},
		"\n":          {1: "\n", 2: "\n"},
		"a":           {1: "a", 2: "a"},
		"a\n":         {1: "a\n", 9: "a\n"},
		"a\nb":        {1: "b", 2: "a\nb"},
		"a\nb\n":      {1: "b\n", 2: "a\nb\n"},
		"a\n\nb\n\n":  {1: "\n", 2: "b\n\n", 3: "\nb\n\n"},
		"one\ntwo\n3": {1: "3", 2: "two\n3", 3: "one\ntwo\n3"},
	} {
		for n, tail := range want {
			for _, step := range []int{1, 2, 100} {
				l := newOutputLog()
				for i := 0; i < len(text); i += step {
					l.append(1+i%2, []byte(text[i:min(i+step, len(text))]))
				}
				if got, _ := all(t, newLogReader(&command{log: l}, driver.LogOptions{Tail: n})); string(got) != tail {
					t.Errorf("the last %d lines of %q are %q, want %q", n, text, got, tail)
				}
			}
		}
	}
}

// TestLogEndsWhereItWas: without following, a growing log ends where it ended
// when it was opened.
func TestLogEndsWhereItWas(t *testing.T) {
	l := newOutputLog()
	l.append(1, []byte("before"))
	r := newLogReader(&command{log: l}, driver.LogOptions{})
	l.append(1, []byte(" after"))
	if got, _ := all(t, r); string(got) != "before" {
		t.Errorf("got %q", got)
	}
}
