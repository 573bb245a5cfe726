package confine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAttacker checks what a compromised process can still do.
func TestAttacker(t *testing.T) {
	program := filepath.Join(t.TempDir(), "attacker")
	build := exec.Command("go", "build", "-o", program, "./testdata/attacker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the program that enters is built
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range []struct {
		what string
		args []string
		want string
	}{
		{"sockets only", nil, "works: connect\n"},
		{"files too", []string{"files"}, "works: write\nworks: read\nworks: cut\nworks: open\nworks: nameless\nworks: connect\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			root := t.TempDir()
			if err := os.WriteFile(filepath.Join(root, "readable"), []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
			dir, err := os.Open(root)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			cmd := exec.Command(program, c.args...)
			cmd.Dir, cmd.ExtraFiles = root, []*os.File{dir}
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
				UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
			}
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != c.want {
				t.Errorf("%v, it says\n%s\nand not\n%s", err, out, c.want)
			}
			entries, err := os.ReadDir(root)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if got := strings.Join(names, " "); got != "open readable" {
				t.Errorf("its root directory has %s", got)
			}
			if got, err := os.ReadFile(filepath.Join(root, "readable")); string(got) != "content" {
				t.Errorf("the file is %q, %v", got, err)
			}
		})
	}
}
