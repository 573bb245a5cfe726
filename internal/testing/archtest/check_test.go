package archtest

import (
	"slices"
	"strings"
	"testing"
)

// These tests check that each check can fail, by breaking every rule once.

func made(path string, deps ...string) *pkg {
	p := &pkg{ImportPath: module + "/" + path, Name: path[strings.LastIndexByte(path, '/')+1:], Doc: "Package made is made up.", GoFiles: []string{"made.go"}}
	for _, d := range deps {
		if l, ok := strings.CutPrefix(d, "./"); ok {
			d = module + "/" + l
		}
		p.Deps = append(p.Deps, d)
		p.Imports = append(p.Imports, d)
	}
	return p
}

func TestCheckDeps(t *testing.T) {
	tests := []struct {
		name string
		pkg  *pkg
		want string // part of the only violation; empty: no violation
	}{
		{"standard library is fine", made("sandbox", "errors", "time", "vendor/golang.org/x/net/dns"), ""},
		{"the vocabulary imports a library", made("sandbox", "errors", "golang.org/x/sys/unix"), "sandbox: reaches golang.org/x/sys/unix: not of the standard library"},
		{"the vocabulary imports the contract", made("sandbox", "./driver"), "reaches driver"},
		{"the vocabulary does input and output", made("sandbox", "net/http"), "forbidden"},
		{"the contract imports the vocabulary", made("driver", "./sandbox"), ""},
		{"the contract imports the engine", made("driver", "./internal/engine"), "reaches internal/engine"},
		{"the suite looks for leaks", made("driver/drivertest", "./driver", "go.uber.org/goleak/internal/stack"), ""},
		{"the suite imports a library", made("driver/drivertest", "golang.org/x/sys/unix"), "not of the standard library"},
		{"the suite imports a provider", made("driver/drivertest", "./driver", "./internal/testing/fake"), "reaches internal/testing/fake"},
		{"a provider imports its technology", made("provider/gvisor", "./driver", kernel+"/runsc/boot"), ""},
		{"a provider imports the engine", made("provider/gvisor", "./internal/engine"), "reaches internal/engine"},
		{"a provider imports another", made("provider/host", "./internal/testing/fake"), "reaches internal/testing/fake"},
		{"a provider reaches the kernel", made("provider/host", kernel+"/pkg/sync"), "forbidden"},
		{"the list imports providers", made("provider/all", "./provider/gvisor", "./provider/host"), ""},
		{"the engine imports a provider", made("internal/engine", "./provider/gvisor"), "reaches provider/gvisor"},
		{"the engine starts processes", made("internal/engine", "os/exec"), "forbidden"},
		{"images import a provider", made("internal/image/layer", "./provider/gvisor"), "reaches provider/gvisor"},
		{"the guest grows fat", made("internal/guest/agent", "net/http"), "forbidden"},
		{"a rule for a parent holds below", made("internal/image/deep/er", "./internal/cli"), "reaches internal/cli"},
		{"a verb imports a provider", made("internal/cli", "./internal/engine", "./provider/all"), "reaches provider/all"},
		{"the node imports providers", made("internal/daemon/node", "./internal/engine", "./provider/all"), ""},
		{"main imports what is not its own", made("cmd/atoll", "./internal/testing/archtest"), "reaches internal/testing/archtest"},
		{"a face imports the engine", made("internal/server/api", "./driver", "./internal/engine"), "reaches internal/engine"},
		{"a face imports the store", made("internal/server", "./internal/store"), "reaches internal/store"},
		{"the log knows who asks", made("internal/eventlog", "./internal/key"), "reaches internal/key"},
		{"the daemon's control plane imports a face", made("internal/control/sandboxes", "./internal/server/api"), "reaches internal/server/api"},
		{"the records of sandboxes reach an operation", made("internal/control/sandboxes/records", "./internal/control/sandboxes/pause"), "forbidden"},
		{"an operation on sandboxes reaches another", made("internal/control/sandboxes/expire", "./internal/control/sandboxes/pause"), "forbidden"},
		{"an operation on sandboxes reaches the records", made("internal/control/sandboxes/expire", "./internal/control/sandboxes/records"), ""},
		{"the engine imports the store", made("internal/engine", "./internal/store"), "reaches internal/store"},
		{"a stream imports the engine", made("internal/stream", "./internal/engine"), "reaches internal/engine"},
		{"a verb imports the daemon", made("internal/cli", "./internal/daemon"), "reaches internal/daemon"},
		{"the daemon imports everything", made("internal/daemon", "./internal/control/sandboxes", "./internal/server", "./provider/all"), ""},
		{"no rule", made("internal/newroom"), "internal/newroom: no rule"},
		{"a prefix is not a parent", made("sandboxes"), "sandboxes: no rule"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { one(t, checkDeps(rules, tt.pkg), tt.want) })
	}
}

