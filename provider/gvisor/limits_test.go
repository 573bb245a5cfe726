package gvisor_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// TestResizeProcessors checks the host's quota, because the speed of a busy
// loop is not reliable.
func TestResizeProcessors(t *testing.T) {
	p := newProvider(t, nil)
	limited(t, p, "cpus")
	in := create(t, p, sandbox.Spec{ID: "resized", Image: "host", Resources: sandbox.Resources{CPUs: 1}})
	resize := func(cpus float64) {
		t.Helper()
		if err := in.(driver.Resizer).Resize(t.Context(), sandbox.Resources{CPUs: cpus}); err != nil {
			t.Fatal(err)
		}
	}
	quota := func() string {
		for _, pattern := range []string{"/sys/fs/cgroup/cpu/atoll/resized-*/cpu.cfs_quota_us", "/sys/fs/cgroup/atoll/resized-*/cpu.max"} {
			files, _ := filepath.Glob(pattern)
			for _, f := range files {
				if b, err := os.ReadFile(f); err == nil {
					return strings.Fields(string(b))[0]
				}
			}
		}
		return ""
	}
	if quota() == "" {
		t.Fatal("the sandbox has no control group that this test knows")
	}
	for cpus, want := range map[float64]string{0.5: "50000", 1.5: "150000"} {
		if resize(cpus); quota() != want {
			t.Errorf("%v processors: the quota is %s, want %s", cpus, quota(), want)
		}
	}
	if resize(-1); quota() != "-1" && quota() != "max" {
		t.Errorf("no limit: the quota is %s", quota())
	}
}

// TestResizeBelowUse checks that memory in use cannot be taken away, and that
// nothing is killed.
func TestResizeBelowUse(t *testing.T) {
	p := newProvider(t, nil)
	limited(t, p, "memory")
	in := create(t, p, sandbox.Spec{ID: "full", Image: "host", Resources: sandbox.Resources{Memory: 512 << 20}})
	if o := run(t, in, sandbox.Command{Shell: "dd if=/dev/zero of=/dev/shm/big bs=1M count=200"}); o.exit.Code != 0 {
		t.Fatalf("filling memory: %+v", o)
	}
	err := in.(driver.Resizer).Resize(t.Context(), sandbox.Resources{Memory: 100 << 20})
	if p.ErrorCode(err) != sandbox.CodeConflict {
		t.Errorf("a limit below what is in use: %v, want %s", err, sandbox.CodeConflict)
	}
	if o := run(t, in, sandbox.Command{Shell: "rm /dev/shm/big"}); o.exit.Code != 0 {
		t.Errorf("the sandbox was affected: %+v", o)
	}
}

// TestUsageKnowsAll checks that this provider reports every figure.
func TestUsageKnowsAll(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{Image: "host"})
	u, err := in.(driver.Meter).Usage(t.Context())
	if err != nil || u.CPU <= 0 || u.Memory <= 1<<20 || u.Disk < 0 || u.PIDs != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	three := background(t, in, "sleep 60 & sleep 60 & echo; wait")
	if _, err := io.ReadFull(three.Stdout(), make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if u, err := in.(driver.Meter).Usage(t.Context()); err != nil || u.PIDs != 3 {
		t.Errorf("with three processes: %+v, %v", u, err)
	}
}

// unattached creates a sandbox that outlives its provider.
func unattached(t *testing.T, state string, spec sandbox.Spec) (*gvisor.Provider, driver.Instance) {
	t.Helper()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	in, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
		if in, err := p.Attach(context.Background(), spec.ID); err == nil {
			_ = in.Destroy(context.Background())
		}
	})
	return p, in
}

// stateOf reads the state without connecting, so that it enforces no deadline.
func stateOf(t *testing.T, p driver.Provider, id sandbox.ID) sandbox.State {
	t.Helper()
	for f, err := range p.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if f.ID == id {
			return f.State
		}
	}
	return sandbox.Gone
}

