package superserve

import (
	"errors"
	"testing"

	"github.com/atoll-run/atoll/internal/guestkit"
)

// A command has ended well only if the service says its exit code.
func TestEnded(t *testing.T) {
	in := &inside{name: "sb-ended"}
	for text, want := range map[string]struct{ ended, exited bool }{
		`{"finished":true,"exit_code":0}`:              {true, true},
		`{"finished":true,"exit_code":3}`:              {true, true},
		`{"timestamp":"2026-11-01T00:00:00Z"}`:         {},
		`{"finished":true}`:                            {true, false},
		`{"error":"no","exit_code":0,"finished":true}`: {true, false},
		`{"error":"no"}`:                               {true, false},
		`no message`:                                   {true, false},
	} {
		err := in.ended([]byte(text), nil)
		var exit *guestkit.Exit
		if (err != nil) != want.ended || errors.As(err, &exit) != want.exited {
			t.Errorf("%s: %v", text, err)
		}
	}
}
