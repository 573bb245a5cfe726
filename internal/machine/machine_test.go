package machine

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// Consents of older programs, which had a field each, are those of the list. What
// is no consent is left out.
func TestConsents(t *testing.T) {
	for text, want := range map[string]sandbox.Consents{
		`{}`: nil,
		`{"consents":["screen","whole-machine"]}`:       {sandbox.ConsentWholeMachine, sandbox.ConsentScreen},
		`{"consents":["screen","screen","root",""]}`:    {sandbox.ConsentScreen},
		`{"screen":true,"updates":true}`:                {sandbox.ConsentScreen, sandbox.ConsentUpdates},
		`{"screen":false,"consents":["whole-machine"]}`: {sandbox.ConsentWholeMachine},
	} {
		var g Greeting
		if err := json.Unmarshal([]byte(text), &g); err != nil || !slices.Equal(g.Consents, want) {
			t.Errorf("greeting %s: %v, %v; want %v", text, g.Consents, err, want)
		}
	}
	for text, want := range map[string]sandbox.Consents{
		`{"mode":"whole-machine","consentWhole":true}`:         {sandbox.ConsentWholeMachine},
		`{"mode":"whole-machine","consents":["screen","all"]}`: {sandbox.ConsentScreen},
	} {
		var e Enrolment
		if err := json.Unmarshal([]byte(text), &e); err != nil || !slices.Equal(e.Consents, want) || e.Mode != sandbox.ModeWholeMachine {
			t.Errorf("enrolment %s: %+v, %v; want %v", text, e, err, want)
		}
	}
}
