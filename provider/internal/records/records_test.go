package records_test

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/provider/internal/records"
)

// A record can become longer and shorter again.
func TestWrite(t *testing.T) {
	d := records.Dir[map[string]string]{Root: t.TempDir(), Name: "boxes"}
	l, err := d.Lock(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	for _, n := range []int{10, 3000, 600, 1} {
		want := strings.Repeat("x", n)
		if err := l.Write(map[string]string{"label": want}); err != nil {
			t.Fatal(err)
		}
		unlocked, ok := d.Get("one")
		if got := l.Read()["label"]; got != want || !ok || unlocked["label"] != want {
			t.Errorf("a label of %d bytes: read %d, and %d without the lock", n, len(got), len(unlocked["label"]))
		}
	}
}
