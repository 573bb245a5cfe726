package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestFormat(t *testing.T) {
	all := []sandbox.Sandbox{
		{Name: "one", State: sandbox.Running, Labels: map[string]string{"team": "red"}},
		{Name: "two", State: sandbox.Failed, Exit: &sandbox.Exit{Code: 137}, Labels: map[string]string{"team": "\x1b[2J"}},
	}
	for text, want := range map[string]string{
		"{{.Name}}":                                                "one\ntwo\n",
		`{{.Name}}\t{{upper (print .State)}}`:                      "one\tRUNNING\ntwo\tFAILED\n",
		"{{index .Labels \"team\"}}":                               "red\n\\u001b[2J\n",
		"{{with .Exit}}{{.Code}}{{else}}-{{end}}":                  "-\n137\n",
		"{{json .State}} {{range $k, $v := .Labels}}{{$k}}{{end}}": "\"running\" team\n\"failed\" team\n",
	} {
		var out bytes.Buffer
		if err := formatted(&Term{Stdout: &out}, text, all); err != nil || out.String() != want {
			t.Errorf("%s: %q %v", text, out.String(), err)
		}
	}
	for _, bad := range []string{"{{.Name", "{{.Nonsense}}", "{{nothing .}}"} {
		var out bytes.Buffer
		err := formatted(&Term{Stdout: &out}, bad, []sandbox.Sandbox{})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "--format") || out.Len() > 0 {
			t.Errorf("%s: %v %q", bad, err, out.String())
		}
	}
}

// A figure that is not known comes last, whichever way it is sorted.
func TestOrders(t *testing.T) {
	small, large, share := int64(1), int64(2), 3.0
	a, b, c := load{Name: "a", Memory: &small, CPU: &share}, load{Name: "b", Memory: &large}, load{Name: "c"}
	for by, want := range map[string][2]load{"memory": {b, a}, "cpu": {a, c}, "name": {a, b}, "disk": {a, a}} {
		if got := orders[by](want[0], want[1]); got > 0 || got == 0 && by != "disk" {
			t.Errorf("%s: %d", by, got)
		}
	}
	if text := loadTable([]load{a, c}); !strings.Contains(text, "a      3.0     1B / -") || !strings.Contains(text, "c      -       - / -") {
		t.Errorf("%s", text)
	}
}
