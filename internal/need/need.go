// Package need skips tests that need something this machine does not have. All
// skips go through it: they have one form, which package count counts.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Form matches the message of a skip. Its group is what is missing: a package
// of Debian, or something else, in a few words.
var Form = regexp.MustCompile(`\.go:\d+: needs ([^:\n]+)`)

// Packages are the programs that tests run on this machine or, as sandboxes
// show its /usr, in sandboxes, with the package of Debian that has them.
// .ci/run installs these packages.
var Packages = map[string]string{
	"apt-get":    "apt",
	"curl":       "curl",
	"fsck.erofs": "erofs-utils",
	"git":        "git",
	"initdb":     "postgresql",
	"ip":         "iproute2",
	"java":       "default-jdk-headless",
	"make":       "make",
	"mkfs.ext4":  "e2fsprogs",
	"node":       "nodejs",
	"nsenter":    "util-linux",
	"npm":        "npm",
	"openssl":    "openssl",
	"pip3":       "python3-pip",
	"pgrep":      "procps",
	"pkill":      "procps",
	"ps":         "procps",
	"python3":    "python3",
	"scrot":      "scrot",
	"sh":         "dash",
	"x11vnc":     "x11vnc",
	"xdotool":    "xdotool",
	"Xvfb":       "xvfb",
	"zstd":       "zstd",
}

// Thing skips the test because of what this machine lacks, in one or two words,
// and says what for. An empty reason is left out.
func Thing(t testing.TB, what, reason string) {
	t.Helper()
	if reason != "" {
		reason = ": " + reason
	}
	t.Skip("needs " + what + reason)
}

// Program returns the path of a program of [Packages], or skips the test.
func Program(t testing.TB, name string) string {
	t.Helper()
	pkg, ok := Packages[name]
	if !ok {
		panic(fmt.Sprintf("need: no package is known for %q", name))
	}
	path, err := exec.LookPath(name)
	if err != nil {
		Thing(t, pkg, "")
	}
	return path
}

// Opinion returns the path of a program of [Packages] that only repeats what
// the test checks by itself. Without it, the test goes on, the path is empty,
// and a test that would pass counts as skipped.
func Opinion(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Cleanup(func() {
			if !t.Failed() && !t.Skipped() {
				Thing(t, Packages[name], "the rest passed")
			}
		})
	}
	return path
}

// words are programs whose names mean nothing else in a shell script. The code
// interpreter needs Python.
var words = regexp.MustCompile(`(?:^|\n|exec )atoll (code) |\b(curl|npm|openssl|pgrep|pip3|pkill|python3)\b|\b(node) -[ep]|(?:^|[;|&("'\n]\s*|-- )(ps|zstd) `)

func programs(script string) (names []string) {
	for _, m := range words.FindAllStringSubmatch(script, -1) {
		name := strings.Join(m[1:], "") // one of the groups matched
		if name == "code" {
			name = "python3"
		}
		names = append(names, name)
	}
	return names
}

// Commands skips the test unless this machine, and so a sandbox that shows its
// /usr, has the programs that a shell script or a command runs.
func Commands(t testing.TB, script ...string) {
	t.Helper()
	for _, name := range programs(strings.Join(script, " ")) {
		if _, err := os.Stat("/usr/bin/" + name); err != nil {
			Thing(t, Packages[name], "")
		}
	}
}

// Root skips the test unless root runs it.
func Root(t testing.TB, reason string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Thing(t, "root", reason)
	}
}

// Full skips the test in short mode, as `make test` has it.
func Full(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		Thing(t, "make full", reason)
	}
}