// TestDeadlineWithoutAnybody checks that a moved deadline is enforced without a
// process that is connected to the sandbox.
func TestDeadlineWithoutAnybody(t *testing.T) {
	state := t.TempDir()
	first := 3 * time.Second
	unknown := func(id sandbox.ID, timeout time.Duration, at func() time.Time) (moved bool) {
		began := time.Now()
		p, in := unattached(t, state, sandbox.Spec{ID: id, Image: "host", Lifetime: sandbox.Lifetime{Timeout: timeout}})
		defer p.Close() // its timers are gone, as are those of a daemon that was killed
		err := in.(driver.DeadlineSetter).SetDeadline(t.Context(), at())
		switch {
		case timeout == 0 && err != nil:
			t.Fatal(err)
		case timeout == 0, err == nil && time.Since(began) < timeout:
			return true
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		return false
	}
	for id, at := range map[sandbox.ID]func() time.Time{
		"later": func() time.Time { return time.Now().Add(time.Hour) },
		"never": func() time.Time { return time.Time{} },
	} {
		for !unknown(id, first, at) {
			first *= 2 // on a busy machine its deadline was moved too late
		}
	}
	unknown("set", 0, func() time.Time { return time.Now().Add(first) })
	other := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	for deadline := time.Now().Add(time.Minute); stateOf(t, other, "set") == sandbox.Running; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the sandbox outlived its deadline")
		}
	}
	if s := stateOf(t, other, "set"); s != sandbox.Stopped {
		t.Errorf("the sandbox is %s after its lifetime, want %s", s, sandbox.Stopped)
	}
	for _, id := range []sandbox.ID{"later", "never"} {
		if s := stateOf(t, other, id); s != sandbox.Running {
			t.Errorf("%s is %s although its first deadline was moved", id, s)
		}
	}
}

// TestPortOfLoopback checks that ports on the sandbox's loopback, IPv4 or IPv6,
// are reachable, and those of the machine are not.
func TestPortOfLoopback(t *testing.T) {
	need.Program(t, "python3")
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{Image: "host"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := in.(driver.Dialer).Dial(t.Context(), uint16(l.Addr().(*net.TCPAddr).Port))
	if p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("a port of the machine: %v, %v; want %s", conn, err, sandbox.CodeUnavailable)
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		const script = `import socket, sys
f = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.create_server((sys.argv[1], 0), family=f)
print(s.getsockname()[1], flush=True)
c = s.accept()[0]
c.sendall(b"hello from " + sys.argv[1].encode())
`
		cmd, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", script, host}})
		if err != nil {
			t.Fatal(err)
		}
		defer cmd.Close()
		var port uint16
		if _, err := fmt.Fscan(cmd.Stdout(), &port); err != nil {
			t.Fatal(err)
		}
		conn, err := in.(driver.Dialer).Dial(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if b, err := io.ReadAll(conn); err != nil || string(b) != "hello from "+host {
			t.Errorf("%s: %q, %v", host, b, err)
		}
	}
}

// TestCommandAtTheEnd starts commands until the lifetime is over. The error of
// the interrupted command must name the lifetime, not a lost connection.
func TestCommandAtTheEnd(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{Image: "host"})
	if err := in.(driver.DeadlineSetter).SetDeadline(t.Context(), time.Now().Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		proc, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}})
		if err == nil {
			_ = proc.Close()
			continue
		}
		if !strings.Contains(err.Error(), "its lifetime is over") {
			t.Errorf("exec at the end of the lifetime: %v, want an error that names it", err)
		}
		return
	}
}

// TestVisibleLimits checks the files and the number of processors from which
// programs (Go, Java, Node.js, cargo) take their limits, for new sandboxes,
// after a change, and in forks.
func TestVisibleLimits(t *testing.T) {
	const read = "cd /sys/fs/cgroup && cat cpu.max memory.max pids.max && nproc"
	see := func(in driver.Instance, want string) {
		t.Helper()
		if o := run(t, in, sandbox.Command{Shell: read}); strings.Join(strings.Fields(o.stdout), " ") != want {
			t.Errorf("%q, %q, want %q", o.stdout, o.stderr, want)
		}
	}
	p := newProvider(t, nil)
	limited(t, p, "cpus")
	free := create(t, p, sandbox.Spec{ID: "free", Image: "host"})
	see(free, fmt.Sprintf("max 100000 2147483648 4096 %d", runtime.NumCPU()))
	in := create(t, p, sandbox.Spec{Image: "host", Resources: sandbox.Resources{CPUs: 0.5, Memory: 300 << 20, PIDs: 50}})
	see(in, "50000 100000 314572800 50 1")
	change := sandbox.Resources{CPUs: 1, Memory: 256 << 20, PIDs: -1}
	if err := in.(driver.Resizer).Resize(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	see(in, "100000 100000 268435456 max 1")
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	smaller := sandbox.Resources{CPUs: 0.25, Memory: 200 << 20, PIDs: 40}
	twin, how := restore(t, p, dir, sandbox.Spec{ID: "smaller", Image: "host", Resources: smaller})
	if !how.Memory {
		t.Fatalf("the memory was not restored: %s", how.Why)
	}
	see(twin, "25000 100000 209715200 40 1")
}
