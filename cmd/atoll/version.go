// Command atoll gives AI agents sandboxes: one program, with nothing else to
// install.
package main

import (
	"cmp"
	"runtime/debug"
)

// release is the version of a release build; build/scripts/dist sets it.
var release string

// atollVersion returns the version of the program.
func atollVersion() string { return cmp.Or(release, version("github.com/atoll-run/atoll")) }

// version returns the version of a module in this program, as recorded by the
// Go tool.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
}
