package spawn_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/guest/spawn"
)

// begin starts a program on /dev/null, and returns its number and descriptor.
func begin(t *testing.T, argv ...string) (pid, pidfd int) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	pid, err = spawn.ForkExec(argv[0], argv, &spawn.Attr{Files: [3]int{n, n, n}, Pidfd: &pidfd})
	if err != nil {
		t.Fatal(err)
	}
	if pidfd < 3 {
		t.Fatalf("descriptor %d", pidfd)
	}
	return pid, pidfd
}

// TestAwait waits for what ends, for what does not, and for what is written
// before.
func TestAwait(t *testing.T) {
	pid, pidfd := begin(t, "/bin/sh", "-c", "exit 5")
	if !spawn.Await(time.Hour, pidfd) {
		t.Error("it has not ended")
	}
	syscall.Close(pidfd)
	var status syscall.WaitStatus
	if got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); got != pid || err != nil || status.ExitStatus() != 5 {
		t.Errorf("process %d, status %v, %v", got, status, err)
	}

	pid, pidfd = begin(t, "/bin/sleep", "1000")
	defer func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		syscall.Close(pidfd)
	}()
	if spawn.Await(0, pidfd) || spawn.Await(time.Millisecond, pidfd) {
		t.Error("it ended")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.Close()
	if spawn.Await(time.Hour, pidfd, int(r.Fd())) {
		t.Error("it ended, when a stream did")
	}
}

// TestNoDescriptor expects none of a program that cannot be started, and where
// package syscall starts them.
func TestNoDescriptor(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	next := func() int {
		fd, err := syscall.Dup(n)
		if err != nil {
			t.Fatal(err)
		}
		syscall.Close(fd)
		return fd
	}
	before, pidfd := next(), 77
	_, err = spawn.ForkExec("/nowhere", []string{"nowhere"}, &spawn.Attr{Files: [3]int{n, n, n}, Pidfd: &pidfd})
	if err != syscall.ENOENT || pidfd != -1 || next() != before {
		t.Errorf("%v, descriptor %d, next %d and %d", err, pidfd, before, next())
	}
}
