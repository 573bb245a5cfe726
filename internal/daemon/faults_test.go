package daemon_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every fault point of the daemon and the providers is described, and tested.
func TestFaultPoints(t *testing.T) {
	const root = "../.."
	called := regexp.MustCompile(`\.Fault\("([a-z]+\.[a-z]+)"\)`)
	var tests strings.Builder
	points := map[string]bool{}
	for _, dir := range []string{"internal/control", "internal/engine", "internal/daemon", "provider/gvisor"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.HasSuffix(path, "_test.go") {
				tests.Write(text)
				return err
			}
			for _, m := range called.FindAllSubmatch(text, -1) {
				points[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(points) < 20 {
		t.Fatalf("only %v were found", points)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs/reference/fault-points.md"))
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z]+\\.[a-z]+)`").FindAllSubmatch(doc, -1) {
		described[string(m[1])] = true
	}
	for p := range points {
		if !described[p] {
			t.Errorf("docs/reference/fault-points.md does not describe %s", p)
		}
	}
	for p := range described {
		if !strings.Contains(tests.String(), `"`+p+`"`) {
			t.Errorf("no test cuts anything off at %s", p)
		}
	}
}
