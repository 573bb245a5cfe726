package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A server that is started again has the secrets of the one before, so that its
// daemon and machines come back. A file that is not its own is left as it is.
func TestSecretsAreKept(t *testing.T) {
	out := filepath.Join(t.TempDir(), "machines.json")
	ended, end := context.WithCancel(t.Context())
	end()
	serve := func() error { return run(ended, []string{"--listen", "127.0.0.1:0", "--out", out}) }
	secrets := func() string {
		t.Helper()
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(string(text), `"user"`) // after the address, whose port changes
		if !ok {
			t.Fatalf("%s names no user", text)
		}
		return rest
	}
	if err := serve(); err != nil {
		t.Fatal(err)
	}
	first := secrets()
	if err := serve(); err != nil {
		t.Fatal(err)
	}
	if second := secrets(); second != first {
		t.Error("the second start has other secrets than the first")
	}
	for text, mode := range map[string]os.FileMode{
		"{}": 0o600, "no JSON": 0o600,
		`{"user":"daemon","password":"p","account":"ATOLL","issuer":"SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"}`: 0o600, // a user's seed
		`{"user":"` + first[2:]: 0o644, // others can read it
	} {
		if err := os.WriteFile(out, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(out, mode); err != nil {
			t.Fatal(err)
		}
		err := serve()
		if err == nil || !strings.Contains(err.Error(), out) {
			t.Errorf("%.20q with mode %o: %v, want an error that names the file", text, mode, err)
		}
		if left, err := os.ReadFile(out); err != nil || string(left) != text {
			t.Errorf("%.20q was changed: %q, %v", text, left, err)
		}
	}
}
