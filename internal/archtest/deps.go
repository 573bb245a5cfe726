// Package archtest holds the repository to its architecture. Its tests fail
// when a package imports what it must not, when a package has no rule, and
// when names, sizes, documents or the list of dependencies drift from what
// docs/design/architecture.md and CONTRIBUTING.md promise.
//
// The rules are data, and what applies them is tested against made-up
// packages, so that a green run means that nothing is wrong and not that
// nothing was looked at. Run it with -count=1: the go command caches a pass
// and cannot see what these tests read through another process.
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

// A rule says what the packages that it matches may depend on. Patterns are
// import paths, within this module without the module's own; "x/..." means x
// and all below. Dependencies are transitive, but do not include those of
// tests.
type rule struct {
	pkgs string
	why  string   // shown with a violation
	std  bool     // nothing but the standard library, this module aside
	libs []string // … and these packages
	only []string // the packages of this module it may reach
	deny []string // what it must never reach, of any module or the standard library
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

// checkDeps applies the first rule that matches p. A package without a rule
// is a violation too: whoever adds one decides where it stands.
func checkDeps(rules []rule, p *pkg) (violations []string) {
	i := slices.IndexFunc(rules, func(r rule) bool { return match(r.pkgs, p.local()) })
	if i < 0 {
		return []string{p.local() + ": no rule in internal/archtest says what it may import"}
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
		if !matchAny(r.only, local(dep)) {
			return "not among what it may reach"
		}
	case r.std && !standard(dep) && !matchAny(r.libs, dep):
		return "not of the standard library"
	}
	return ""
}

// checkKernel refuses a direct import of gVisor, by code or by tests, outside
// the packages named.
func checkKernel(allowed []string, p *pkg) (violations []string) {
	if matchAny(allowed, p.local()) {
		return nil
	}
	for _, imp := range p.allImports() {
		if match(kernel+"/...", imp) {
			violations = append(violations, fmt.Sprintf("%s: imports %s: only %s may", p.local(), imp, strings.Join(allowed, ", ")))
		}
	}
	return violations
}

// vagueNames say nothing about what is inside, so everything ends up there.
var vagueNames = []string{"util", "utils", "common", "types", "models", "helper", "helpers", "pkg", "misc", "base", "lib", "interfaces"}

// checkPackage holds what every package owes to its readers.
func checkPackage(p *pkg) (violations []string) {
	if p.Error != nil {
		violations = append(violations, fmt.Sprintf("%s: cannot be loaded: %s", p.local(), p.Error.Err))
	}
	for _, name := range append(strings.Split(p.local(), "/"), p.Name) {
		if slices.Contains(vagueNames, name) {
			violations = append(violations, fmt.Sprintf("%s: %q says nothing about what is inside", p.local(), name))
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

// standard reports whether path is of the standard library, whose paths alone
// have no dot in their first element.
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
