package local

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// Marks are kept, and there is a bound on them.
func TestEpochs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "epochs.json")
	e, err := openEpochs(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		session string
		epoch   int64
		want    sandbox.Code
	}{
		{"a", 3, ""},
		{"b", 1, ""},
		{"a", 2, sandbox.CodeStale},
		{"a", 0, ""},
		{"a", 3, ""},
		{strings.Repeat("x", maxSession+1), 1, sandbox.CodeInvalid},
	} {
		if err := e.check(c.session, c.epoch); sandbox.CodeOf(err) != c.want {
			t.Errorf("session %.9s, epoch %d: %v, want %q", c.session, c.epoch, err, c.want)
		}
		if e, err = openEpochs(path); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxEpochs - 2 {
		e.marks[fmt.Sprint(i)] = mark{1, e.turn + int64(i) + 1}
	}
	e.turn += maxEpochs
	if err := e.check("new", 1); err != nil {
		t.Fatal(err)
	}
	if _, ok := e.marks["a"]; ok || len(e.marks) != maxEpochs {
		t.Errorf("%d sessions are known, the oldest: %v", len(e.marks), ok)
	}
}
