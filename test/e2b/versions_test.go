//go:build e2b

package e2b

// The versions are the newest ones in the registries, and those that were the
// newest half a year and a year earlier; docs/guide/e2b.md has their dates.
// Versions that support only host names are tested with these, the newest both
// ways.

// Versions of npm's e2b.
var (
	javaScript       = []string{"2.51.0", "2.15.0"}
	javaScriptByName = []string{"2.51.0", "2.1.2"}
)

// Versions of PyPI's e2b.
var (
	python       = []string{"2.63.0", "2.20.3"}
	pythonByName = []string{"2.63.0", "2.6.2"}
)

// Versions of npm's @e2b/code-interpreter and PyPI's e2b-code-interpreter.
var (
	interpreterJavaScript       = []string{"2.8.0"}
	interpreterJavaScriptByName = []string{"2.8.0", "2.4.0", "2.0.0"}
	interpreterPython           = []string{"2.11.5"}
	interpreterPythonByName     = []string{"2.6.0", "2.2.0"}
)

// Versions of npm's @e2b/desktop and PyPI's e2b-desktop. They need the image
// "desktop".
var (
	desktopJavaScript = []string{"2.4.0"}
	desktopPython     = []string{"2.7.2"}
)
