package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// What the owner agreed to in an older program, which had a field for each
// consent, still holds. It is withdrawn without a program that serves the machine.
func TestConsentsOfOlderPrograms(t *testing.T) {
	dir := t.TempDir()
	old := `{"mode": "whole-machine", "consent": {"text": "all", "at": "2026-11-01T00:00:00Z"}, "screen": {"text": "see", "at": "2026-11-02T00:00:00Z"}}`
	if err := os.WriteFile(filepath.Join(dir, enrolmentFile), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	want := func(want ...operator.Consent) Enrolled {
		t.Helper()
		e, err := Load(dir)
		if err != nil || !slices.Equal(e.Agreed(), want) {
			t.Errorf("the owner agreed to %v, %v; want %v", e.Agreed(), err, want)
		}
		return e
	}
	for _, c := range want(operator.ConsentWholeMachine, operator.ConsentScreen).Consents {
		if text := map[operator.Consent]string{operator.ConsentWholeMachine: "all", operator.ConsentScreen: "see"}[c.To]; c.Text != text || c.At.IsZero() {
			t.Errorf("the consent to %s is %+v", c.To, c)
		}
	}
	if _, err := SetConsent(dir, operator.ConsentScreen, ""); err != nil {
		t.Fatal(err)
	}
	want(operator.ConsentWholeMachine)
	if _, err := SetConsent(dir, operator.ConsentScreen, "see"); err != nil {
		t.Fatal(err)
	}
	want(operator.ConsentWholeMachine, operator.ConsentScreen)
	if _, err := SetConsent(dir, operator.ConsentWholeMachine, ""); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("withdrawing the mode by itself: %v", err)
	}
	want(operator.ConsentWholeMachine, operator.ConsentScreen)
}
