package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	repository   = "../../.."
	requirements = "docs/reference/runtime-requirements.md"
)

// sources calls each for every Go file of the repository.
func sources(t *testing.T, each func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(repository, path)
		each(filepath.ToSlash(rel), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// seen are the directories whose tests go through a daemon or a driver.
var seen = regexp.MustCompile(`^(internal/daemon|internal/control|internal/engine|cmd/atoll|provider|driver/drivertest|test)/`)

// The table of requirements names every test with a requirement's number in its
// name or at the end of its comment, and no test that does not exist. What it
// calls done is shown by a test through a daemon or a driver.
func TestRequirements(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, requirements))
	if err != nil {
		t.Fatal(err)
	}
	where, numbered := map[string]string{}, map[string]bool{}
	declared := regexp.MustCompile(`(?m)((?:^//.*\n)*)^func (Test\w+)\(`)
	number := regexp.MustCompile(`\bRB-\d+\)?\.?\n$`)
	sources(t, func(path, text string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			doc, name := m[1], m[2]
			if !seen.MatchString(where[name]) {
				where[name] = path
			}
			if strings.HasPrefix(name, "TestRB") || number.MatchString(doc) {
				numbered[name] = true
			}
		}
	})
	named := map[string]bool{}
	row := regexp.MustCompile(`(?m)^\| (RB-\d+) \| .*? \| ([^|]*) \| (.*) \|$`)
	tests, script := regexp.MustCompile(`Test[A-Z]\w+`), regexp.MustCompile(`test/script/[\w-]+\.txtar`)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		number, status, evidence := m[1], m[2], m[3]
		through := strings.Contains(evidence, "the conformance suite")
		for _, name := range tests.FindAllString(evidence, -1) {
			named[name] = true
			through = through || seen.MatchString(where[name])
			if where[name] == "" {
				t.Errorf("%s: there is no test %s", number, name)
			}
		}
		for _, name := range script.FindAllString(evidence, -1) {
			_, err := os.Stat(filepath.Join(repository, name))
			if through = true; err != nil {
				t.Errorf("%s: %v", number, err)
			}
		}
		switch status {
		case "done":
			if !through {
				t.Errorf("%s is called done, and no test shows it through a daemon or a driver: %s", number, evidence)
			}
		case "partly", "unused", "missing":
		default:
			t.Errorf("%s has the status %q", number, status)
		}
	}
	for name := range numbered {
		if !named[name] {
			t.Errorf("%s does not name %s of %s", requirements, name, where[name])
		}
	}
}

// unused are exported functions that are ready and that nothing calls yet; the
// table of requirements says so.
var unused = map[string]bool{"MergePorts": true, "HasDesktop": true}

// Exported functions of the runtime's rules have callers outside of tests: a
// rule that only a test applies is not in force.
func TestRulesAreApplied(t *testing.T) {
	exported := map[string]string{}
	calls := map[string]int{}
	word := regexp.MustCompile(`\b[A-Z]\w*`)
	sources(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, name := range word.FindAllString(code(t, path, text), -1) {
			calls[name]++
		}
		for _, dir := range []string{"catalog/", "internal/lease/", "internal/session/"} {
			if !strings.HasPrefix(path, dir) || strings.HasPrefix(path, "internal/session/sim/") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() {
					exported[f.Name.Name] = path
				}
			}
		}
	})
	for name, path := range exported {
		switch used := calls[name] > 1; { // the declaration is one
		case !used && !unused[name]:
			t.Errorf("%s: nothing calls %s but tests", path, name)
		case used && unused[name]:
			t.Errorf("%s: %s has a caller now; remove it from the list of this test", path, name)
		}
	}
}

// code returns a Go file without its comments.
func code(t *testing.T, path, text string) string {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	b := []byte(text)
	for _, group := range f.Comments {
		for i := set.Position(group.Pos()).Offset; i < set.Position(group.End()).Offset && i < len(b); i++ {
			b[i] = ' '
		}
	}
	return string(b)
}
