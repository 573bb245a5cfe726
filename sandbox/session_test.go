package sandbox_test

import (
	"encoding/json"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// For an envelope without a sandbox id, the id comes from the driver's state (RB-40).
func TestInstanceID(t *testing.T) {
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
		for sb, want := range map[string]string{"": want, "own": "own"} {
			data, err := json.Marshal(durable.Envelope{Backend: "p", Sandbox: sb, State: json.RawMessage(state)}.Sealed())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := durable.ParseEnvelope(data); err != nil || got.Sandbox != want {
				t.Errorf("%s with sandbox %q: %q, %v; want %q", state, sb, got.Sandbox, err, want)
			}
		}
	}
}

// Envelopes are untrusted input: every input is either refused as invalid, or
// is the same after writing and reading it again.
func FuzzParseEnvelope(f *testing.F) {
	for _, e := range []durable.Envelope{
		{Backend: "gvisor", Binding: "here/x", Sandbox: "sb-1", Spec: sandbox.Spec{Image: "alpine:3", Env: map[string]string{"TOKEN": "x"}}},
		{Backend: "e2b", State: json.RawMessage(`{"sandboxId":"a","hostId":"b"}`), Archive: &durable.Archive{Kind: "tar", Ref: "0001", Size: 7}},
		{Backend: "docker", Workspaces: []durable.WorkspaceRef{{Name: "w", Version: "v3"}}},
	} {
		sealed := e.Sealed()
		text, err := json.Marshal(sealed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"version":1,"backend":"x","state":[],"spec":{"lifetime":{"timeout":-1}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		e, err := durable.ParseEnvelope(in)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if e.Backend == "" || e.Version != durable.EnvelopeVersion {
			t.Fatalf("accepted %+v", e)
		}
		sealed := e.Sealed()
		if len(sealed.Spec.Env) > 0 {
			t.Errorf("it keeps an environment: %v", sealed.Spec.Env)
		}
		text, err := json.Marshal(sealed)
		if err != nil {
			t.Fatal(err)
		}
		again, err := durable.ParseEnvelope(text)
		if err != nil || again.Sandbox != e.Sandbox {
			t.Errorf("read again: %v; %+v, want %+v", err, again, sealed)
		}
	})
}
