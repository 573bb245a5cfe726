package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of requirements names every test with a requirement's number, and
// no test that does not exist.
func TestRequirements(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/runtime-requirements.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`TestRB\w+`).FindAllString(string(text), -1) {
		named[name] = true
	}
	exists := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (TestRB\w+)\(`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(source), -1) {
			exists[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range exists {
		if !named[name] {
			t.Errorf("docs/reference/runtime-requirements.md does not name %s", name)
		}
	}
	for name := range named {
		if !exists[name] {
			t.Errorf("docs/reference/runtime-requirements.md names %s, which does not exist", name)
		}
	}
}
