package spawn_test

import (
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/guest/spawn"
)

// begin starts a program on /dev/null and returns its process number and pidfd.
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

// TestAwait waits for a program that ends, for one that does not, and for
// output.
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

// TestNoDescriptor checks that there is no pidfd for a program that cannot
// start or that package syscall starts.
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

// TestWhenItRuns checks that the descriptors in Close are closed if the program
// starts, and only then, and that its end is awaited.
func TestWhenItRuns(t *testing.T) {
	for name, how := range map[string]start{"special": spawn.ForkExec, "plain": spawn.ForkExecPlain} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			fd, err := syscall.Dup(int(w.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			pidfd := -1
			attr := spawn.Attr{Files: [3]int{fd, fd, fd}, Close: []int{fd}, Pidfd: &pidfd, Await: time.Hour}
			if pid, err := how("/nowhere", []string{"nowhere"}, &attr); err != syscall.ENOENT || attr.Ended {
				t.Fatalf("process %d, %v, ended: %v", pid, err, attr.Ended)
			}
			pid, err := how("/bin/echo", []string{"echo", "words"}, &attr)
			if err != nil {
				t.Fatal(err)
			}
			if attr.Ended != (name == "special") || attr.Ended != (pidfd >= 0) {
				t.Errorf("ended: %v, descriptor %d", attr.Ended, pidfd)
			}
			if text, err := io.ReadAll(r); err != nil || string(text) != "words\n" { // ends, because all other ends of the pipe are closed
				t.Errorf("%q, %v", text, err)
			}
			if got, err := syscall.Wait4(pid, nil, 0, nil); got != pid || err != nil {
				t.Errorf("process %d, %v", got, err)
			}
			if pidfd >= 0 {
				syscall.Close(pidfd)
			}
		})
	}
}

// TestWaitsNoLonger checks that Await does not wait longer than it should.
func TestWaitsNoLonger(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n, pidfd := int(null.Fd()), -1
	attr := spawn.Attr{Files: [3]int{n, n, n}, Pidfd: &pidfd, Await: time.Millisecond, Ended: true}
	pid, err := spawn.ForkExec("/bin/sleep", []string{"sleep", "1000"}, &attr)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pidfd)
	if attr.Ended || spawn.Await(0, pidfd) {
		t.Error("it has ended")
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	if !spawn.Await(time.Hour, pidfd) {
		t.Error("it has not ended")
	}
	_, _ = syscall.Wait4(pid, nil, 0, nil)
}
