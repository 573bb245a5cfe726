package image

import (
	"os/exec"
	"testing"
)

// fsck asks the tool of the kernel's developers, where it is installed.
func fsck(t testing.TB, name string) {
	t.Helper()
	tool, err := exec.LookPath("fsck.erofs")
	if err != nil {
		return
	}
	if out, err := exec.Command(tool, "--extract", name).CombinedOutput(); err != nil {
		t.Fatalf("fsck.erofs: %v\n%s", err, out)
	}
}
