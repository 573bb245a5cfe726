package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// alive reports whether a process runs.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(b, []byte(") Z ")) && syscall.Kill(pid, 0) == nil
}

func readInts(t *testing.T, r io.Reader, n int) (pids []int) {
	t.Helper()
	for range n {
		var pid int
		if _, err := fmt.Fscanln(r, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// TestTimeoutKillsTheTree runs a command that tries to survive: a child in
// another session, which is killed, and a daemon that has also left its parent,
// which survives.
func TestTimeoutKillsTheTree(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	cmd := sh(`trap '' TERM HUP INT; echo $$
set -m; sleep 1001 & echo $!; set +m
(trap '' TERM; sh -c 'echo $$; exec sleep 1002' &)
(setsid sh -c 'echo $$; exec sleep 1003' &)
setsid sh -c 'echo $$; exec sleep 1004' &
while :; do sleep 1; done`)
	cmd.Timeout = time.Second
	p, err := c.Exec(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out := bytes.Buffer{}
	exit, err := p.Wait(ctx)
	if err != nil || exit.Reason != sandbox.ReasonTimeout || exit.Code != 137 || exit.Signal != 9 {
		t.Errorf("%+v %v", exit, err)
	}
	buf := make([]byte, 4096)
	for bytes.Count(out.Bytes(), []byte("\n")) < 5 {
		n, err := p.Stdout().Read(buf)
		if err != nil {
			t.Fatal(err, out.String())
		}
		out.Write(buf[:n])
	}
	daemon := 0
	for _, pid := range readInts(t, &out, 5) {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(cmdline), "1003") {
			daemon = pid
			continue
		}
		waitFor(t, func() bool { return !alive(pid) })
	}
	if daemon == 0 || !alive(daemon) {
		t.Error("what left the tree and the session was killed")
	}
	if got := run(t, c, sh("echo still here"), ""); got.stdout != "still here\n" {
		t.Errorf("%+v", got)
	}
	c.Close() // ends the guest, which ends the daemon
	waitFor(t, func() bool { return !alive(daemon) })
}

// A program that leads its process group would need a fork to start a session,
// and the guest would not know about the second process.
func TestSetsidNeedsNoProcess(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	for _, background := range []bool{false, true} {
		p, err := c.Exec(ctx, &sandbox.Command{Args: []string{"setsid", "sh", "-c", "exit 3"}, Background: background})
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(ctx); err != nil || exit.Code != 3 {
			t.Errorf("background %v: %+v, %v", background, exit, err)
		}
		p.Close()

		// In its new session it can be signalled, and killed with its children.
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			p, err = c.Exec(ctx, &sandbox.Command{Args: []string{"setsid", "sh", "-c", "sleep 1005 & echo $!; wait"}, Background: background})
			if err != nil {
				t.Fatal(err)
			}
			pids := readInts(t, p.Stdout(), 1)
			if err := p.Signal(ctx, int(sig)); err != nil {
				t.Error(err)
			}
			if exit, err := p.Wait(ctx); err != nil || exit.Signal != int(sig) {
				t.Errorf("after signal %d: %+v, %v", sig, exit, err)
			}
			waitFor(t, func() bool { return !alive(pids[0]) })
			p.Close()
		}
	}
}

func TestForkBombTimesOut(t *testing.T) {
	c := newClient(t, "/")
	// The number of processes is limited to protect the machine.
	cmd := sh(`ulimit -u 4000 2>/dev/null; n=0; while [ $n -lt 100 ]; do (while :; do sh -c : ; done) & n=$((n+1)); done; wait`)
	cmd.Timeout = 500 * time.Millisecond
	got := run(t, c, cmd, "")
	if got.exit.Reason != sandbox.ReasonTimeout {
		t.Errorf("%+v", got.exit)
	}
	if got := run(t, c, sh("echo $(( 6 * 7 ))"), ""); got.stdout != "42\n" {
		t.Errorf("%+v", got)
	}
}

// TestCloseKills closes running commands that have a child.
func TestCloseKills(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	for name, script := range map[string]string{
		"running":      `echo $$; exec sleep 1000`,
		"child":        `sleep 1000 & echo $!; wait`,
		"other group":  `set -m; sleep 1000 >/dev/null 2>&1 & echo $!; wait`,
		"new session":  `setsid sh -c 'echo $$; exec sleep 1000' & wait`,
		"deaf to TERM": `trap '' TERM HUP; sh -c 'echo $$; while :; do sleep 1; done' & wait`,
	} {
		for how, end := range map[string]func(driver.Process) error{
			"Close": func(p driver.Process) error { return p.Close() },
			"Kill":  func(p driver.Process) error { return p.Signal(ctx, int(syscall.SIGKILL)) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				p, err := c.Exec(ctx, sh(script))
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				pid := readInts(t, p.Stdout(), 1)[0]
				if err := end(p); err != nil {
					t.Error(err)
				}
				waitFor(t, func() bool { return !alive(pid) })
				if exit, err := p.Wait(ctx); err != nil || exit.Code != 137 {
					t.Errorf("%+v %v, want code 137", exit, err)
				}
				if p.Close() != nil {
					t.Error("Close twice")
				}
				wantCode(t, p.Signal(ctx, 15), sandbox.CodeNotFound)
			})
		}
	}
}

// TestHangUpIsNotIgnored checks that a command that ignores SIGHUP is killed,
// with processes that have left its session.
func TestHangUpIsNotIgnored(t *testing.T) {
	t.Parallel()
	c := newClient(t, "/")
	ctx := testContext(t)
	p, err := c.Exec(ctx, sh(`trap '' HUP; setsid sleep 1000 & sh -c 'echo $$ $1; while :; do sleep 1; done' sh $! & wait`))
	if err != nil {
		t.Fatal(err)
	}
	var child, other int
	if _, err := fmt.Fscanln(p.Stdout(), &child, &other); err != nil {
		t.Fatal(err)
	}
	if err := p.(driver.Detacher).Detach(); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { return !alive(child) && !alive(other) })
	if exit, err := p.Wait(ctx); err != nil || exit.Signal != 9 {
		t.Errorf("%+v %v, want signal 9", exit, err)
	}
}

