package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// root is the top of the repository, relative to this package.
const root = "../../.."

// goOutput runs the go command in a directory of the repository. cgo is off, as
// in the released program.
func goOutput(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return out
}

// packages lists the module's packages, once for all tests.
func packages(t *testing.T) []*pkg {
	t.Helper()
	list := listOnce(t)
	if len(list) < 5 {
		t.Fatalf("go list found only %d packages: nothing would be checked", len(list))
	}
	return list
}

var (
	listMu sync.Mutex
	listed []*pkg
)

func listOnce(t *testing.T) []*pkg {
	t.Helper()
	listMu.Lock()
	defer listMu.Unlock()
	if listed != nil {
		return listed
	}
	out := goOutput(t, "-C", root, "list", "-e", "-json=ImportPath,Name,Dir,Doc,GoFiles,Deps,Imports,TestImports,XTestImports,Error", "./...")
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return listed
		} else if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, &p)
	}
}

func report(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

func TestDependencyDirection(t *testing.T) {
	for _, p := range packages(t) {
		report(t, checkDeps(rules, p))
	}
}

// TestRulesAreUsed checks that every rule matches a package.
func TestRulesAreUsed(t *testing.T) {
	for _, r := range rules {
		if !slices.ContainsFunc(packages(t), func(p *pkg) bool { return match(r.pkgs, p.local()) }) {
			t.Errorf("the rule for %s matches no package", r.pkgs)
		}
	}
}

func TestPackages(t *testing.T) {
	for _, p := range packages(t) {
		report(t, checkPackage(p))
	}
}

// ignored are directories with generated contents.
var ignored = []string{".git", "bin", "dist", "node_modules", "__pycache__"}

// eachFile calls f with every text file of the tree and its path.
func eachFile(t *testing.T, f func(name, text string)) {
	t.Helper()
	seen := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(ignored, d.Name()):
			return fs.SkipDir
		case slices.Contains(ignored, d.Name()): // .git is a file in an additional work tree
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path.Join(root, name))
		if err != nil {
			return err
		}
		if utf8.Valid(data) {
			seen++
			f(name, string(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Fatalf("only %d files found: nothing would be checked", seen)
	}
}

func TestFiles(t *testing.T) {
	eachFile(t, func(name, text string) {
		report(t, checkText(name, text))
		report(t, checkSize(name, text))
	})
}

func TestLinks(t *testing.T) {
	exists := func(name string) bool {
		_, err := os.Stat(path.Join(root, name))
		return err == nil
	}
	read := func(name string) string {
		data, err := os.ReadFile(path.Join(root, name))
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	eachFile(t, func(name, text string) {
		if path.Ext(name) == ".md" {
			report(t, checkLinks(name, text, exists, read))
		}
	})
}

// TestDependenciesAreListed checks that the document lists every directly
// imported module and every tool with a reason. It looks at imports, because
// the marks in go.mod are only updated by `go mod tidy`.
func TestDependenciesAreListed(t *testing.T) {
	var used []string
	modules := required(t, root)
	for _, p := range packages(t) {
		for _, imp := range p.allImports() {
			if standard(imp) || ours(imp) {
				continue
			}
			m := moduleOf(modules.Require, imp)
			if m == "" {
				t.Errorf("%s imports %s, which go.mod does not require", p.local(), imp)
				continue
			}
			used = append(used, m)
		}
	}
	tools := required(t, path.Join(root, "build/tools"))
	for _, tool := range tools.Tool {
		used = append(used, moduleOf(tools.Require, tool))
	}
	slices.Sort(used)
	doc, err := os.ReadFile(path.Join(root, "docs/DEPENDENCIES.md"))
	if err != nil {
		t.Fatal(err)
	}
	report(t, checkDependencies(slices.Compact(used), string(doc)))
}

// modFile contains the required fields of a go.mod file.
type modFile struct {
	Require []string // module paths
	Tool    []string // package paths
}

func required(t *testing.T, dir string) (m modFile) {
	t.Helper()
	var raw struct {
		Require []struct{ Path string }
		Tool    []struct{ Path string }
	}
	if err := json.Unmarshal(goOutput(t, "-C", dir, "mod", "edit", "-json"), &raw); err != nil {
		t.Fatal(err)
	}
	for _, r := range raw.Require {
		m.Require = append(m.Require, r.Path)
	}
	for _, tool := range raw.Tool {
		m.Tool = append(m.Tool, tool.Path)
	}
	return m
}
