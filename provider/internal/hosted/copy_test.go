package hosted

import (
	"os/exec"
	"strings"
	"testing"
)

// A copy of a sandbox's files has no guest to end, and nothing to wait for.
func TestInheritedWithoutAGuest(t *testing.T) {
	for name, bare := range map[string]bool{"bare": true, "connections": false} {
		t.Run(name, func(t *testing.T) {
			script := strings.ReplaceAll(Inherited(bare), "/proc/", t.TempDir()+"/")
			out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "sleep() { echo it waits; exit 3; }\n"+script).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("the script: %v %s, want nothing", err, out)
			}
		})
	}
}
