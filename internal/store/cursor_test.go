package store

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func FuzzCursor(f *testing.F) {
	f.Add(formatCursor(1_800_000_000_000_000_000, "id-a"))
	f.Add("")
	f.Add("MS4xLmE")
	f.Fuzz(func(t *testing.T, cursor string) {
		created, id, err := parseCursor(cursor)
		if err == nil && formatCursor(created, id) != cursor {
			t.Errorf("%q is read as (%d, %q), which is written %q", cursor, created, id, formatCursor(created, id))
		}
	})
}

func FuzzLabels(f *testing.F) {
	f.Add("team", "red", "tier", "one")
	f.Add("a\"b", `\`, ",", ":")
	f.Add("<&>", "ünï", "{}", "}")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		labels := map[string]string{k1: v1, k2: v2}
		if sandbox.ValidateLabels(labels) != nil {
			return
		}
		doc, err := json.Marshal(labels)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseLabels(string(doc))
		if err != nil || !maps.Equal(got, labels) {
			t.Errorf("%q is read as %q (%v)", labels, got, err)
		}
	})
}
