package atoll_test

import (
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

func TestResultString(t *testing.T) {
	for want, r := range map[string]atoll.Result{
		"out\n":                            {Exit: sandbox.Exit{Reason: sandbox.ReasonExited}, Stdout: []byte("out\n"), Stderr: []byte("warning")},
		"out\nexit code 3: bad":            {Exit: sandbox.Exit{Code: 3, Reason: sandbox.ReasonExited}, Stdout: []byte("out"), Stderr: []byte("bad\n")},
		"killed by signal 9":               {Exit: sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonSignaled}},
		"exit code 137 (memory: too much)": {Exit: sandbox.Exit{Code: 137, Reason: sandbox.ReasonMemory, Detail: "too much"}},
	} {
		if got := r.String(); got != want {
			t.Errorf("it is %q, want %q", got, want)
		}
	}
}
