package store

import "testing"

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
