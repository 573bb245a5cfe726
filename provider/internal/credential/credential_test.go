package credential_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/sandbox"
)

func from(env map[string]string) *credential.Source {
	return credential.FromEnvironment("KEY", func(name string) string { return env[name] })
}

func TestSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("in-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, env := range map[string]map[string]string{
		"value":      {"KEY": " value\n", "KEY_FILE": file},
		"in-file":    {"KEY_FILE": file},
		"in-command": {"KEY_COMMAND": "echo in-command; echo more"},
		"":           {},
	} {
		s := from(env)
		got, err := s.Get(t.Context(), "")
		if got != want || err != nil || s.Set() != (want != "") {
			t.Errorf("%v: %q, %v, want %q", env, got, err, want)
		}
		if want != "" && (s.Current() != want || s.Account() == "") {
			t.Errorf("%v: current %q, account %q", env, s.Current(), s.Account())
		}
	}
}

// A secret that the service rejects is read again. It is an error if it has not
// changed.
func TestRenewal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	s := from(map[string]string{"KEY_FILE": file})
	before := s.Account()
	if got, err := s.Get(t.Context(), ""); got != "first" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := s.Get(t.Context(), "first"); sandbox.CodeOf(err) != sandbox.CodeUnauthorized || !strings.Contains(err.Error(), "KEY_FILE") {
		t.Errorf("no other secret: %v, want unauthorized", err)
	}
	write("second")
	if got, err := s.Get(t.Context(), ""); got != "first" {
		t.Errorf("it is read again without need: %q, %v", got, err)
	}
	if got, err := s.Get(t.Context(), "first"); got != "second" || s.Account() != before {
		t.Errorf("%q, %v", got, err)
	}
}

// The output of a failed command is in no error.
func TestFailure(t *testing.T) {
	s := from(map[string]string{"KEY_COMMAND": "echo sesame >&2; exit 3"})
	if _, err := s.Get(t.Context(), ""); sandbox.CodeOf(err) != sandbox.CodeUnauthorized || strings.Contains(err.Error(), "sesame") {
		t.Errorf("%v", err)
	}
	if _, err := from(map[string]string{"KEY_FILE": "/no/such/file"}).Get(t.Context(), ""); sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
		t.Errorf("%v", err)
	}
}
