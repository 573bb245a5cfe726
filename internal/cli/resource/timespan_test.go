package resource

import (
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

func TestMoment(t *testing.T) {
	utc := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for text, want := range map[string]time.Time{
		"":                          {},
		"2026-01-31T08:00:00Z":      utc("2026-01-31T08:00:00Z"),
		"2026-01-31T08:00:00.5Z":    utc("2026-01-31T08:00:00.5Z"),
		"2026-01-31T10:00:00+02:00": utc("2026-01-31T08:00:00Z"),
		"2026-01-31T08:00:00":       time.Date(2026, 1, 31, 8, 0, 0, 0, time.Local),
		"2026-01-31 08:00:00":       time.Date(2026, 1, 31, 8, 0, 0, 0, time.Local),
		"2026-01-31T08:00":          time.Date(2026, 1, 31, 8, 0, 0, 0, time.Local),
		"2026-01-31":                time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local),
		"1769846400":                utc("2026-01-31T08:00:00Z"),
		"1769846400.5":              utc("2026-01-31T08:00:00.5Z"),
	} {
		if got, err := ParseTime("since", text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for text, age := range map[string]time.Duration{"10m": 10 * time.Minute, "2d": 48 * time.Hour, "90": 90 * time.Second, "1h30m": 90 * time.Minute} {
		before := time.Now().Add(-age)
		got, err := ParseTime("since", text)
		if err != nil || got.Before(before) || got.After(time.Now().Add(-age)) {
			t.Errorf("%q: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"yesterday", "-5m", "0", "0s", "NaN", "Inf", "1e12", "99999999999", "2026-13-01", "2026-01-31T", "\x1b[2J", "5 m", "0x10"} {
		if got, err := ParseTime("since", text); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	if _, _, err := (&SpanFlags{since: "1m", until: "2m"}).Read(); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a span that ends before it begins: %v", err)
	}
}
