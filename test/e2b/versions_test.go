//go:build e2b

package e2b

// javaScript are the versions of npm's package e2b that are tried, the newest
// that the registry gave first.
var javaScript = []string{"2.51.0"}
