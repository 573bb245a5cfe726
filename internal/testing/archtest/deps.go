// Package archtest checks the repository's architecture. Its tests fail if a
// package has a forbidden import, if a package has no rule, or if names, sizes,
// documents or the list of dependencies differ from docs/design/architecture.md
// and CONTRIBUTING.md.
//
// The rules are data, and the code that applies them is tested with fake
// packages. So a passing run means that the checks ran and found nothing. Run
// it with -count=1: the go command caches results and cannot see the files that
// these tests read through another process.
package archtest

import (
	"fmt"
	"slices"
	"strings"
)

const (
	module = "github.com/atoll-run/atoll"
	kernel = "gvisor.dev/gvisor"
)

// A rule lists the permitted dependencies of the packages that it matches.
// Patterns are import paths, relative to this module for its own packages;
// "x/..." means x and everything below. Dependencies are transitive, but do not
// include those of tests.
type rule struct {
	pkgs string
	why  string   // shown with a violation
	std  bool     // only the standard library and this module
	libs []string // … and these packages
	only []string // the packages of this module it may reach
	deny []string // packages that it must not reach, of any module
}

// pkg is the part of `go list -json` that the checks need.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	Doc          string
	GoFiles      []string
	Deps         []string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Error        *struct{ Err string }
}

// local is p's import path within the module.
func (p *pkg) local() string { return local(p.ImportPath) }

// allImports lists what p and its tests import directly.
func (p *pkg) allImports() []string {
	all := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
	slices.Sort(all)
	return slices.Compact(all)
}

// checkDeps applies the first rule that matches p. A package without a rule is
// a violation, too: every new package needs one.
func checkDeps(rules []rule, p *pkg) (violations []string) {
	i := slices.IndexFunc(rules, func(r rule) bool { return match(r.pkgs, p.local()) })
	if i < 0 {
		return []string{p.local() + ": no rule in internal/testing/archtest says what it may import"}
	}
	r := rules[i]
	for _, dep := range p.Deps {
		if dep == p.ImportPath {
			continue
		}
		if reason := r.refuses(dep); reason != "" {
			violations = append(violations, fmt.Sprintf("%s: reaches %s: %s (%s)", p.local(), local(dep), reason, r.why))
		}
	}
	return violations
}

// refuses returns why a package under r must not depend on dep, or "".
func (r *rule) refuses(dep string) string {
	switch {
	case matchAny(r.deny, local(dep)):
		return "forbidden"
	case ours(dep):
		if !matchAny(r.only, local(dep)) && !(matchAny(r.only, "sandbox") && matchAny(vocabulary, local(dep))) {
			return "not among its permitted dependencies"
		}
	case r.std && !standard(dep) && !matchAny(r.libs, dep):
		return "not of the standard library"
	}
	return ""
}

// vagueNames are package names that do not say what a package contains.
var vagueNames = []string{"util", "utils", "common", "types", "models", "helper", "helpers", "pkg", "misc", "base", "lib", "interfaces"}

// checkPackage checks what every package must have.
func checkPackage(p *pkg) (violations []string) {
	if p.Error != nil {
		violations = append(violations, fmt.Sprintf("%s: cannot be loaded: %s", p.local(), p.Error.Err))
	}
	for _, name := range append(strings.Split(p.local(), "/"), p.Name) {
		if slices.Contains(vagueNames, name) {
			violations = append(violations, fmt.Sprintf("%s: the name %q does not describe the contents", p.local(), name))
			break
		}
	}
	if p.Doc == "" && len(p.GoFiles) > 0 {
		violations = append(violations, p.local()+": has no package comment")
	}
	return violations
}

func ours(path string) bool { return match(module+"/...", path) }

// local strips the module's path from one of its packages.
func local(path string) string { return strings.TrimPrefix(path, module+"/") }

// standard reports whether path is in the standard library. Only its paths have
// no dot in the first element.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, path) })
}

func match(pattern, path string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == dir || strings.HasPrefix(path, dir+"/")
	}
	return pattern == path
}
