package kernel

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWordsOfGVisor looks in gVisor's source for the lines of its log, and the
// beginnings of its errors, that this package compares with.
func TestWordsOfGVisor(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "gvisor.dev/gvisor").Output()
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, w := range append([]string{logSaving, logIndexRead, logLoaded, logPagesDue, logMounting, logRestoring, logMounts, logFull}, noStub...) {
		words = append(words, `f("`+w) // of Infof, Warningf or Errorf
	}
	root := strings.TrimSpace(string(out))
	for _, dir := range []string{"pkg/sentry", "runsc"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			words = slices.DeleteFunc(words, func(w string) bool { return strings.Contains(string(text), w) })
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range words {
		t.Errorf("gVisor's source does not have %q any more", w)
	}
}
