package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// failing is a command line whose node cannot be opened.
func failing(err error) (*App, *bytes.Buffer) {
	var said bytes.Buffer
	return &App{
		Open:   func(string) (System, error) { return nil, err },
		Stdout: &bytes.Buffer{}, Stderr: &said, LookupEnv: func(string) (string, bool) { return "", false },
		Providers: []ProviderInfo{{Name: "fake"}},
	}, &said
}

// Who asked for JSON gets errors as JSON, too, unless they asked wrongly.
func TestErrorsAsJSON(t *testing.T) {
	want := &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "disk", Message: "is away\x1b[2J", Hint: "bring it back"}
	for _, tt := range []struct {
		err  error
		want sandbox.Error
	}{
		{want, *want},
		{syscall.ENOSPC, sandbox.Error{Code: sandbox.CodeOf(syscall.ENOSPC), Message: syscall.ENOSPC.Error()}},
	} {
		a, said := failing(tt.err)
		code := a.Main(t.Context(), []string{"image", "ls", "--json"})
		var got struct{ Error sandbox.Error }
		if err := json.Unmarshal(said.Bytes(), &got); err != nil || got.Error != tt.want || code != exitFailure {
			t.Errorf("code %d, %v: %q", code, err, said)
		}
		if lines := strings.Count(said.String(), "\n"); lines != 1 || strings.ContainsRune(said.String(), 0x1b) {
			t.Errorf("%d lines: %q", lines, said)
		}
	}
	for _, args := range [][]string{{"image", "ls"}, {"image", "ls", "--json", "--nonsense"}} {
		a, said := failing(want)
		if a.Main(t.Context(), args) == 0 || !strings.HasPrefix(said.String(), "atoll: error: ") {
			t.Errorf("%v said %q", args, said)
		}
	}
}