// one fails unless want is part of the only violation or, if want is empty,
// there is no violation.
func one(t *testing.T, got []string, want string) {
	t.Helper()
	if want == "" && len(got) == 0 {
		return
	}
	if want == "" || len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The library is the module's root, whose local path is empty.
func TestTheLibraryIsLight(t *testing.T) {
	library := made("x", "./sandbox", "./internal/stream", "net/http")
	library.ImportPath = module
	one(t, checkDeps(rules, library), "")
	library.Deps = append(library.Deps, module+"/internal/daemon")
	one(t, checkDeps(rules, library), "reaches internal/daemon")
}

func TestCheckPackage(t *testing.T) {
	one(t, checkPackage(made("internal/image")), "")
	for _, name := range []string{"internal/utils", "common", "internal/types/sandboxtypes", "pkg/image"} {
		one(t, checkPackage(made(name)), "does not describe")
	}
	renamed := made("internal/image")
	renamed.Name = "helpers"
	one(t, checkPackage(renamed), "does not describe")
	silent := made("internal/image")
	silent.Doc = ""
	one(t, checkPackage(silent), "no package comment")
	silent.GoFiles = nil // only tests
	one(t, checkPackage(silent), "")
	broken := made("internal/image")
	broken.Error = &struct{ Err string }{"no such file"}
	one(t, checkPackage(broken), "cannot be loaded: no such file")
}

func TestCheckText(t *testing.T) {
	for _, text := range []string{
		"fine", "/workspace/x", "atoll.test/network/x", "./work/x", "a/farm/b", "pypi.organic", "https://pkg.go.dev/x",
	} {
		one(t, checkText("f.go", text), "")
	}
	one(t, checkText("f.go", "a\nb\n\"/wor"+"k/main\""), "f.go:3: a path")
	one(t, checkText("f.go", "a\n/far"+"m/x"), "f.go:2: a path")
	one(t, checkText("f.md", "see https://proxy.golang.or"+"g/x"), "f.md:1: the host")
}

func TestCheckSize(t *testing.T) {
	long := strings.Repeat("\n", maxFileLines)
	one(t, checkSize("a/b.go", long[1:]), "")
	one(t, checkSize("a/b.go", long), "a/b.go: 800 lines")
	one(t, checkSize("a/b_test.go", long), "")
	one(t, checkSize("docs/B.md", long), "")
	one(t, checkSize("cmd/atoll/main.go", long[:maxMainLines]), "")
	one(t, checkSize("cmd/atoll/main.go", long[:maxMainLines+1]), "main only dispatches")
}

func TestCheckDependencies(t *testing.T) {
	const doc = "# Dependencies\n\n| module | why | licence |\n|---|---|---|\n| `a.test/x` | for x | MIT |\n| `b.test/y` | for y | BSD |\n"
	one(t, checkDependencies([]string{"a.test/x", "b.test/y"}, doc), "")
	one(t, checkDependencies([]string{"a.test/x"}, doc), "b.test/y: listed, but not imported")
	one(t, checkDependencies([]string{"a.test/x", "b.test/y", "c.test/z"}, doc), "c.test/z: imported, but not listed")
	one(t, checkDependencies([]string{"a.test/x"}, "| `a.test/x` | | MIT |\n"), "lacks a reason")
	one(t, checkDependencies([]string{"a.test/x"}, "| `a.test/x` | for x |\n"), "lacks a reason")
	one(t, checkDependencies([]string{"a.test/x"}, "`a.test/x` in prose\n"), "not listed")
}

func TestModuleOf(t *testing.T) {
	modules := []string{"a.test/x", "a.test/x/v3", "b.test/y"}
	for path, want := range map[string]string{
		"a.test/x": "a.test/x", "a.test/x/v3/p": "a.test/x/v3", "a.test/xy": "", "c.test/z": "",
	} {
		if got := moduleOf(modules, path); got != want {
			t.Errorf("moduleOf(%s) is %q, want %q", path, got, want)
		}
	}
}

func TestCheckLinks(t *testing.T) {
	files := map[string]string{"docs/A.md": "# Title\n## Why `x`, and not y?\n```\n# not a heading\n```\n", "README.md": ""}
	exists := func(name string) bool { _, ok := files[name]; return ok || name == "docs" }
	read := func(name string) string { return files[name] }
	tests := map[string]string{
		"[a](docs/A.md)":                               "",
		"[a](docs)":                                    "",
		"[a](https://a.test/x)":                        "",
		"[a](docs/A.md#title)":                         "",
		"[a](docs/A.md#why-x-and-not-y)":               "",
		"`[a](nowhere.md)`":                            "",
		"```\n[a](nowhere.md)\n```":                    "",
		"[a](docs/B.md)":                               "docs/B.md does not exist",
		"[a](docs/A.md#not-a-heading)":                 "names no heading",
		"[a](#missing)":                                "names no heading",
		"[a](../elsewhere.md)":                         "points outside",
		"[a](/etc/passwd)":                             "points outside",
		"[good](docs/A.md) [bad](docs/C.md) [b](docs)": "docs/C.md does not exist",
	}
	for text, want := range tests {
		t.Run(text, func(t *testing.T) { one(t, checkLinks("README.md", text, exists, read), want) })
	}
}

// TestRulesAreSound checks that no rule is hidden by an earlier one, which
// would then never apply, and that every rule has a reason.
func TestRulesAreSound(t *testing.T) {
	for i, r := range rules {
		if r.why == "" {
			t.Errorf("%s: no reason", r.pkgs)
		}
		dir, tree := strings.CutSuffix(r.pkgs, "/...")
		hides := func(e rule) bool { return match(e.pkgs, dir) && (!tree || strings.HasSuffix(e.pkgs, "/...")) }
		if j := slices.IndexFunc(rules[:i], hides); j >= 0 {
			t.Errorf("%s: hidden by the rule for %s", r.pkgs, rules[j].pkgs)
		}
	}
}
