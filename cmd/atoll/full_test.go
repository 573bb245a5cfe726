package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// smallDisk mounts a small file system.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	need.Root(t, "it mounts a file system of a given size")
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("atoll-test", dir, "tmpfs", unix.MS_NOSUID, "mode=711,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := unix.Unmount(dir, 0)
		for until := time.Now().Add(10 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(until); err = unix.Unmount(dir, 0) {
			time.Sleep(20 * time.Millisecond) // processes of the killed daemon may still be exiting
		}
		if err != nil {
			t.Errorf("something still uses the disk: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// fill fills a disk except for leave bytes, until empty is called. Called
// again, it also fills space that was freed meanwhile.
func fill(t *testing.T, disk string, leave int64) (empty func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(disk, "fill"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	for n := len(block); n > 0; n /= 2 { // to the last byte
		_, _ = f.Write(block[:n])
	}
	if at, err := f.Seek(0, 2); err != nil || f.Truncate(at-leave) != nil {
		t.Fatal("the disk cannot be filled")
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}

// On a full disk, operations that cannot be recorded fail with an error that
// says why. Running commands continue, no acknowledged change is lost, and when
// there is space again everything works.
func TestDiskFull(t *testing.T) {
	disk := smallDisk(t, "288m")
	s := soakerIn(t, filepath.Join(disk, "state"))
	b := s.sandbox(t, "runs")
	sum := sha256.Sum256(seeded(16 << 20))
	if _, err := b.Files().Write(t.Context(), "/kept", strings.NewReader(string(seeded(16<<20))), atoll.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := b.Exec(t.Context(), sandbox.Command{
		Shell: "n=0; while [ ! -e /stop ]; do n=$((n+1)); dd if=/dev/zero of=/written bs=64k count=16 conv=notrunc 2>/dev/null; sleep 0.05; done; echo $n", Background: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
	// Saved now, because a later failed save frees space.
	good, err := b.Snapshot(t.Context(), durable.SnapshotRequest{Name: "good", Save: true})
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"spare", "other"} {
		s.sandbox(t, name)
	}
	if _, err := b.Snapshot(t.Context(), durable.SnapshotRequest{Name: "unneeded"}); err != nil {
		t.Fatal(err)
	}
	s.wantReady(t, http.StatusOK)

	empty := fill(t, disk, 0)
	// The database may still have reserved space for some records.
	acknowledged := 0
	for err = nil; err == nil && acknowledged < 100_000; {
		if _, err = b.Run(t.Context(), sandbox.Command{Shell: "echo x >>/ran"}, atoll.RunOptions{}); err == nil {
			acknowledged++
		}
	}
	for what, try := range map[string]func() error{
		"exec": func() error {
			_, err := b.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
			return err
		},
		"create": func() error {
			_, err := s.client.Create(t.Context(), sandbox.Spec{Name: "new"}, atoll.CreateOptions{})
			return err
		},
		"memory snapshot": func() error {
			_, err := b.Snapshot(t.Context(), durable.SnapshotRequest{Name: "none", Memory: true})
			return err
		},
		"snapshot": func() error {
			_, err := b.Snapshot(t.Context(), durable.SnapshotRequest{Name: "none"})
			return err
		},
	} {
		fill(t, disk, 0) // failed operations have freed their space
		err := try()
		wantCode(t, what, err, sandbox.CodeExhausted)
		if e, ok := errors.AsType[*sandbox.Error](err); !ok || !strings.Contains(e.Hint, "space") {
			t.Errorf("%s does not say what to do: %+v", what, err)
		}
	}
	s.wantReady(t, http.StatusServiceUnavailable)
	// Operations that free space succeed repeatedly.
	for what, free := range map[string]func() error{
		"remove":         func() error { return s.client.Remove(t.Context(), "spare") },
		"remove another": func() error { return s.client.Remove(t.Context(), "other") },
		"snapshot rm":    func() error { return s.client.RemoveSnapshot(t.Context(), "unneeded") },
		"snapshot prune": func() error {
			_, err := s.client.PruneSnapshots(t.Context(), map[string]string{"none": "has"})
			return err
		},
	} {
		fill(t, disk, 0)
		if err := free(); err != nil {
			t.Errorf("on a full disk, %s: %v", what, err)
		}
	}
	fill(t, disk, 0)
	if now, err := s.client.Get(t.Context(), "runs"); err != nil || now.Info().State != sandbox.Running {
		t.Errorf("what runs is %q, %v", now.Info().State, err)
	}
	if states := s.really(t); len(states) != 1 || states[b.ID()] != sandbox.Running {
		t.Errorf("there are %v", states)
	}
	s.kill() // and the daemon comes back on a full disk
	if !s.tryStart(t) {
		empty()
		s.start(t)
		empty = fill(t, disk, 0)
	}
	empty()
	s.wantReady(t, http.StatusOK)

	if got := run(t, b, "sha256sum </kept; touch /ran; wc -l </ran"); got != hex.EncodeToString(sum[:])+"  -\n"+strconv.Itoa(acknowledged) {
		t.Errorf("afterwards it holds %q; %d commands were acknowledged", got, acknowledged)
	}
	run(t, b, "touch /stop")
	if again, err := b.Reconnect(t.Context(), p.Info().ID); err != nil {
		t.Error(err)
	} else if exit, err := again.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("what ran meanwhile ended with %+v, %v", exit, err)
	}

	// A snapshot that does not fit affects neither the sandbox nor the last good
	// snapshot.
	for _, memory := range []bool{false, true} {
		empty = fill(t, disk, 8<<20)
		_, err = b.Snapshot(t.Context(), durable.SnapshotRequest{Name: "large", Memory: memory})
		wantCode(t, "a snapshot that does not fit", err, sandbox.CodeExhausted)
		run(t, b, "true")
		for snap, err := range s.client.Snapshots(t.Context(), nil) {
			if err != nil || !snap.Ready {
				t.Errorf("it left %+v, %v", snap, err)
			}
		}
		empty()
	}
	kept, err := os.ReadDir(filepath.Join(s.state, "snapshots"))
	if err != nil || len(kept) != 1 || kept[0].Name() != good.ID {
		t.Errorf("there are snapshots %v, %v", kept, err)
	}
	copied, err := s.client.Create(t.Context(), sandbox.Spec{Name: "copy", Snapshot: "good"}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, copied, "sha256sum </kept"); !strings.HasPrefix(got, hex.EncodeToString(sum[:])) {
		t.Errorf("the copy holds %q", got)
	}
	s.alive["runs"], s.alive["copy"] = b.ID(), copied.ID()
	s.compare(t)
}

// wantReady fails unless /readyz answers with a status.
func (s *soaker) wantReady(t *testing.T, want int) {
	t.Helper()
	if status, text := s.fetch(t, "/readyz"); status != want {
		t.Errorf("/readyz answers %d, want %d: %s", status, want, text)
	}
}

// fetch requests a page from the daemon's socket.
func (s *soaker) fetch(t *testing.T, path string) (status int, text string) {
	t.Helper()
	socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.state, atoll.SocketName))
	}}
	defer socket.CloseIdleConnections()
	resp, err := (&http.Client{Transport: socket}).Get("http://daemon" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(page)
}

// brokenDisk mounts a file system, and returns what makes an error of its disk
// known to the host, after which it is read-only.
func brokenDisk(t *testing.T) (dir string, fail func()) {
	t.Helper()
	need.Root(t, "it mounts a file system")
	need.Program(t, "mkfs.ext4")
	dir = filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	run := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", program, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	file := filepath.Join(t.TempDir(), "image")
	run("truncate", "--size=1G", file)
	run("mkfs.ext4", "-q", "-F", "-e", "remount-ro", file)
	if out, err := exec.Command("mount", "-o", "loop", file, dir).CombinedOutput(); err != nil {
		need.Thing(t, "a loop device", string(out))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // copies of the mount may be in namespaces of other tests
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	device := filepath.Base(run("findmnt", "--noheadings", "--output", "SOURCE", dir))
	return dir, func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("1"), 0o200); err != nil {
			need.Thing(t, "ext4 errors on request", err.Error())
		}
	}
}

// A file system that turns read-only makes the daemon refuse what it cannot
// record, say why, and start no more, and nothing is half done.
func TestDiskTurnsReadOnly(t *testing.T) {
	disk, fail := brokenDisk(t)
	s := &soaker{
		bin: built.atoll, state: filepath.Join(disk, "state"), alive: map[string]sandbox.ID{}, dead: map[string]sandbox.ID{},
		files: map[sandbox.ID]string{}, snaps: map[string]string{},
	}
	s.env = append(os.Environ(), "ATOLL_STATE_DIR="+s.state, "ATOLL_KERNEL="+s.bin)
	client, err := atoll.New(atoll.Options{Host: "unix://" + filepath.Join(s.state, atoll.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	defer client.Close()
	s.start(t)
	ended := false
	defer func() {
		if !ended {
			s.kill()
		}
	}()
	b := s.sandbox(t, "runs")
	watching := &soak{soaker: s}
	kernel, gofer := watching.processes(b.ID())
	defer func() { // its state cannot be changed any more, so nothing else ends it
		for _, pid := range []int{kernel, gofer} {
			if pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}()
	s.wantReady(t, http.StatusOK)
	fail()
	for what, try := range map[string]func() error{
		"create": func() error {
			_, err := s.client.Create(t.Context(), sandbox.Spec{Name: "new"})
			return err
		},
		"exec": func() error {
			_, err := b.Run(t.Context(), sandbox.Command{Shell: "true"})
			return err
		},
		"remove": func() error { return b.Destroy(t.Context()) },
	} {
		if err := try(); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: %v, want %s", what, err, sandbox.CodeUnavailable)
		}
	}
	var names []string
	for info, err := range s.client.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Name)
	}
	if !slices.Equal(names, []string{"runs"}) {
		t.Errorf("the list is %q, want the sandbox that was there", names)
	}
	s.wantReady(t, http.StatusServiceUnavailable)
	doctor := exec.Command(s.bin, "doctor")
	doctor.Env = s.env
	if out, err := doctor.CombinedOutput(); err == nil || !strings.Contains(string(out), "the file system is read-only where the state is kept") {
		t.Errorf("doctor: %v, %s", err, out)
	}
	s.kill()
	ended = true
	again := exec.Command(s.bin, "up")
	again.Env = s.env
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "read-only file system") {
		t.Errorf("a daemon that starts there says %v, %s", err, out)
	}
}
