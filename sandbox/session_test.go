package sandbox_test

import (
	"encoding/json"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// An envelope that names no sandbox is read for the id that a driver kept in its
// state.
func TestRB40InstanceID(t *testing.T) {
	for state, want := range map[string]string{
		`{"containerId":"c","hostId":"h","id":"i","instanceId":"n","sandboxId":"s"}`: "s",
		`{"containerId":"c","hostId":"h","id":"i","instanceId":"n"}`:                 "n",
		`{"containerId":"c","hostId":"h","id":"i","sandboxId":""}`:                   "i",
		`{"containerId":"c","hostId":"h"}`:                                           "h",
		`{"containerId":"c","id":7}`:                                                 "c",
		`{"hostId":"h"}`:                                                             "", // there is nothing to resume
		`{"workspaceArchive":"YQ=="}`:                                                "",
		`[]`:                                                                         "",
	} {
		for box, want := range map[string]string{"": want, "own": "own"} {
			e, err := sandbox.Envelope{Backend: "p", Box: box, State: json.RawMessage(state)}.Sealed()
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := sandbox.ParseEnvelope(data); err != nil || got.Box != want {
				t.Errorf("%s with box %q: %q, %v; want %q", state, box, got.Box, err, want)
			}
		}
	}
}
