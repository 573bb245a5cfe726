package early

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// helper starts this program as the kernel does, in a new mount namespace, and
// returns the file that triggers it.
func helper(t *testing.T) (*exec.Cmd, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	t.Cleanup(func() { w.Close() })
	cmd := &exec.Cmd{
		Path: unmounter[0], Args: unmounter, ExtraFiles: []*os.File{r}, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, w
}

// TestWaitsToBeTold checks that nothing is unmounted if the kernel dies.
func TestWaitsToBeTold(t *testing.T) {
	cmd, w := helper(t)
	w.Close()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("got %v", err)
	}
}

// TestFails checks that a failed unmount is reported. In a namespace that it
// does not own, the helper may not unmount inherited mounts.
func TestFails(t *testing.T) {
	cmd, w := helper(t)
	if _, err := w.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("got %v", err)
	}
}
