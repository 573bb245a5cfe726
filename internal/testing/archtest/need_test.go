package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
)

// Tests skip through package need, so that the end of `make test` can count for
// what. The two exceptions are programs of other modules' tests.
func TestSkips(t *testing.T) {
	skip := regexp.MustCompile(`\.Skip\w{0,3}\(`)
	sources(t, func(path, text string) {
		if strings.HasPrefix(path, "internal/need/") || path == "driver/drivertest/drivertest.go" || strings.HasPrefix(path, "test/driver-module/") {
			return
		}
		if found := skip.FindString(code(t, path, text)); found != "" {
			t.Errorf("%s: %q: package need skips tests", path, found)
		}
	})
}

// .ci/run installs every package that a test may need.
func TestPackagesAreInstalled(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(repository, ".ci/run"))
	if err != nil {
		t.Fatal(err)
	}
	essential := map[string]bool{"apt": true, "dash": true}
	for program, pkg := range need.Packages {
		if !essential[pkg] && !regexp.MustCompile(`[\s:]`+regexp.QuoteMeta(pkg)+`[\s)]`).Match(script) {
			t.Errorf(".ci/run does not install %s, of which tests need %s", pkg, program)
		}
	}
}
