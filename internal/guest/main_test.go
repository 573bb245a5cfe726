package guest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	_ "github.com/atoll-run/atoll/internal/guest/early" // the test binary is the guest, too
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == attacker {
		os.Exit(attack())
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built.dir != "" {
			os.RemoveAll(built.dir)
		}
		os.Exit(code)
	}))
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

// plainGuest builds the guest once. The test binary cannot be process 1: the
// guest changes all its threads, which a program linked with C (as with -race)
// cannot.
func plainGuest() (string, error) {
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "guest"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", built.dir+"/guest", "../../cmd/atoll-guest")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	return built.dir + "/guest", built.err
}

// patience is how long tests wait. The machine may be busy.
const patience = 3 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// startGuest runs this test binary as a guest and returns its connection.
func startGuest(t testing.TB, args []string, attr *syscall.SysProcAttr) (net.Conn, *exec.Cmd) {
	t.Helper()
	conn, theirs, err := guest.Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	self, err := os.Executable()
	if err == nil && args[len(args)-1] == guest.Argv0 {
		self, err = plainGuest()
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: self, Args: args, ExtraFiles: []*os.File{theirs}, Stderr: os.Stderr, SysProcAttr: attr, Env: append(guest.Env(), "GORACE=atexit_sleep_ms=0")}
	if err := cmd.Start(); err != nil {
		conn.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		if args[len(args)-1] == guest.Argv0 {
			cmd.Process.Kill() // a guest that is process 1 never exits
		}
		timer := time.AfterFunc(patience, func() {
			t.Error("the guest does not end")
			cmd.Process.Kill()
		})
		cmd.Wait()
		timer.Stop()
	})
	return conn, cmd
}

// newClient returns a client of a new guest that is confined to dir.
func newClient(t testing.TB, dir string) *guest.Client {
	t.Helper()
	conn, _ := startGuest(t, guest.HostArgs(dir), nil)
	return dial(t, conn, dir, guest.Options{})
}

// dial connects to a guest and configures it.
func dial(t testing.TB, conn net.Conn, dir string, opts guest.Options) *guest.Client {
	t.Helper()
	ctx := testContext(t)
	c, err := guest.Dial(ctx, conn, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	def := guest.Defaults{User: strconv.Itoa(os.Getuid()), Workdir: dir}
	if err := c.Configure(ctx, def); err != nil {
		t.Fatal(err)
	}
	return c
}

// result is the output and exit status of a command.
type result struct {
	stdout, stderr string
	exit           sandbox.Exit
}

// run runs a command to its end.
func run(t testing.TB, c *guest.Client, cmd *sandbox.Command, stdin string) result {
	t.Helper()
	ctx := testContext(t)
	cmd.Stdin = cmd.Stdin || stdin != ""
	p, err := c.Exec(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return finish(t, ctx, p, stdin)
}

func finish(t testing.TB, ctx context.Context, p driver.Process, stdin string) result {
	t.Helper()
	go func() {
		io.WriteString(p.Stdin(), stdin)
		p.Stdin().Close()
	}()
	errs := make(chan string, 1)
	go func() {
		b, err := io.ReadAll(p.Stderr())
		if err != nil {
			b = append(b, err.Error()...)
		}
		errs <- string(b)
	}()
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Error(err)
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return result{string(out), <-errs, exit}
}

func sh(script string) *sandbox.Command { return &sandbox.Command{Shell: script} }

func wantCode(t testing.TB, err error, code sandbox.Code) {
	t.Helper()
	if guest.ErrorCode(err) != code {
		t.Errorf("error %v has code %q, want %q", err, guest.ErrorCode(err), code)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// waitFor waits until cond holds.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition did not become true")
		}
	}
}
