package machine

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// Consents of older programs, which had a field each, are those of the list. What
// is no consent is left out.
func TestConsents(t *testing.T) {
	for text, want := range map[string]operator.Consents{
		`{}`: nil,
		`{"consents":["screen","whole-machine"]}`:       {operator.ConsentWholeMachine, operator.ConsentScreen},
		`{"consents":["screen","screen","root",""]}`:    {operator.ConsentScreen},
		`{"screen":true,"updates":true}`:                {operator.ConsentScreen, operator.ConsentUpdates},
		`{"screen":false,"consents":["whole-machine"]}`: {operator.ConsentWholeMachine},
	} {
		var g Greeting
		if err := json.Unmarshal([]byte(text), &g); err != nil || !slices.Equal(g.Consents, want) {
			t.Errorf("greeting %s: %v, %v; want %v", text, g.Consents, err, want)
		}
	}
	for text, want := range map[string]operator.Consents{
		`{"mode":"whole-machine","consentWhole":true}`:         {operator.ConsentWholeMachine},
		`{"mode":"whole-machine","consents":["screen","all"]}`: {operator.ConsentScreen},
	} {
		var e Enrolment
		if err := json.Unmarshal([]byte(text), &e); err != nil || !slices.Equal(e.Consents, want) || e.Mode != operator.ModeWholeMachine {
			t.Errorf("enrolment %s: %+v, %v; want %v", text, e, err, want)
		}
	}
}
