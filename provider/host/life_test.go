package host_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/sandbox"
)

// maker is the process name with which this program creates a sandbox and waits
// to be killed.
const maker = "host-maker"

func TestMain(m *testing.M) {
	if os.Args[0] == maker {
		makeAndWait(os.Args[1])
	}
	os.Exit(m.Run())
}

// script starts processes that try to outlive their sandbox and print their
// process numbers.
const script = `echo $$
sh -c 'echo $$; exec sleep 1001' &
setsid sh -c 'echo $$; exec sleep 1002' &
(setsid sh -c 'trap "" TERM HUP; echo $$; while :; do sleep 1; done' &)
env -i setsid sh -c 'echo $$; exec sleep 1003' &
wait; exec sleep 1004`

const scripted = 5 // processes

func makeAndWait(dir string) {
	p, err := host.New(host.Options{Dir: dir})
	if err != nil {
		panic(err)
	}
	in, err := p.Create(context.Background(), &sandbox.Spec{ID: "victim"})
	if err != nil {
		panic(err)
	}
	cmd, err := in.Exec(context.Background(), &sandbox.Command{Shell: script})
	if err != nil {
		panic(err)
	}
	_, _ = io.Copy(os.Stdout, cmd.Stdout())
}

func pids(t *testing.T, r io.Reader) (list []int) {
	t.Helper()
	in := bufio.NewScanner(r)
	for len(list) < scripted && in.Scan() {
		pid, err := strconv.Atoi(in.Text())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, pid)
	}
	if len(list) < scripted {
		t.Fatalf("only %d processes: %v", len(list), in.Err())
	}
	return list
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func mustDie(t *testing.T, list []int) {
	t.Helper()
	for _, pid := range list {
		for end := time.Now().Add(20 * time.Second); alive(pid); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				t.Fatalf("%d lives: %q", pid, cmdline)
			}
		}
	}
}

func newProvider(t *testing.T, dir string) *host.Provider {
	t.Helper()
	p, err := host.New(host.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func start(t *testing.T, p *host.Provider) (*host.Instance, []int) {
	t.Helper()
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "victim"})
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := in.Exec(t.Context(), &sandbox.Command{Shell: script})
	if err != nil {
		t.Fatal(err)
	}
	return in.(*host.Instance), pids(t, cmd.Stdout())
}

func TestDestroyLeavesNothing(t *testing.T) {
	dir := stateDir(t)
	in, list := start(t, newProvider(t, dir))
	if err := os.MkdirAll(in.Dir()+"/locked/in", 0o700); err != nil {
		t.Fatal(err)
	}
	os.Chmod(in.Dir()+"/locked", 0)
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range list {
		if alive(pid) {
			t.Errorf("%d lives", pid)
		}
	}
}

// TestGuestKilled kills the guest, the only parent of the processes.
func TestGuestKilled(t *testing.T) {
	dir := stateDir(t)
	in, list := start(t, newProvider(t, dir))
	parent, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", list[0]))
	if err != nil {
		t.Fatal(err)
	}
	supervisor, err := strconv.Atoi(strings.Fields(string(parent))[3])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exit, err := in.Wait(t.Context())
	if err != nil || exit.Reason != sandbox.ReasonCrashed {
		t.Errorf("%+v %v", exit, err)
	}
	mustDie(t, list)
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMakerKilled sends SIGKILL to the program that creates sandboxes. They
// must end, and the next start must remove their directories.
func TestMakerKilled(t *testing.T) {
	dir := stateDir(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: self, Args: []string{maker, dir}, Stderr: os.Stderr}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	list := pids(t, out)
	// While it lives, another process sees the sandbox and does not remove it.
	other := newProvider(t, dir)
	_, err = other.Attach(t.Context(), "victim")
	if other.ErrorCode(err) != sandbox.CodeUnsupported {
		t.Error(err)
	}
	if _, err := other.Create(t.Context(), &sandbox.Spec{ID: "victim"}); other.ErrorCode(err) != sandbox.CodeAlreadyExists {
		t.Error(err)
	}
	for _, pid := range list {
		if !alive(pid) {
			t.Errorf("%d ended too early", pid)
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	mustDie(t, list)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		newProvider(t, dir)
		left, err := filepath.Glob(dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left: %v", left)
		}
	}
}

// TestCleanEnvironment searches for this process's variables in a command.
func TestCleanEnvironment(t *testing.T) {
	t.Setenv("HOST_TOKEN", "canary-of-the-host")
	p := newProvider(t, stateDir(t))
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "clean"})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Destroy(context.Background())
	cmd, err := in.Exec(t.Context(), &sandbox.Command{Shell: `env; cat /proc/$PPID/environ 2>/dev/null; read -r s </proc/$$/stat; set -- ${s##*) }; cat "/proc/$2/environ"; ls -l /proc/self/fd | wc -l`})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(cmd.Stdout())
	if err != nil || strings.Contains(string(b), "canary") {
		t.Errorf("%s %v", b, err)
	}
	if !strings.HasSuffix(string(b), "\n6\n") { // total, 0, 1, 2, the directory, and one of ls' own
		if !strings.HasSuffix(string(b), "5\n") {
			t.Errorf("descriptors leak: %s", b)
		}
	}
}

func TestProbeWarns(t *testing.T) {
	f, err := newProvider(t, stateDir(t)).Probe(t.Context())
	if err != nil || f.Isolates || f.Findings[0].Severity != "warning" || !strings.Contains(f.Findings[0].Message, "no isolation") {
		t.Errorf("%+v %v", f, err)
	}
}

// TestAttackStoppedGuest checks that a command's timeout is enforced although
// the guest is stopped, and that the command's processes end, too.
func TestAttackStoppedGuest(t *testing.T) {
	in, err := newProvider(t, stateDir(t)).Create(t.Context(), &sandbox.Spec{ID: "stopped"})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Destroy(context.Background())
	cmd, err := in.Exec(t.Context(), &sandbox.Command{
		Shell: `sleep 600 & while read -r s </proc/$$/stat; set -- ${s##*) }; [ "$2" = "$3" ]; do sleep 0.01; done; echo "$2 $!"; wait`, Timeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	var guest, child int
	if _, err := fmt.Fscan(cmd.Stdout(), &guest, &child); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(guest, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	exit, err := cmd.Wait(t.Context())
	if err != nil || exit.Reason != sandbox.ReasonTimeout {
		t.Errorf("it ended with %+v, %v", exit, err)
	}
	for deadline := time.Now().Add(20 * time.Second); syscall.Kill(child, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Fatal("a process of the command still runs")
		}
	}
}
