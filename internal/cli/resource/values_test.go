package resource

import (
	"testing"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"512m": 512 << 20, "2g": 2 << 30, "1.5GiB": 3 << 29, "1024": 1024, "64K": 64 << 10, "200Mi": 200 << 20, "1.5Gi": 3 << 29} {
		var s SizeFlag
		if err := s.Set(text); err != nil || int64(s) != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
	for _, bad := range []string{"", "x", "-1", "0", "1e400", "99999999999g", "1 giant", "5i", "i"} {
		var s SizeFlag
		if err := s.Set(bad); err == nil {
			t.Errorf("%q became %d", bad, s)
		}
	}
}

func FuzzSize(f *testing.F) {
	f.Add("1.5g")
	f.Fuzz(func(t *testing.T, text string) {
		var s SizeFlag
		if s.Set(text) == nil && s <= 0 {
			t.Errorf("%q became %d", text, s)
		}
	})
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]string{"30s": "30s", "5m": "5m0s", "7": "7s", "1h30m": "1h30m0s"} {
		var d DurationFlag
		if err := d.Set(text); err != nil || d.String() != want {
			t.Errorf("%s: %s, %v", text, d.String(), err)
		}
	}
	for _, bad := range []string{"", "-1s", "0", "x", "1y", "99999999999"} {
		var d DurationFlag
		if err := d.Set(bad); err == nil {
			t.Errorf("%q became %s", bad, d.String())
		}
	}
}
