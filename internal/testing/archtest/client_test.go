package archtest

import (
	"os/exec"
	"strings"
	"testing"
)

// TestClientBuilds checks that all packages of the client for other systems
// have files for them, and that it does not contain the engine. `make clients`
// compiles it.
func TestClientBuilds(t *testing.T) {
	t.Parallel()
	for _, goos := range []string{"darwin", "windows"} {
		for _, arch := range []string{"amd64", "arm64"} {
			cmd := exec.Command("go", "-C", root, "list", "-deps", "./cmd/atoll")
			cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s/%s: %v\n%s", goos, arch, err, out)
				continue
			}
			for line := range strings.Lines(string(out)) {
				for _, engine := range []string{"gvisor.dev/", module + "/provider/", module + "/internal/daemon", module + "/internal/image"} {
					if strings.HasPrefix(line, engine) {
						t.Errorf("the client for %s/%s is linked with %s", goos, arch, strings.TrimSpace(line))
					}
				}
			}
		}
	}
}
