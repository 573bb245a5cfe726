package term

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
		if err := Formatted(&Term{Stdout: &out}, text, all); err != nil || out.String() != want {
			t.Errorf("%s: %q %v", text, out.String(), err)
		}
	}
	for _, bad := range []string{"{{.Name", "{{.Nonsense}}", "{{nothing .}}"} {
		var out bytes.Buffer
		err := Formatted(&Term{Stdout: &out}, bad, []sandbox.Sandbox{})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "--format") || out.Len() > 0 {
			t.Errorf("%s: %v %q", bad, err, out.String())
		}
	}
}
