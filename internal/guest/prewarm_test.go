package guest_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestPrewarm checks that the prewarm program is not listed and that the first
// command after it gets the first ID.
func TestPrewarm(t *testing.T) {
	c := newClient(t, t.TempDir())
	ctx := testContext(t)
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Prewarm(ctx, program); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Processes(ctx); err != nil || len(list) != 0 {
		t.Fatalf("the prewarm program is listed: %+v, %v", list, err)
	}
	p, err := c.Exec(ctx, &sandbox.Command{Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 0 {
		t.Fatalf("a command after it: %+v, %v", exit, err)
	}
	if list, err := c.Processes(ctx); err != nil || len(list) != 1 || list[0].ID != "p1" {
		t.Fatalf("the first command is %+v, %v", list, err)
	}
}

// TestPrewarmWhatFails checks that the guest works after a failed prewarm and
// has no descriptors left over: the guest may open only a few, and prewarms fail
// more often than that.
func TestPrewarmWhatFails(t *testing.T) {
	dir := t.TempDir()
	conn, cmd := startGuest(t, guest.HostArgs(dir), nil)
	c := dial(t, conn, dir, guest.Options{})
	failing, err := os.ReadFile("/bin/false")
	if err != nil {
		t.Fatal(err)
	}
	const most = 64
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
		t.Fatal(err)
	}
	for range most {
		for _, program := range [][]byte{failing, []byte("not a program"), nil} {
			wantCode(t, c.Prewarm(testContext(t), program), sandbox.CodeUnavailable)
		}
	}
	if out := run(t, c, &sandbox.Command{Args: []string{"echo", "works"}}, ""); out.stdout != "works\n" {
		t.Errorf("a command afterwards: %+v", out)
	}
}
