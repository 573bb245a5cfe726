package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// screen simulates a user at a terminal: it records the output and sends keys.
type screen struct {
	t    *testing.T
	pty  *os.File
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
	done chan struct{}

	before unix.Termios // modes of the terminal before the program ran
}

// modes returns the modes of the terminal.
func (s *screen) modes() unix.Termios {
	s.t.Helper()
	m, err := unix.IoctlGetTermios(int(s.pty.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *m
}

// sit starts the program on a terminal of 100 columns and 30 rows.
func sit(t *testing.T, args ...string) (*screen, *exec.Cmd) {
	t.Helper()
	return sitAt(t, filepath.Join(t.TempDir(), "state"), args...)
}

// sitAt is sit with a state directory.
func sitAt(t *testing.T, state string, args ...string) (*screen, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(built.atoll, args...)
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+state, "TERM=xterm-256color")
	f, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	s := &screen{t: t, pty: f, more: make(chan struct{}, 1), done: make(chan struct{})}
	s.before = s.modes()
	if err := pty.Setsize(f, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.watch()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = f.Close()
		<-s.done
	})
	return s, cmd
}

func (s *screen) watch() {
	defer close(s.done)
	buf := make([]byte, 4096)
	for {
		n, err := s.pty.Read(buf)
		s.mu.Lock()
		s.text.Write(buf[:n])
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// see waits until the screen contains a text.
func (s *screen) see(text string) {
	s.t.Helper()
	deadline := time.After(30 * time.Second)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-deadline:
			s.t.Fatalf("the terminal does not show %q but\n%s", text, s)
		}
	}
}

func (s *screen) typeIn(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.pty, keys); err != nil {
		s.t.Fatal(err)
	}
}

func exitCodeOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

func TestTerminal(t *testing.T) {
	// A shell that is about to read handles a signal only after the read.
	s, cmd := sit(t, "run", "-it", "--", "sh", "-c", `trap 'size=$(stty size)' WINCH; test -t 0 && test -t 1 && test -t 2 && echo "tty $TERM"; stty size; until [ "$size" ]; do sleep 0.05; done; echo "$size"; read x; echo "read $x"; exit 5`)
	s.see("tty xterm-256color")
	s.see("30 100")
	if err := pty.Setsize(s.pty, &pty.Winsize{Cols: 77, Rows: 22}); err != nil {
		t.Fatal(err)
	}
	s.see("22 77")
	s.typeIn("hello\r")
	s.see("read hello")
	if code := exitCodeOf(t, cmd); code != 5 {
		t.Errorf("exit code %d", code)
	}
}

// Keys are passed on unchanged: the command's terminal, not ours, turns Ctrl-C
// into a signal and Ctrl-D into the end of input.
func TestTerminalKeys(t *testing.T) {
	s, cmd := sit(t, "run", "-it", "--", "sh", "-c", `trap 'echo interrupted' INT; sh -c 'echo ready; exec cat'; echo "cat $?"; cat; echo over`)
	s.see("ready")
	s.typeIn("\x03")
	s.see("interrupted")
	s.see("cat 130")
	s.typeIn("\x04")
	s.see("over")
	if code := exitCodeOf(t, cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Docker's keys leave a command on a terminal to itself, with its sandbox.
func TestDetachFromTerminal(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(built.atoll, args...)
		cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+state)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v %s", args, err, out)
		}
		return string(out)
	}
	run("create", "--name", "made")
	t.Cleanup(func() { run("rm", "--force", "--all"); run("down") })
	const script = `echo ready; while read x; do echo "got $x"; done`
	for name, args := range map[string][]string{
		"made": {"exec", "-it", "made", "--", "sh", "-c", script},
		"ran":  {"run", "-it", "--name", "ran", "--", "sh", "-c", script},
	} {
		s, cmd := sitAt(t, state, args...)
		s.see("ready")
		s.typeIn("one\r")
		s.see("got one")
		s.typeIn("\x10\x11")
		if code := exitCodeOf(t, cmd); code != 0 {
			t.Fatalf("%s: exit code %d\n%s", name, code, s)
		}
		s.see("to come back: atoll attach " + name)
		if s.modes() != s.before {
			t.Errorf("%s: the terminal is left changed", name)
		}
		if log := run("logs", name); !strings.Contains(log, "got one") {
			t.Errorf("%s: the log is %q", name, log)
		}
		s, cmd = sitAt(t, state, "attach", name)
		s.see("got one")
		s.typeIn("two\r")
		s.see("got two")
		s.typeIn("\x04") // the end of its input
		if code := exitCodeOf(t, cmd); code != 0 {
			t.Errorf("%s: exit code %d\n%s", name, code, s)
		}
	}
	// Other keys, or none, reach the command.
	s, cmd := sitAt(t, state, "exec", "-it", "--detach-keys", "none", "made", "--", "sh", "-c", `stty raw; echo ready; head -c 2 | od -An -tx1`)
	s.see("ready")
	s.typeIn("\x10\x11")
	s.see("10 11")
	if code := exitCodeOf(t, cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The terminal's modes are restored, however the program ends.
func TestTerminalIsRestored(t *testing.T) {
	s, cmd := sit(t, "run", "-it", "--", "sh", "-c", "echo ready; sleep 1000")
	s.see("ready")
	if s.modes().Lflag&unix.ICANON != 0 {
		t.Error("the terminal is not raw while the command runs")
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if after := s.modes(); after != s.before {
		t.Errorf("was %+v, is %+v", s.before, after)
	}
}

// Without a local terminal the command still gets one if requested.
func TestTerminalWithoutOne(t *testing.T) {
	cmd := exec.Command(built.atoll, "run", "-t", "--", "sh", "-c", "test -t 1 && stty size")
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+filepath.Join(t.TempDir(), "state"))
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "24 80" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestColorsOnlyOnATerminal(t *testing.T) {
	s, cmd := sit(t, "frobnicate")
	s.see("hint")
	_ = cmd.Wait()
	if !strings.Contains(s.String(), "\x1b[31m") {
		t.Errorf("no colour: %q", s)
	}
}

// A refreshing display uses the alternate screen and restores the terminal.
func TestTopAtTerminal(t *testing.T) {
	s, cmd := sit(t, "top", "--interval", "1")
	s.see("\x1b[?1049h")
	s.see("CPU %")
	s.typeIn("\x03")
	if code := exitCodeOf(t, cmd); code != 0 {
		t.Errorf("it ends with %d", code)
	}
	s.see("\x1b[?25h\x1b[?1049l")
	if s.modes() != s.before {
		t.Error("the terminal is left changed")
	}
}

// On a terminal a new key is shown with an explanation; standard output
// contains only the key.
func TestKeyAtTerminal(t *testing.T) {
	s, cmd := sit(t, "key", "create", "--expires", "1h")
	t.Cleanup(func() {
		down := exec.Command(built.atoll, "down") // what the verb started
		down.Env = cmd.Env
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	})
	s.see("not shown again")
	s.see("\natoll_")
	if code := exitCodeOf(t, cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
	again := exec.Command(built.atoll, "key", "create")
	again.Env = cmd.Env
	out, err := again.Output()
	if token := strings.TrimSuffix(string(out), "\n"); err != nil || !strings.HasPrefix(token, "atoll_") || strings.ContainsAny(token, " \n") {
		t.Errorf("%q %v", out, err)
	}
}