// TestLeftBehind checks that orphans of a command continue to run, are listed,
// and can be killed.
func TestLeftBehind(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	for name, cmd := range map[string]*sandbox.Command{
		"same output":  sh(`sleep 1000 & echo $!`),
		"quiet":        sh(`sleep 1000 >/dev/null 2>&1 & echo $!`),
		"other group":  sh(`set -m; sleep 1000 >/dev/null 2>&1 & echo $!`),
		"new session":  sh(`setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2`),
		"double fork":  sh(`(sh -c 'echo $$; exec sleep 1000' &)`),
		"with input":   {Shell: `sleep 1000 & echo $!`, Stdin: true},
		"held":         {Shell: `sleep 1000 & echo $!`, Hold: time.Second},
		"background":   {Shell: `sleep 1000 & echo $!`, Background: true},
		"late":         sh(`sleep 1000 & echo $!; sleep 0.3`),
		"deaf to hups": {Shell: `trap '' HUP; sleep 1000 & echo $!`, TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := c.Exec(ctx, cmd)
			if err != nil {
				t.Fatal(err)
			}
			pid := readInts(t, p.Stdout(), 1)[0]
			if exit, err := p.Wait(ctx); err != nil || exit.Code != 0 {
				t.Errorf("%+v %v, want code 0", exit, err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if run(t, c, sh("echo next"), ""); !alive(pid) {
				t.Fatal("it died with its command")
			}
			var info sandbox.ProcessInfo
			var ok bool
			waitFor(t, func() bool { // until the shell's child has become sleep
				info, ok = listed(t, c, pid)
				return !ok || strings.Join(info.Args, " ") == "sleep 1000"
			})
			if !ok || !info.Background || !info.Running || info.Exit != nil || time.Since(info.Started).Abs() > time.Minute {
				t.Errorf("listed as %+v, %v", info, ok)
			}
			_, err = c.Reconnect(ctx, info.ID)
			wantCode(t, err, sandbox.CodeConflict)
			if err := c.Kill(ctx, info.ID, int(syscall.SIGTERM)); err != nil {
				t.Error(err)
			}
			waitFor(t, func() bool { return !alive(pid) })
			waitFor(t, func() bool { _, ok := listed(t, c, pid); return !ok })
			wantCode(t, c.Kill(ctx, info.ID, int(syscall.SIGTERM)), sandbox.CodeNotFound)
		})
	}
}

// listed returns what the guest says of a process.
func listed(t *testing.T, c *guest.Client, pid int) (sandbox.ProcessInfo, bool) {
	t.Helper()
	all, err := c.Processes(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range all {
		if info.PID == pid && info.Running {
			return info, true
		}
	}
	return sandbox.ProcessInfo{}, false
}

// TestLeftBehindWrites checks an orphan that writes to its command's output
// after every client has left.
func TestLeftBehindWrites(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	done := t.TempDir() + "/done"
	for name, cmd := range map[string]*sandbox.Command{
		"plain": {}, "held": {Hold: time.Second}, "terminal": {TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Shell = fmt.Sprintf(`trap '' HUP; (read x <%s.go; head -c 10000000 /dev/zero && echo $? >%[1]s) & echo begun`, done)
			_ = os.Remove(done)
			_ = os.Remove(done + ".go")
			if err := syscall.Mkfifo(done+".go", 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := c.Exec(ctx, cmd)
			if err != nil {
				t.Fatal(err)
			}
			if exit, err := p.Wait(ctx); err != nil || exit.Code != 0 {
				t.Errorf("%+v %v", exit, err)
			}
			p.Close()
			if err := os.WriteFile(done+".go", []byte("go\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { b, _ := os.ReadFile(done); return string(b) == "0\n" })
		})
	}
}

func TestStreamsDoNotBlockEachOther(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	p, err := c.Exec(ctx, sh(`head -c 100000000 /dev/zero; echo end`)) // more than all buffers
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	q, err := c.Exec(ctx, &sandbox.Command{Args: []string{"sleep", "1000"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	stuffed := make(chan error, 1)
	go func() {
		_, err := q.Stdin().Write(make([]byte, 10<<20)) // the command does not read it
		stuffed <- err
	}()
	if got := run(t, c, &sandbox.Command{Args: []string{"cat"}}, "through"); got.stdout != "through" {
		t.Errorf("%+v", got)
	}
	if n, err := io.Copy(io.Discard, p.Stdout()); n != 100_000_004 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	q.Close()
	if err := <-stuffed; err == nil {
		t.Error("a write without a reader succeeds")
	}
}

// TestUnreadOutput writes a gigabyte without a reader. The command must block,
// and neither side may buffer it.
func TestUnreadOutput(t *testing.T) {
	conn, cmd := startGuest(t, guest.HostArgs("/"), nil)
	c := dial(t, conn, "/", guest.Options{})
	ctx := testContext(t)
	p, err := c.Exec(ctx, sh("head -c 1000000000 /dev/zero"))
	if err != nil {
		t.Fatal(err)
	}
	bg, err := c.Exec(ctx, &sandbox.Command{Shell: "head -c 1000000000 /dev/zero", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	bg.Close() // its output is dropped from now on
	if bg, err = c.Reconnect(ctx, bg.Info().ID); err != nil {
		t.Fatal(err)
	}
	if exit, err := bg.Wait(ctx); err != nil || exit.Code != 0 {
		t.Errorf("%+v %v", exit, err)
	}
	if rss := memory(t, cmd.Process.Pid); rss > 200<<10 {
		t.Errorf("the guest holds %d KiB", rss)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(short); err == nil {
		t.Error("the command ended although its output was not read")
	}
	p.Close()
	bg.Close()
}

func memory(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	kib, err = strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

func TestGrandchildHoldsTheOutput(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	p, err := c.Exec(ctx, sh("(sleep 0.3; echo late) & echo soon"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 0 {
		t.Errorf("%+v %v", exit, err)
	}
	if b, err := io.ReadAll(p.Stdout()); string(b) != "soon\nlate\n" || err != nil {
		t.Errorf("%q %v", b, err)
	}
}

func TestBackgroundLogs(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	p, err := c.Exec(ctx, &sandbox.Command{Shell: "echo one; echo two >&2; echo three; read x; echo got $x; exit 3", Background: true, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	id := p.Info().ID
	p.Close()
	again, err := c.Reconnect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := finish(t, ctx, again, "input\n"); got.stdout != "one\nthree\ngot input\n" || got.stderr != "two\n" || got.exit.Code != 3 {
		t.Errorf("%+v", got)
	}
	// The order of the two streams is not defined, but each stream keeps its
	// order.
	if got := readLog(t, c, id, driver.LogOptions{}); len(got) != len("1one\nthree\n2two\n1got input\n") && len(got) != len("1one\nthree\ngot input\n2two\n") {
		t.Errorf("%q", got)
	}
	q, err := c.Exec(ctx, &sandbox.Command{Shell: "printf 'one\ntwo\nthree'", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	readLog(t, c, q.Info().ID, driver.LogOptions{Follow: true}) // to its end
	for tail, want := range map[int]string{0: "1one\ntwo\nthree", 1: "1three", 2: "1two\nthree", 99: "1one\ntwo\nthree"} {
		if got := readLog(t, c, q.Info().ID, driver.LogOptions{Tail: tail, Follow: true}); got != want {
			t.Errorf("tail %d: %q, want %q", tail, got, want)
		}
	}
	list, err := c.Processes(ctx)
	if err != nil || len(list) != 2 || list[0].Running || list[0].Exit.Code != 3 || !list[0].Background {
		t.Errorf("%+v %v", list, err)
	}
	wantCode(t, c.Kill(ctx, id, 9), sandbox.CodeNotFound)
	wantCode(t, c.Kill(ctx, "p99", 9), sandbox.CodeNotFound)
	_, err = c.Reconnect(ctx, "p99")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = c.Logs(ctx, "", driver.LogOptions{})
	wantCode(t, err, sandbox.CodeNotFound)
}

func readLog(t *testing.T, c *guest.Client, id string, opts driver.LogOptions) string {
	t.Helper()
	r, err := c.Logs(testContext(t), id, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b strings.Builder
	last := 0
	for {
		chunk, err := r.Next()
		if err == io.EOF {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if chunk.Dropped > 0 {
			fmt.Fprintf(&b, "lost %d ", chunk.Dropped)
		}
		if chunk.Stream != last {
			last = chunk.Stream
			b.WriteString(strconv.Itoa(last))
		}
		b.Write(chunk.Data)
	}
}

func TestLogIsBounded(t *testing.T) {
	c := newClient(t, "/")
	ctx := testContext(t)
	p, err := c.Exec(ctx, &sandbox.Command{Shell: "head -c 5000000 /dev/zero; echo end", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	// Nothing is dropped while its starter may still read it.
	p.Close()
	again, err := c.Reconnect(ctx, p.Info().ID)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	// Read the output to its end, because data in the pipe is not yet in the log.
	if _, err := io.Copy(io.Discard, again.Stdout()); err != nil {
		t.Fatal(err)
	}
	got := readLog(t, c, p.Info().ID, driver.LogOptions{Follow: true})
	var lost int
	if _, err := fmt.Sscanf(got, "lost %d", &lost); err != nil || !strings.HasSuffix(got, "end\n") {
		t.Fatalf("%.100q", got)
	}
	kept := len(got) - len(fmt.Sprintf("lost %d 1", lost))
	if kept+lost != 5_000_004 || kept > 1<<20 || kept < 900_000 {
		t.Errorf("kept %d, lost %d", kept, lost)
	}
}

func TestManyAtOnce(t *testing.T) {
	c := newClient(t, "/")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			want := strings.Repeat(strconv.Itoa(i), 1000)
			if got := run(t, c, &sandbox.Command{Args: []string{"cat"}}, want); got.stdout != want || got.exit.Code != 0 {
				t.Errorf("%.50q %+v", got.stdout, got.exit)
			}
		})
	}
	wg.Wait()
}

// TestUsers needs root to switch to other accounts.
func TestUsers(t *testing.T) {
	need.Root(t, "others cannot run commands as another user")
	c := newClient(t, "/")
	for user, want := range map[string]string{
		"":           "0 0 root /root",
		"nobody":     "65534 65534 nobody /nonexistent",
		"1234":       "1234 0  /",
		"1234:99":    "1234 99  /",
		"0:4":        "0 4 root /root",
		"nobody:adm": "65534 4 nobody /nonexistent",
	} {
		cmd := &sandbox.Command{Shell: `echo "$(id -u) $(id -g) $USER $HOME"`, User: user, Dir: "/"}
		if got := run(t, c, cmd, ""); got.stdout != want+"\n" {
			t.Errorf("%q: %q, want %q", user, got.stdout, want)
		}
	}
}

// TestStreamsByName has the streams opened by name, as programs do that take
// /dev/stdin for a file. It needs root to switch to other accounts.
func TestStreamsByName(t *testing.T) {
	need.Root(t, "others cannot run commands as another user")
	c := newClient(t, "/")
	for _, user := range []string{"0", "65534"} {
		for _, cmd := range []sandbox.Command{{}, {Stdin: true}, {Background: true}, {Background: true, Stdin: true}} {
			cmd.Shell, cmd.User, cmd.Dir = "cat /dev/stdin >/dev/stdout; echo err >/dev/stderr; stat -Lc %u /dev/stdout", user, "/"
			in := ""
			if cmd.Stdin {
				in = "in\n"
			}
			got := run(t, c, &cmd, in)
			if got.exit.Code != 0 || got.stdout != in+user+"\n" || got.stderr != "err\n" {
				t.Errorf("as %s, background %v, input %v: %+v", user, cmd.Background, cmd.Stdin, got)
			}
		}
	}
}

// TestGuestKilled kills the guest during all kinds of operations.
func TestGuestKilled(t *testing.T) {
	conn, cmd := startGuest(t, guest.HostArgs("/"), nil)
	c := dial(t, conn, "/", guest.Options{})
	ctx := testContext(t)
	p, err := c.Exec(ctx, sh("echo begun; exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	pid := p.Info().PID
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
	if _, err := p.Stdout().Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	if _, err := p.Wait(ctx); err == nil {
		t.Error("no error")
	} else {
		wantCode(t, err, sandbox.CodeUnavailable)
	}
	if _, err := io.ReadAll(p.Stdout()); err == nil {
		t.Error("a broken stream seems complete")
	}
	<-c.Done()
	_, err = c.Stat(ctx, "/")
	wantCode(t, err, sandbox.CodeUnavailable)
	_, err = c.Exec(ctx, sh("true"))
	wantCode(t, err, sandbox.CodeUnavailable)
	for _, err := range c.List(ctx, "/", driver.ListOptions{}) {
		wantCode(t, err, sandbox.CodeUnavailable)
	}
}

// TestStrangers connects to programs that are not guests.
func TestStrangers(t *testing.T) {
	for name, tt := range map[string]struct {
		says string
		code sandbox.Code
	}{
		"closes":  {"", sandbox.CodeUnavailable},
		"http":    {"HTTP/1.1 200 OK\r\n\r\n", sandbox.CodeUnavailable},
		"version": {"atollgst\x09\x00\x00\x00\x00\x00\x00\x00", sandbox.CodeUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			go func() {
				io.ReadFull(b, make([]byte, 16))
				io.WriteString(b, tt.says)
				b.Close()
			}()
			_, err := guest.Dial(testContext(t), a, guest.Options{})
			wantCode(t, err, tt.code)
		})
	}
	a, b := net.Pipe()
	defer b.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := guest.Dial(ctx, a, guest.Options{}) // says nothing
	wantCode(t, err, sandbox.CodeTimeout)
}
