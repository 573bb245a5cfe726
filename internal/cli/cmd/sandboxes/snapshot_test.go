package sandboxes

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestStored(t *testing.T) {
	for want, s := range map[string]durable.Snapshot{
		"2KiB":              {Ready: true, Saved: true, Stored: 2 << 10},
		"(saving)":          {Ready: true},
		"(at the provider)": {Ready: true, Problem: durable.ProblemKept},
		"(failed)":          {Ready: true, Problem: "it could not be saved: invalid"},
		"":                  {},
	} {
		if got := stored(&s); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
