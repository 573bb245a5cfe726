package rest

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// An incomplete event does not count.
func TestStream(t *testing.T) {
	e := NewStream(io.NopCloser(strings.NewReader(": keepalive\n\nevent: stdout\ndata: a\ndata: b\n\nevent:exit\ndata:0\n\nevent: stdout\ndata: half")))
	for _, want := range [][2]string{{"stdout", "a\nb"}, {"exit", "0"}} {
		if name, data, err := e.Next(); name != want[0] || data != want[1] || err != nil {
			t.Errorf("%q: %q, %v; want %q", name, data, err, want)
		}
	}
	if name, _, err := e.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v, want that it was cut off", name, err)
	}
}
