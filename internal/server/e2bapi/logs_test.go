package e2bapi

import (
	"encoding/json"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// E2B's command line decodes each line of the old logs.
func TestLinesAreJSON(t *testing.T) {
	exit := 3
	e := entryOf(&sandbox.Event{Type: "exec.ended", Op: "sandbox.exec", Subject: `a "quoted" name`, Exit: &exit, Seq: 7})
	var line map[string]string
	if err := json.Unmarshal([]byte(lineOf(&e)), &line); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"level": "info", "logger": "atoll", "message": `exec.ended a "quoted" name (exit status 3)`, "op": "sandbox.exec", "seq": "7", "exitCode": "3",
	}
	for k, v := range want {
		if line[k] != v {
			t.Errorf("%s is %q, want %q", k, line[k], v)
		}
	}
}
