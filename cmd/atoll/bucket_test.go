package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// bucketSandbox creates a sandbox with the workspace data.
func (s *soaker) bucketSandbox(t *testing.T, name string, mode sandbox.WorkspaceMode) (*atoll.Sandbox, error) {
	t.Helper()
	return s.client.Create(t.Context(), sandbox.Spec{
		Name: name, Resources: sandbox.Resources{Memory: 256 << 20}, Workspaces: []sandbox.WorkspaceMount{{Name: "data", Mode: mode}},
	}, atoll.CreateOptions{})
}

func objectOf(t *testing.T, objects blob.Store, key string) string {
	t.Helper()
	body, err := objects.Get(t.Context(), key, 0, -1)
	if err != nil {
		return err.Error()
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// bucketMounts lists the buckets that are mounted below a directory.
func bucketMounts(t *testing.T, dir string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") && strings.Contains(line, "atoll-bucket") {
			all = append(all, at)
		}
	}
	return all
}

// bucketServer returns the process that serves a bucket, started by the program
// of this test.
func bucketServer(t *testing.T, program string) int {
	t.Helper()
	for pid := range processesOf(program) {
		name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err == nil && string(name) == "atoll-bucket\x00" {
			return pid
		}
	}
	t.Fatal("no process serves the bucket")
	return 0
}

// With a bucket as a workspace, a sandbox's writes are in the bucket after the
// sandbox has ended, even if processes were killed meanwhile. The sandbox
// cannot see the bucket's credentials.
func TestBucket(t *testing.T) {
	need.Program(t, "python3")
	need.Root(t, "it mounts buckets")
	if err := bucket.Possible(); err != nil {
		need.Thing(t, "FUSE", err.Error())
	}
	address := blobtest.S3(t)
	objects, err := blob.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, text string) {
		t.Helper()
		if err := objects.Put(t.Context(), key, strings.NewReader(text), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put("in/there", "from outside")
	s := bucketSoaker(t, address)
	if _, err := s.client.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "other", Bucket: "nothing"}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a bucket that was not named: %v", err)
	}
	if _, err := s.client.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "data", Bucket: "data"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "again", Bucket: "data"}); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		t.Errorf("the same bucket twice: %v", err)
	}
	if _, err := s.client.WorkspaceVersions(t.Context(), "data"); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("its history: %v", err)
	}
	sb, err := s.bucketSandbox(t, "one", "")
	if err != nil {
		t.Fatal(err)
	}
	got := run(t, sb, `set -e; cd /workspace
		cat in/there; echo; ls; mkdir out; echo one >out/log; echo two >>out/log; cp -p out/log out/copy; mv out/copy out/moved
		python3 -c 'f = open("out/log", "r+"); f.seek(4); f.write("TWO"); f.close(); print(open("out/log").read())'
		touch out/gone; rm out/gone; ! ln -s log out/link 2>/dev/null; ls out; tar -cf out/all.tar in; tar -tf out/all.tar; mkdir deep; mv deep moved; test -d moved`)
	if want := "from outside\nin\none\nTWO\n\nlog\nmoved\nin/\nin/there"; got != want {
		t.Errorf("inside:\n%s\nwant:\n%s", got, want)
	}
	if secret := os.Getenv("AWS_SECRET_ACCESS_KEY"); strings.Contains(run(t, sb, `cat /proc/*/environ /proc/mounts /proc/*/cmdline | tr '\0' '\n'`), secret) {
		t.Error("the key of the bucket is inside")
	}
	if _, err := s.bucketSandbox(t, "two", ""); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("attached to two: %v", err)
	}

	// The daemon is killed while a file is open; the next daemon continues.
	if _, err := sb.Exec(t.Context(), sandbox.Command{Background: true, Shell: `exec 3>/workspace/out/open
		echo before >&3; until test -e /tmp/go; do sleep 0.1; done; echo after >&3; exec 3>&-; touch /tmp/went`}); err != nil {
		t.Fatal(err)
	}
	run(t, sb, `until test -e /workspace/out/open; do sleep 0.1; done`)
	s.kill()
	s.start(t)
	if sb, err = s.client.Get(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	run(t, sb, `touch /tmp/go; until test -e /tmp/went; do sleep 0.1; done; cat /workspace/in/there`)
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"out/log": "one\nTWO\n", "out/moved": "one\ntwo\n", "out/open": "before\nafter\n"} {
		if got := objectOf(t, objects, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if left := bucketMounts(t, s.state); len(left) > 0 {
		t.Errorf("still mounted: %v", left)
	}

	// Several sandboxes may read; none of them may write.
	put("in/there", "changed outside")
	for i := range 2 {
		reader, err := s.bucketSandbox(t, fmt.Sprint("reader-", i), sandbox.WorkspaceRead)
		if err != nil {
			t.Fatal(err)
		}
		if got := run(t, reader, `cat /workspace/in/there; ! touch /workspace/x 2>/dev/null; ! rm /workspace/in/there 2>/dev/null`); got != "changed outside" {
			t.Errorf("a reader sees %q", got)
		}
	}

	// If the bucket's server is killed, the sandbox gets an error, and the next
	// sandbox works.
	signal(t, bucketServer(t, s.bin), syscall.SIGKILL)
	for i := range 2 {
		reader, err := s.client.Get(t.Context(), fmt.Sprint("reader-", i))
		if err != nil {
			t.Fatal(err)
		}
		// Its working directory may be gone already, too.
		res, err := reader.Run(t.Context(), sandbox.Command{Args: []string{"ls", "/workspace/in"}, Dir: "/"}, atoll.RunOptions{})
		if err != nil || res.Exit.Code == 0 {
			t.Errorf("without the bucket's server: %+v, %v", res, err)
		}
		if err := reader.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	last, err := s.bucketSandbox(t, "last", "")
	if err != nil {
		t.Fatal(err)
	}
	run(t, last, `cat /workspace/in/there; rm /workspace/in/there`)
	if err := last.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.client.RemoveWorkspace(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	if got := objectOf(t, objects, "out/log"); got != "one\nTWO\n" {
		t.Errorf("the bucket was emptied: %q", got)
	}
	if left := bucketMounts(t, s.state); len(left) > 0 {
		t.Errorf("still mounted: %v", left)
	}
}

// bucketSoaker starts a daemon, from a copy of the program, with a bucket.
func bucketSoaker(t *testing.T, address string) *soaker {
	t.Helper()
	dir := t.TempDir()
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil { // kernels run as nobody
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "atoll")
	if err := copyFile(built.atoll, program); err != nil {
		t.Fatal(err)
	}
	return soakerOf(t, program, filepath.Join(dir, "state"), "--bucket", "data="+address)
}
