package gvisor_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// snapshotDir is the snapshot directory of all providers in the tests.
var snapshotDir string

// snapshot takes a snapshot and returns the directory of its files, which tests
// may damage.
func snapshot(tb testing.TB, in driver.Instance, opts driver.SnapshotOptions) string {
	tb.Helper()
	opts.ID = newSnapshotID()
	s, err := in.(driver.Snapshotter).Snapshot(context.Background(), opts)
	if err != nil {
		tb.Fatalf("taking a snapshot: %v", err)
	}
	if s.Ref.Kind == driver.SnapshotMemory != opts.Memory || s.Size == 0 || s.Engine == "" {
		tb.Errorf("the snapshot is described as %+v", s)
	}
	return filesOf(tb, s.Ref)
}

func newSnapshotID() string { return "sn-" + strings.ToLower(rand.Text()) }

// filesOf returns the directory of a snapshot's files, which is removed when
// the test ends.
func filesOf(tb testing.TB, ref driver.SnapshotRef) string {
	tb.Helper()
	id, transient := strings.CutPrefix(ref.Data, "transient:")
	if transient {
		id = ".new-" + id
	}
	dir := filepath.Join(snapshotDir, id)
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "files")
}

// refTo returns a reference to a directory as if it were a transient snapshot,
// so that only the provider checks it for damage.
func refTo(tb testing.TB, dir string) driver.SnapshotRef {
	tb.Helper()
	ref, remove, err := linkTo(dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(remove)
	return ref
}

func linkTo(dir string) (driver.SnapshotRef, func(), error) {
	id := newSnapshotID()
	draft := filepath.Join(snapshotDir, ".new-"+id)
	err := os.Mkdir(draft, 0o700)
	if err == nil {
		err = os.Symlink(dir, filepath.Join(draft, "files"))
	}
	return driver.SnapshotRef{Provider: gvisor.Name, Data: "transient:" + id}, func() { os.RemoveAll(draft) }, err
}

// restore restores a sandbox that is destroyed when the test ends.
func restore(tb testing.TB, p *gvisor.Provider, dir string, spec sandbox.Spec) (driver.Instance, driver.Restored) {
	tb.Helper()
	in, how, err := p.Restore(context.Background(), &spec, refTo(tb, dir))
	if err != nil {
		tb.Fatalf("restoring: %v", err)
	}
	tb.Cleanup(func() {
		if err := in.Destroy(context.Background()); err != nil {
			tb.Errorf("destroying the sandbox: %v", err)
		}
	})
	return in, how
}

// background starts a command in the background.
func background(tb testing.TB, in driver.Instance, shell string) driver.Process {
	tb.Helper()
	need.Commands(tb, shell)
	p, err := in.Exec(context.Background(), &sandbox.Command{Shell: shell, Background: true, Stdin: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p
}

// repl is a Python program that evaluates each line and prints the result.
const repl = `exec python3 -uc 'import sys
for line in sys.stdin:
    try: print(eval(line))
    except SyntaxError: exec(line); print("ok")
'`

// ask sends a line to a repl and returns the answer.
func ask(tb testing.TB, p driver.Process, out *bufio.Reader, line string) string {
	tb.Helper()
	if _, err := io.WriteString(p.Stdin(), line+"\n"); err != nil {
		tb.Fatal(err)
	}
	answer, err := out.ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

// reconnect connects to a background command in a copy of its sandbox, and
// skips said bytes of earlier output.
func reconnect(tb testing.TB, in driver.Instance, id string, said int) (driver.Process, *bufio.Reader) {
	tb.Helper()
	p, err := in.(driver.ProcessManager).Reconnect(context.Background(), id)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	out := bufio.NewReader(p.Stdout())
	if _, err := out.Discard(said); err != nil {
		tb.Fatal(err)
	}
	return p, out
}

// TestMemorySnapshot copies a running sandbox.
func TestMemorySnapshot(t *testing.T) {
	p := newProvider(t, func(o *gvisor.Options) { o.DebugDir = os.Getenv("ATOLL_TEST_DEBUG") })
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host", Hostname: "source"})
	sh(t, in, "echo before >/root/file; rm -rf /opt; ln -s /root/file /link; touch /root/gone; exec 9</root/gone; rm /root/gone")
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	if got := ask(t, proc, out, "x = list(range(1000))"); got != "ok" {
		t.Fatalf("the source answers %q", got)
	}
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	if got := ask(t, proc, out, "len(x)"); got != "1000" {
		t.Errorf("the source, going on, answers %q", got)
	}
	for i := range 3 {
		id := sandbox.ID(fmt.Sprint("copy-", i))
		twin, how := restore(t, p, dir, sandbox.Spec{ID: id, Image: "host", Hostname: string(id), Env: map[string]string{"WHO": string(id)}})
		if !how.Memory {
			t.Fatalf("the memory was not restored: %s", how.Why)
		}
		wantStatus(t, twin, kernel.StatusRunning)
		o := sh(t, twin, "hostname; echo $WHO; cat /link")
		if want := fmt.Sprintf("%s\n%s\nbefore\n", id, id); o.stdout != want {
			t.Errorf("the copy says %+v", o)
		}
		again, out := reconnect(t, twin, proc.Info().ID, len("ok\n"))
		if got := ask(t, again, out, fmt.Sprintf("len(x) + %d", i)); got != fmt.Sprint(1000+i) {
			t.Errorf("the copy answers %q", got)
		}
	}
}

// TestFileSnapshot copies only the files.
func TestFileSnapshot(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "files", Image: "host"})
	sh(t, in, `set -e
mkdir -p /srv/tree/deep; echo hello >/srv/tree/deep/file; chmod 640 /srv/tree/deep/file; chown 12:34 /srv/tree/deep/file
ln /srv/tree/deep/file /srv/tree/hard; ln -s deep/file /srv/tree/soft; mkfifo /srv/tree/fifo
truncate -s 1T /srv/tree/sparse; printf end | dd of=/srv/tree/sparse bs=1 seek=123456789 conv=notrunc status=none
rm -rf /etc/passwd; echo tmp >/tmp/kept; touch -hd @1234567890 /srv/tree/soft; touch -d @1234567890 /srv/tree/sparse /srv/tree/deep/file`)
	dir := snapshot(t, in, driver.SnapshotOptions{})
	twin, how := restore(t, p, dir, sandbox.Spec{ID: "files-2", Image: "host"})
	if how.Memory || how.Why != "" {
		t.Errorf("restored as %+v", how)
	}
	look := `cd /srv/tree; stat -c '%n %a %u:%g %h %F' . deep fifo; stat -c '%n %a %u:%g %h %s %Y %F' deep/file hard soft sparse; readlink soft; cat hard /tmp/kept; ls /etc/passwd 2>&1; dd if=sparse bs=1 skip=123456789 count=3 status=none; du sparse`
	if a, b := sh(t, in, look), sh(t, twin, look); a.stdout != b.stdout {
		t.Errorf("the copy has\n%s\nand not\n%s", b.stdout, a.stdout)
	}
	if info, err := os.Stat(filepath.Join(dir, "files.tar")); err != nil || info.Size() > 1<<20 {
		t.Errorf("the files take %v bytes, %v", info.Size(), err)
	}
}

// wantStatus checks what the kernel says about itself.
func wantStatus(t *testing.T, in driver.Instance, want kernel.Status) {
	t.Helper()
	if got, err := in.(*gvisor.Instance).Status(t.Context()); err != nil || got != want {
		t.Errorf("the kernel's status is %d, %v, want %d", got, err, want)
	}
}

// TestPause pauses and resumes a sandbox.
func TestPause(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "paused", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	ask(t, proc, out, "1")
	pauser := in.(driver.Pauser)
	wantStatus(t, in, kernel.StatusRunning)
	for range 2 {
		if err := pauser.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, in, kernel.StatusPaused)
	}
	snapshot(t, in, driver.SnapshotOptions{Memory: true})
	wantStatus(t, in, kernel.StatusPaused)
	for range 2 {
		if err := pauser.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, in, kernel.StatusRunning)
	}
	if got := ask(t, proc, out, "1 + 1"); got != "2" {
		t.Errorf("it answers %q", got)
	}
}
