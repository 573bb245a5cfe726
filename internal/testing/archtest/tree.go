package archtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	maxFileLines = 800 // of a Go file that is not a test
	maxMainLines = 60  // of a command's main.go
)

// forbidden are texts that must not be in any file. Each is written so that it
// does not match itself.
var forbidden = []struct {
	what string
	re   *regexp.Regexp
}{
	{"a path of a developer's machine", regexp.MustCompile(`(?:^|[^\w.\-/])/(?:wor[k]|far[m]|User[s])/`)},
	{"the host of a package registry", regexp.MustCompile(`\b(?:proxy\.golang\.or[g]|sum\.golang\.or[g]|deb\.debian\.or[g]|registry\.npmjs\.or[g]|pypi\.or[g]|files\.pythonhosted\.or[g])\b`)},
}

// checkText looks for forbidden texts in a file of the tree.
func checkText(name, text string) (violations []string) {
	for _, f := range forbidden {
		if loc := f.re.FindStringIndex(text); loc != nil {
			line := 1 + strings.Count(text[:loc[0]], "\n")
			if text[loc[0]] == '\n' {
				line++
			}
			violations = append(violations, fmt.Sprintf("%s:%d: %s: %q", name, line, f.what, strings.TrimSpace(text[loc[0]:loc[1]])))
		}
	}
	return violations
}

// checkSize limits the length of Go files.
func checkSize(name, text string) (violations []string) {
	lines := strings.Count(text, "\n")
	switch {
	case !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
	case strings.HasPrefix(name, "cmd/") && strings.HasSuffix(name, "/main.go") && lines > maxMainLines:
		violations = append(violations, fmt.Sprintf("%s: %d lines, at most %d: main only dispatches", name, lines, maxMainLines))
	case lines >= maxFileLines:
		violations = append(violations, fmt.Sprintf("%s: %d lines, must stay under %d", name, lines, maxFileLines))
	}
	return violations
}

// checkDependencies compares the used modules with those in the document, each
// as `module` in the first cell of a table's row. Every row needs a reason and
// a licence.
func checkDependencies(used []string, doc string) (violations []string) {
	var listed []string
	for line := range strings.Lines(doc) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		m := dependencyCell.FindStringSubmatch(cells[0])
		if m == nil || !strings.HasPrefix(line, "|") {
			continue
		}
		listed = append(listed, m[1])
		if len(cells) < 3 || slices.ContainsFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "" }) {
			violations = append(violations, m[1]+": its row lacks a reason or a licence")
		}
		if !slices.Contains(used, m[1]) {
			violations = append(violations, m[1]+": listed, but not imported")
		}
	}
	for _, u := range used {
		if !slices.Contains(listed, u) {
			violations = append(violations, u+": imported, but not listed")
		}
	}
	return violations
}

var dependencyCell = regexp.MustCompile("^ *`([^`]+)` *$")

// moduleOf returns the longest of modules that contains the package, or "".
func moduleOf(modules []string, path string) (found string) {
	for _, m := range modules {
		if len(m) > len(found) && match(m+"/...", path) {
			found = m
		}
	}
	return found
}
