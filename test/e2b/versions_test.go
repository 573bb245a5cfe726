//go:build e2b

package e2b

// javaScript are the versions of npm's package e2b that are tried, the newest
// that the registry gave first.
var javaScript = []string{"2.51.0", "2.21.0"}

// javaScriptByName are those that are tried with host names.
var javaScriptByName = []string{"2.51.0", "2.6.3"}

// python are those of PyPI's.
var python = []string{"2.63.0", "2.21.1", "2.7.0"}

// The versions of npm's @e2b/code-interpreter and PyPI's e2b-code-interpreter
// that are tried, some with host names.
var (
	interpreterJavaScript       = []string{"2.8.0"}
	interpreterJavaScriptByName = []string{"2.4.0"}
	interpreterPython           = []string{"2.11.5", "2.9.0"}
)
