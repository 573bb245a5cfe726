package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// fastClient is a client of a guest that uses ForkExec of package spawn, as
// inside a sandbox. If Go has raised the limit of open files, package syscall
// starts the programs and there is no fast path.
func fastClient(t testing.TB) (*guest.Client, int) {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: l.Max, Max: l.Max}); err != nil {
		t.Fatal(err)
	}
	conn, cmd := startGuest(t, guest.HostArgs("/"), nil)
	return dial(t, conn, "/", guest.Options{}), cmd.Process.Pid
}

// kinds are the commands that may take the fast path: foreground commands,
// rejoinable commands, and background commands.
var kinds = map[string]func(*sandbox.Command){
	"plain":      func(*sandbox.Command) {},
	"held":       func(c *sandbox.Command) { c.Hold = time.Minute },
	"background": func(c *sandbox.Command) { c.Background = true },
	"open input": func(c *sandbox.Command) { c.Background, c.Stdin = true, true },
}

func ofKind(set func(*sandbox.Command), script string) *sandbox.Command {
	c := sh(script)
	set(c)
	return c
}

// TestFastPath runs commands that end at once, that start slowly, and others,
// and checks their complete output and exit status.
func TestFastPath(t *testing.T) {
	for kind, set := range kinds {
		t.Run(kind, func(t *testing.T) { testFastPath(t, set) })
	}
}

func testFastPath(t *testing.T, set func(*sandbox.Command)) {
	c, _ := fastClient(t)
	long := strings.Repeat("0123456789", 20_000)
	for script, want := range map[string]result{
		"true":                                  {},
		"exit 7":                                {exit: sandbox.Exit{Code: 7}},
		"kill -9 $$":                            {exit: sandbox.Exit{Code: 137, Signal: 9}},
		"echo out; echo err >&2; exit 3":        {"out\n", "err\n", sandbox.Exit{Code: 3}},
		"exec >&- 2>&-; sleep 0.1; exit 4":      {exit: sandbox.Exit{Code: 4}},
		"sleep 0.02; echo out; sleep 0.02":      {stdout: "out\n"},
		"sleep 0.1; echo out; echo err >&2":     {"out\n", "err\n", sandbox.Exit{}},
		"(sleep 0.1; echo late) & echo early":   {stdout: "early\nlate\n"},
		"(sleep 0.1; echo late >&2) >&- & :":    {stderr: "late\n"},
		"head -c 200000 /dev/zero | tr '\\0' x": {stdout: strings.Repeat("x", len(long))},
	} {
		t.Run(script, func(t *testing.T) {
			got := run(t, c, ofKind(set, script), "")
			got.exit.Reason = ""
			if got != want {
				t.Errorf("got %.80q, %.80q, %+v", got.stdout, got.stderr, got.exit)
			}
		})
	}
}

// TestFastPathIsKept checks that the output of background commands of any
// duration can be read again, and that their end is recorded.
func TestFastPathIsKept(t *testing.T) {
	c, _ := fastClient(t)
	ctx := testContext(t)
	for _, script := range []string{"", "sleep 0.02; ", "sleep 0.1; "} {
		for range 5 {
			p, err := c.Exec(ctx, &sandbox.Command{Shell: script + "echo out; echo err >&2; exit 3", Background: true})
			if err != nil {
				t.Fatal(err)
			}
			p.Close() // perhaps before the end
			again, err := c.Reconnect(ctx, p.Info().ID)
			if err != nil {
				t.Fatal(err)
			}
			if got := finish(t, ctx, again, ""); got.stdout != "out\n" || got.stderr != "err\n" || got.exit.Code != 3 {
				t.Errorf("%q: %+v", script, got)
			}
			again.Close()
			if got := readLog(t, c, p.Info().ID, driver.LogOptions{Follow: true}); len(got) != len("1out\n2err\n") {
				t.Errorf("%q: the log is %q", script, got)
			}
		}
	}
}

