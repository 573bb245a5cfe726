package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamedTestsExist checks that the tests and fuzz targets named in the
// security documentation exist in the named packages.
func TestNamedTestsExist(t *testing.T) {
	var text []byte
	for _, page := range []string{"security.md", "security-details.md"} {
		more, err := os.ReadFile(filepath.Join(root, "docs/design", page))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, more...)
	}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`)
	have := map[string]bool{} // with and without "package."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		dir, _ := filepath.Rel(root, filepath.Dir(path))
		for _, m := range declared.FindAllSubmatch(code, -1) {
			have[string(m[1])], have[filepath.ToSlash(dir)+"."+string(m[1])] = true, true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:[a-z0-9/]+\\.)?(?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllSubmatch(text, -1)
	if len(named) < 50 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !have[string(m[1])] {
			t.Errorf("docs/design/security*.md name %s, which does not exist", m[1])
		}
	}
}
