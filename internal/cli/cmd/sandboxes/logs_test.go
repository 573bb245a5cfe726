package sandboxes

import "testing"

func TestSignals(t *testing.T) {
	for text, want := range map[string]int{"TERM": 15, "sigterm": 15, "9": 9, "SIGUSR1": 10, "64": 64} {
		if got, err := parseSignal(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "0", "-9", "65", "NOPE", "SIG"} {
		if got, err := parseSignal(bad); err == nil {
			t.Errorf("%q became %d", bad, got)
		}
	}
}
