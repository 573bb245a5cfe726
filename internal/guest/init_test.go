package guest_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// asInit starts a guest as process 1, with its own /proc and without access to
// the machine's control groups.
func asInit(t *testing.T) *syscall.SysProcAttr {
	need.Root(t, "it makes namespaces")
	return &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWCGROUP,
		Unshareflags: syscall.CLONE_NEWNS,
	}
}

// startInit runs a guest as process 1. It returns a client and a function that
// runs a program inside from outside, as a provider's kernel does.
func startInit(t *testing.T) (*guest.Client, func(args []string, link *os.File) error) {
	conn, cmd := startGuest(t, []string{guest.Argv0}, asInit(t))
	pid := cmd.Process.Pid
	if out, err := exec.Command("nsenter", "-t", itoa(pid), "-p", "-m", "mount", "-t", "proc", "none", "/proc").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := dial(t, conn, "/", guest.Options{})
	enter := func(args []string, link *os.File) error {
		self, err := plainGuest()
		if err != nil {
			return err
		}
		// nsenter cannot set a program's argv[0], which a shell can.
		script := `exec -a "$1" "$2" "$3" 3<&3`
		in := exec.Command("nsenter", "-t", itoa(pid), "-p", "-n", "-m", "bash", "-c", script, "bash", args[0], self, args[1])
		in.ExtraFiles = []*os.File{link}
		out, err := in.CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	}
	return c, enter
}

func TestInitReapsOrphans(t *testing.T) {
	c, _ := startInit(t)
	// A process that has ended can be signalled until its parent has reaped it.
	const script = `pid=$(sh -c 'sleep 0.01 >/dev/null & echo $!'); while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done; echo "reaped $pid"`
	if got := run(t, c, sh(script), ""); !strings.HasPrefix(got.stdout, "reaped ") {
		t.Errorf("%+v", got)
	}
	// The starter ends at once, so the process becomes a child of the guest.
	const parent = `while read -r s </proc/$$/stat; set -- ${s##*) }; [ "$2" != 1 ]; do sleep 0.01; done; echo "$2"`
	if got := run(t, c, sh(parent), ""); got.stdout != "1\n" {
		t.Errorf("parent %q", got.stdout)
	}
}

func TestInitSurvivesSignals(t *testing.T) {
	c, _ := startInit(t)
	got := run(t, c, sh("for s in HUP INT QUIT TERM USR1 USR2 PIPE ALRM KILL STOP ABRT XCPU; do kill -$s 1 || echo failed $s; done; echo done"), "")
	if got.stdout != "done\n" {
		t.Errorf("%+v", got)
	}
	if got := run(t, c, sh("trap"), ""); got.stdout != "" || got.exit.Code != 0 {
		t.Errorf("%+v", got)
	}
	// Commands must not inherit ignored signals.
	if got := run(t, c, sh("kill -PIPE $$; echo no"), ""); got.exit.Signal != int(syscall.SIGPIPE) {
		t.Errorf("%+v", got)
	}
}

func TestConnectAgain(t *testing.T) {
	c, enter := startInit(t)
	ctx := testContext(t)
	bg, err := c.Exec(ctx, &sandbox.Command{Shell: "echo begun; exec sleep 1000", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	fg, err := c.Exec(ctx, sh("exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil { // as after a crash of the control process
		t.Fatal(err)
	}
	if _, err := fg.Wait(ctx); err == nil {
		t.Error("no error about a command of a lost connection")
	} else {
		wantCode(t, err, sandbox.CodeUnavailable)
	}

	conn, theirs, err := guest.Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	if err := enter(guest.ConnectArgs(), theirs); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	again, err := guest.Dial(ctx, conn, guest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	p, err := again.Reconnect(ctx, bg.Info().ID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	buf := make([]byte, 6)
	if _, err := p.Stdout().Read(buf); err != nil || string(buf) != "begun\n" {
		t.Errorf("log %q, %v", buf, err)
	}
	waitFor(t, func() bool { // the foreground one ends with its connection
		list, err := again.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		alive := map[string]bool{}
		for _, p := range list {
			alive[p.ID] = p.Running
		}
		return alive[bg.Info().ID] && !alive[fg.Info().ID]
	})
	if err := again.Kill(ctx, bg.Info().ID, 9); err != nil {
		t.Error(err)
	}
	if x, err := p.Wait(ctx); err != nil || x.Signal != 9 {
		t.Errorf("%+v %v", x, err)
	}
}

// TestConnectNeedsRoot attacks the guest from an unprivileged process.
func TestConnectNeedsRoot(t *testing.T) {
	c, _ := startInit(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "attack") //nolint:usetesting // nobody cannot pass t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	if err := os.WriteFile(dir+"/"+attacker, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := &sandbox.Command{Args: []string{dir + "/" + attacker}, User: "65534:65534"}
	if got := run(t, c, cmd, ""); got.stdout != "nothing\n" {
		t.Errorf("%+v", got)
	}
	cmd.User = "0"
	if got := run(t, c, cmd, ""); got.stdout != "atollgst\n" {
		t.Errorf("root is not served: %+v", got)
	}
}

const attacker = "atoll-attacker"

// attack tries to be served by process 1 and returns an exit status.
func attack() int {
	s, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	if err != nil {
		return 1
	}
	if err := syscall.Connect(s, &syscall.SockaddrUnix{Name: "@atoll-guest"}); err != nil {
		return 2
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return 3
	}
	if err := syscall.Sendmsg(s, []byte{0}, syscall.UnixRights(pair[1]), nil, 0); err != nil {
		os.Stdout.WriteString("nothing\n")
		return 0
	}
	syscall.Close(pair[1])
	syscall.Read(s, make([]byte, 1)) // the end, or the confirmation
	syscall.Close(s)
	b := make([]byte, 8)
	if n, err := syscall.Read(pair[0], b); n != 8 || err != nil {
		os.Stdout.WriteString("nothing\n")
		return 0
	}
	os.Stdout.WriteString(string(b) + "\n")
	return 0
}
