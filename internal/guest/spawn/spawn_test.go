package spawn_test

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/guest/spawn"
)

const limitEnv = "SPAWN_LIMIT"

func TestMain(m *testing.M) {
	if os.Getenv(limitEnv) == "" {
		// Restore the limit of this process, because Go has raised it.
		var l syscall.Rlimit
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: l.Max, Max: l.Max})
		spawn.Special()
	}
	os.Exit(m.Run())
}

// tell is a program that prints everything that it has inherited.
const tell = `grep -E '^(Sig[BIC]|Shd|Uid|Gid|Groups|NoNewPrivs|CapEff)' /proc/self/status; ulimit -n; ulimit -Hn; pwd; umask
echo "$SECRET|$0|$1"; cat; cd /proc/self/fd && for f in 0 1 2 3 4 5 6 7 8 9; do [ -e $f ] && echo "open $f"; done
read -r _ _ _ parent group session _ </proc/$$/stat; [ "$session" = $$ ] && [ "$group" = $$ ] && echo "leads its session"; echo "$parent" >&2`

// start is one way to start a program.
type start func(path string, argv []string, attr *spawn.Attr) (int, error)

// run starts a program with pipes and returns its output and exit status.
func run(t *testing.T, how start, path string, argv []string, attr spawn.Attr) (out, errs string, status syscall.WaitStatus) {
	t.Helper()
	var read, write [3]*os.File
	for i := range read {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read[i], write[i] = r, w
	}
	attr.Files = [3]int{int(read[0].Fd()), int(write[1].Fd()), int(write[2].Fd())}
	pid, err := how(path, argv, &attr)
	for _, f := range []*os.File{read[0], write[1], write[2]} {
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = write[0].WriteString("input\n")
	write[0].Close()
	var texts [3]string
	var reading sync.WaitGroup
	for _, i := range []int{1, 2} {
		reading.Go(func() {
			b, _ := io.ReadAll(read[i])
			texts[i] = string(b)
			read[i].Close()
		})
	}
	reading.Wait()
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	return texts[1], texts[2], status
}

// TestInherits compares what programs inherit here and from package syscall, in
// a process that catches, ignores and blocks signals.
func TestInherits(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR1)
	signal.Ignore(syscall.SIGUSR2)
	t.Cleanup(func() { signal.Reset(syscall.SIGUSR1, syscall.SIGUSR2) })
	users := map[string]*syscall.Credential{"the same user": nil}
	if os.Geteuid() == 0 {
		users["another user"] = &syscall.Credential{Uid: 12345, Gid: 54321, Groups: []uint32{54321, 7}}
		users["no groups"] = &syscall.Credential{Uid: 1, Gid: 1}
	}
	for name, cred := range users {
		t.Run(name, func(t *testing.T) {
			attr := spawn.Attr{Dir: "/usr", Env: []string{"SECRET=a b\nc", "PATH=/usr/bin:/bin"}, Credential: cred}
			argv := []string{"sh", "-c", tell, "zero", "one\n"}
			want, _, _ := run(t, spawn.ForkExecPlain, "/bin/sh", argv, attr)
			got, errs, status := run(t, spawn.ForkExec, "/bin/sh", argv, attr)
			if spawn.Plain() {
				t.Fatal("package syscall started it")
			}
			if got != want || !strings.Contains(got, "leads its session") || !strings.Contains(got, "input\n") {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if !status.Exited() || errs != fmt.Sprintln(os.Getpid()) {
				t.Errorf("status %v, parent %q", status, errs)
			}
		})
	}
}

// TestLimit checks that a program gets the limit of open files that this
// process was started with, not Go's raised limit.
func TestLimit(t *testing.T) {
	if want := os.Getenv(limitEnv); want != "" {
		if out, _, _ := run(t, spawn.ForkExec, "/bin/sh", []string{"sh", "-c", "ulimit -Sn"}, spawn.Attr{}); strings.TrimSpace(out) != want {
			t.Errorf("a program has a limit of %q open files, want %s", out, want)
		}
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"-Sn 99", "-n 98"} {
		_, want, _ := strings.Cut(limit, " ")
		script := "ulimit " + limit + `; exec "$0" -test.run '^TestLimit$' -test.v`
		out, errs, status := run(t, spawn.ForkExec, "/bin/sh", []string{"sh", "-c", script, program}, spawn.Attr{Env: append(os.Environ(), limitEnv+"="+want)})
		if status != 0 || !strings.Contains(out, "--- PASS: TestLimit") {
			t.Errorf("%s: %v: %s%s", limit, status, out, errs)
		}
	}
}

// TestFails checks the kernel's errors and that nothing is left behind.
func TestFails(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	for _, c := range []struct {
		path, arg string
		attr      spawn.Attr
		want      error
	}{
		{path: "/nowhere", want: syscall.ENOENT},
		{path: file, want: syscall.EACCES},
		{path: "/bin/true", attr: spawn.Attr{Dir: "/nowhere"}, want: syscall.ENOENT},
		{path: "/bin/true", attr: spawn.Attr{InCgroup: true, Cgroup: 9999}, want: syscall.EBADF},
		{path: "/bin/true", attr: spawn.Attr{TTY: true}, want: syscall.ENOTTY},
		{path: "/bin/true", arg: "a\x00b", want: syscall.EINVAL},
		{path: "/bin/true", attr: spawn.Attr{Env: []string{"A=\x00"}}, want: syscall.EINVAL},
		{path: "/bin/true", arg: strings.Repeat("a", 200<<10), want: syscall.E2BIG},
	} {
		c.attr.Files = [3]int{n, n, n}
		pid, err := spawn.ForkExec(c.path, []string{c.path, c.arg}, &c.attr)
		if err != c.want || pid != 0 {
			t.Errorf("%s in %+v: process %d, %v; want %v", c.path, c.attr, pid, err, c.want)
		}
	}
	if spawn.Plain() {
		t.Error("a mistake of the caller was taken for a lack of the kernel")
	}
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("a process is left: %d, %v", pid, err)
	}
}

// TestTogether starts many programs during garbage collections. A thread's work
// in the new process must not disturb this one.
func TestTogether(t *testing.T) {
	stop := make(chan struct{})
	var collecting, starting sync.WaitGroup
	collecting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	for i := range 8 {
		starting.Go(func() {
			for j := range 15 {
				word := fmt.Sprint(i, "-", j)
				out, _, status := run(t, spawn.ForkExec, "/bin/echo", []string{"echo", word}, spawn.Attr{})
				if strings.TrimSpace(out) != word || status != 0 {
					t.Errorf("%q, %v; want %q", out, status, word)
				}
			}
		})
	}
	starting.Wait()
	close(stop)
	collecting.Wait()
}

// TestWait waits for any child.
func TestWait(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	pid, err := spawn.ForkExec("/bin/sh", []string{"sh", "-c", "exit 7"}, &spawn.Attr{Files: [3]int{n, n, n}})
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if got, err := spawn.Wait(&status); got != pid || err != nil || status.ExitStatus() != 7 {
		t.Errorf("process %d, status %v, %v; want %d and 7", got, status, err, pid)
	}
	if got, err := spawn.Wait(&status); err != syscall.ECHILD {
		t.Errorf("process %d, %v; want that there is none", got, err)
	}
}
