//go:build e2b

package e2b

// The versions are the newest that the registries gave, and those that were the
// newest half a year and a year before that one; docs/guide/e2b.md has their dates.
// What knows sandboxes by host name only is tried so, and the newest in both ways.

// Those of npm's e2b.
var (
	javaScript       = []string{"2.51.0", "2.15.0"}
	javaScriptByName = []string{"2.51.0", "2.1.2"}
)

// Those of PyPI's e2b.
var (
	python       = []string{"2.63.0", "2.20.3"}
	pythonByName = []string{"2.63.0", "2.6.2"}
)

// Those of npm's @e2b/code-interpreter and of PyPI's e2b-code-interpreter.
var (
	interpreterJavaScript       = []string{"2.8.0"}
	interpreterJavaScriptByName = []string{"2.8.0", "2.4.0", "2.0.0"}
	interpreterPython           = []string{"2.11.5"}
	interpreterPythonByName     = []string{"2.6.0", "2.2.0"}
)
