package gvisor_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// TestAttackSupplementaryGroups checks that a sandbox's kernel does not keep the
// supplementary groups of the process that started it. Root has group 0 after a
// login, and many files of the machine can be read by that group.
func TestAttackSupplementaryGroups(t *testing.T) {
	need.Root(t, "another user cannot give up groups")
	before, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setgroups(before) })
	if err := syscall.Setgroups([]int{0, 4}); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, nil)
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "groups", Image: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Destroy(t.Context())
	status, err := os.ReadFile("/proc/" + strconv.Itoa(in.(*gvisor.Instance).Kernel()) + "/status")
	if err != nil || !strings.Contains(string(status), "Groups:\t \n") {
		t.Errorf("the kernel has groups: %s, %v", status, err)
	}
}
