package islo

import (
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"
)

// Output of the guest arrives complete, wherever events and lines are cut.
func TestDecode(t *testing.T) {
	var text, want strings.Builder
	for n := range 40 {
		part := strings.Repeat(string(rune('a'+n%26)), n)
		text.WriteString(base64.StdEncoding.EncodeToString([]byte(part)) + "\n")
		want.WriteString(part)
	}
	for size := 1; size < 50; size++ {
		one := &talk{inside: &inside{}}
		var got strings.Builder
		for rest := text.String(); rest != ""; {
			n := min(size, len(rest))
			out, err := one.decode(rest[:n])
			if err != nil {
				t.Fatal(err)
			}
			got.Write(out)
			rest = rest[n:]
		}
		if got.String() != want.String() {
			t.Fatalf("in pieces of %d: %q", size, got.String())
		}
	}
	if out, err := (&talk{inside: &inside{}}).decode("not!base64!!"); err == nil {
		t.Errorf("read %q from an incomplete event", out)
	}
}

// An incomplete event does not count.
func TestEvents(t *testing.T) {
	e := newEvents(io.NopCloser(strings.NewReader(": keepalive\n\nevent: stdout\ndata: a\ndata: b\n\nevent:exit\ndata:0\n\nevent: stdout\ndata: half")))
	for _, want := range [][2]string{{"stdout", "a\nb"}, {"exit", "0"}} {
		if name, data, err := e.next(); name != want[0] || data != want[1] || err != nil {
			t.Errorf("%q: %q, %v; want %q", name, data, err, want)
		}
	}
	if name, _, err := e.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v, want that it was cut off", name, err)
	}
}
