package hosted

import (
	"encoding/base64"
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
		one := &talk{Text: &Text{}}
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
	if out, err := (&talk{Text: &Text{}}).decode("not!base64!!"); err == nil {
		t.Errorf("read %q from an incomplete event", out)
	}
}
