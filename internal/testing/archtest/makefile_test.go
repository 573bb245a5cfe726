package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
)

// make build works in a directory whose name has a space. The compiler is a
// fake that writes the requested file, and runs nothing.
func TestMakeInDirectoryWithSpace(t *testing.T) {
	need.Program(t, "make")
	dir, tools := filepath.Join(t.TempDir(), "a clone"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "internal", "guest", "program", "built"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "build", "scripts"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Makefile", "build/scripts/guest", "build/scripts/light"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	compiler := filepath.Join(tools, "go")
	script := "#!/bin/sh\n[ \"$1\" = build ] || exit 0\nwhile [ $# -gt 0 ]; do [ \"$1\" != -o ] || out=$2; shift; done\nmkdir -p \"$(dirname \"$out\")\" && echo built >\"$out\"\n"
	if err := os.WriteFile(compiler, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make", "-C", dir, "build", "GO="+compiler)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, made := range []string{"bin/atoll", "bin/atoll-engine", "internal/guest/program/built/linux-amd64.gz", "internal/guest/program/built/linux-arm64.sha256"} {
		if _, err := os.Stat(filepath.Join(dir, made)); err != nil {
			t.Error(err)
		}
	}
}
