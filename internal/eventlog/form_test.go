package eventlog

import (
	"reflect"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// The canonical form must not change: the hashes of existing logs depend on it.
func TestCanonicalForm(t *testing.T) {
	uid, exit := uint32(7), 3
	full := Event{Tenant: "acme", Event: sandbox.Event{
		Seq: 5, Time: time.Unix(1_800_000_000, 5).UTC(), Type: ExecEnded, Op: "process.exec", Key: "k", UID: &uid, Node: "n",
		Sandbox: "id", Name: "web", Labels: map[string]string{"a": "<b>"}, Subject: "p1", Policy: "pol", Ref: 4, Code: "denied",
		Program: "sh", Argc: 2, Args: []string{"x", "y"}, Exit: &exit, Reason: "killed", Bytes: 9, Duration: 1500 * time.Millisecond,
		Request: "r", Trace: "t", Epoch: 7, Viewers: 2, Cols: 80, Rows: 24, Dir: "/w",
	}}
	for v, i := reflect.ValueOf(full.Event), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test does not set %s, which would get lost if the form had no field for it", v.Type().Field(i).Name)
		}
	}
	for _, tt := range []struct {
		name  string
		event Event
		want  string
	}{
		{"full", full, `{"tenant":"acme","seq":5,"time":"2027-01-15T08:00:00.000000005Z","type":"exec.ended","op":"process.exec","actor":{"key":"k","uid":7,"node":"n"},"sandbox":"id","name":"web","labels":{"a":"<b>"},"subject":"p1","policy":"pol","ref":4,"code":"denied","program":"sh","argc":2,"args":["x","y"],"exit":3,"reason":"killed","bytes":9,"durationMs":1500,"request":"r","trace":"t","epoch":7,"viewers":2,"cols":80,"rows":24,"cwd":"/w"}`},
		{"sparse", Event{Tenant: "acme", Event: sandbox.Event{Seq: 1, Time: time.Unix(1_800_000_000, 0).UTC(), Type: Done, Op: "x"}}, `{"tenant":"acme","seq":1,"time":"2027-01-15T08:00:00Z","type":"done","op":"x"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body, err := encode(&tt.event)
			if err != nil || string(body) != tt.want {
				t.Errorf("encode() = %s, %v, want\n%s", body, err, tt.want)
			}
			got, err := decode(&store.EventRow{Body: body})
			if err != nil || !reflect.DeepEqual(got, tt.event) {
				t.Errorf("decode() = %+v, %v, want\n%+v", got, err, tt.event)
			}
		})
	}
}