// TestFastPathIsRejoined disconnects from a rejoinable command in its first
// moments.
func TestFastPathIsRejoined(t *testing.T) {
	c, _ := fastClient(t)
	ctx := testContext(t)
	for _, script := range []string{"", "sleep 0.02; ", "sleep 0.1; "} {
		p, err := c.Exec(ctx, &sandbox.Command{Shell: script + "echo out; echo err >&2; exit 3", Hold: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		p.(driver.Detacher).Detach()
		again, at, err := c.Rejoin(ctx, p.Info().ID, driver.Cursor{}, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := finish(t, ctx, again, ""); at != (driver.Cursor{}) || got.stdout != "out\n" || got.stderr != "err\n" || got.exit.Code != 3 {
			t.Errorf("%q: from %+v: %+v", script, at, got)
		}
		again.Close()
	}
}

// TestFastPathIsReached kills commands as soon as they are known, and sends
// input to a command that waits for it.
func TestFastPathIsReached(t *testing.T) {
	c, _ := fastClient(t)
	ctx := testContext(t)
	for kind, set := range kinds {
		for range 3 {
			p, err := c.Exec(ctx, ofKind(set, "exec sleep 1000"))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Signal(ctx, 15); err != nil {
				t.Error(kind, err)
			}
			if exit, err := p.Wait(ctx); err != nil || exit.Signal != 15 {
				t.Errorf("%s: %+v %v", kind, exit, err)
			}
			p.Close()
		}
	}
	for range 3 {
		if got := run(t, c, ofKind(kinds["open input"], "read x; echo got $x"), "it\n"); got.stdout != "got it\n" {
			t.Errorf("%+v", got)
		}
	}
}

// TestFastPathBesideOthers runs commands while another one runs, so that none
// is the last child, and many concurrently.
func TestFastPathBesideOthers(t *testing.T) {
	c, _ := fastClient(t)
	other, err := c.Exec(testContext(t), &sandbox.Command{Args: []string{"sleep", "1000"}, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 10 {
				word := fmt.Sprint(i, "-", j)
				if got := run(t, c, sh("echo "+word+"; exit "+itoa(j)), ""); got.stdout != word+"\n" || got.exit.Code != j {
					t.Errorf("%s: %+v", word, got)
				}
			}
		})
	}
	all.Wait()
}

// TestFastPathLeavesNothing checks that commands of all kinds leave no
// descriptor and no zombie in the guest.
func TestFastPathLeavesNothing(t *testing.T) {
	c, pid := fastClient(t)
	round := func() {
		for _, script := range []string{"true", "sleep 0.1", "echo x; sleep 0.01", "(sleep 0.05 &) >&- 2>&-", "nowhere"} {
			for _, set := range kinds {
				run(t, c, ofKind(set, script), "")
			}
		}
		run(t, c, &sandbox.Command{Args: []string{"/nowhere"}}, "")
		run(t, c, &sandbox.Command{Shell: "sleep 1000", Timeout: time.Millisecond}, "")
	}
	open := func() int {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	round()
	before := open()
	for range 5 {
		round()
	}
	waitFor(t, func() bool { return open() <= before })
	waitFor(t, func() bool { return len(children(t, pid)) == 0 })
}

// children lists the children of a process, including zombies.
func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pid, _, _ := strings.Cut(string(b), " ")
			n, _ := strconv.Atoi(pid)
			pids = append(pids, n)
		}
	}
	return pids
}

// TestFastPathTimeout has timeouts within the fast path and after it.
func TestFastPathTimeout(t *testing.T) {
	c, _ := fastClient(t)
	for _, most := range []time.Duration{time.Nanosecond, 2 * time.Millisecond, 20 * time.Millisecond, 150 * time.Millisecond} {
		got := run(t, c, &sandbox.Command{Args: []string{"sleep", "1000"}, Timeout: most}, "")
		if got.exit.Reason != sandbox.ReasonTimeout {
			t.Errorf("%v: %+v", most, got.exit)
		}
	}
}

// TestTerminalBesideOthers checks that a terminal's second stream ends while
// other commands run.
func TestTerminalBesideOthers(t *testing.T) {
	c, _ := fastClient(t)
	other, err := c.Exec(testContext(t), &sandbox.Command{Args: []string{"sleep", "1000"}, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	got := run(t, c, &sandbox.Command{Shell: "echo x", TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}}, "")
	if got.stdout != "x\r\n" || got.stderr != "" || got.exit.Code != 0 {
		t.Errorf("%+v", got)
	}
}

// TestFastPathIsGivenUp closes commands as soon as they have started.
func TestFastPathIsGivenUp(t *testing.T) {
	c, pid := fastClient(t)
	for range 20 {
		p, err := c.Exec(testContext(t), &sandbox.Command{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		if _, err := p.Wait(testContext(t)); err != nil {
			t.Error(err)
		}
	}
	waitFor(t, func() bool { return len(children(t, pid)) == 0 })
}
