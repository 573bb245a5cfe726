package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// program is what serves buckets.
var program string

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "atoll-bucket-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "server")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("building the server: %v\n%s", err, out))
	}
	if err := os.Chmod(dir, 0o755); err != nil { // executed by the user nobody
		panic(err)
	}
	return blobtest.Main(m)
}

// possible skips what this machine cannot do at all.
func possible(t *testing.T) {
	t.Helper()
	need.Root(t, "it mounts buckets")
	if err := bucket.Possible(); err != nil {
		need.Thing(t, "FUSE", err.Error())
	}
}

// fixture is a mounted bucket, and the same bucket as others see it.
type fixture struct {
	*testing.T
	buckets *bucket.Buckets
	dir     string // of buckets
	at      string // where it is mounted
	objects blob.Store
}

const id = "ws-test"

// mounted mounts an empty bucket that is at an address.
func mounted(t *testing.T, address string, opts bucket.Options) *fixture {
	t.Helper()
	possible(t)
	objects, err := blob.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	opts.Executable, opts.Dir, opts.Named = program, t.TempDir(), map[string]string{"default/data": address}
	b, err := bucket.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, buckets: b, dir: opts.Dir, objects: objects}
	t.Cleanup(func() {
		if err := b.Unmount(id); err != nil {
			t.Error(err)
		}
		if left := mounts(t, f.dir); len(left) > 0 {
			t.Errorf("still mounted: %v", left)
		}
		b.Close()
	})
	f.mount()
	return f
}

func (f *fixture) mount() {
	f.Helper()
	at, err := f.buckets.Mount(f.Context(), id, "default/data")
	if err != nil {
		f.Fatal(err)
	}
	f.at = at
}

func (f *fixture) path(name string) string { return filepath.Join(f.at, name) }

func (f *fixture) write(name, content string) {
	f.Helper()
	if err := os.WriteFile(f.path(name), []byte(content), 0o644); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) reads(name, want string) {
	f.Helper()
	got, err := os.ReadFile(f.path(name))
	if err != nil || string(got) != want {
		f.Errorf("%s holds %.80q, %v; want %.80q", name, got, err, want)
	}
}

// has demands what the bucket holds, as others see it.
func (f *fixture) has(key, want string) {
	f.Helper()
	got, err := f.object(key)
	if err != nil || got != want {
		f.Errorf("the object %s holds %.80q, %v; want %.80q", key, got, err, want)
	}
}

func (f *fixture) object(key string) (string, error) {
	body, err := f.objects.Get(f.Context(), key, 0, -1)
	if err != nil {
		return "", err
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	return string(got), err
}

func (f *fixture) lacks(key string) {
	f.Helper()
	if _, err := f.objects.Stat(f.Context(), key); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		f.Errorf("the object %s: %v; want it gone", key, err)
	}
}

func (f *fixture) fails(err error, want syscall.Errno) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Errorf("%v, want %v", err, want)
	}
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// mounts lists the mounts below a directory.
func mounts(t *testing.T, dir string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			all = append(all, at)
		}
	}
	return all
}

// server returns the PID of the process that serves the mount below a
// directory: the child of this process with that name.
func (f *fixture) server() int {
	f.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	f.must(err)
	for _, name := range all {
		text, _ := os.ReadFile(name)
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "status"))
		if string(text) == "atoll-bucket\x00" && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) && !strings.Contains(string(status), "\nState:\tZ") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			f.must(err)
			return pid
		}
	}
	f.Fatal("there is no process that serves the bucket")
	return 0
}

func TestFiles(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	f.write("hello", "hello")
	f.has("hello", "hello")
	f.reads("hello", "hello")
	f.write("hello", "bye")
	f.has("hello", "bye")

	log, err := os.OpenFile(f.path("hello"), os.O_APPEND|os.O_WRONLY, 0)
	f.must(err)
	_, err = log.WriteString(" bye")
	f.must(errors.Join(err, log.Close()))
	f.has("hello", "bye bye")
	patch, err := os.OpenFile(f.path("hello"), os.O_RDWR, 0)
	f.must(err)
	_, err = patch.WriteAt([]byte("B"), 4)
	f.must(errors.Join(err, patch.Close()))
	f.has("hello", "bye Bye")
	f.must(os.Truncate(f.path("hello"), 3))
	f.reads("hello", "bye")

	f.must(os.Rename(f.path("hello"), f.path("other")))
	f.has("other", "bye")
	f.lacks("hello")
	f.write("third", "3")
	f.must(os.Rename(f.path("third"), f.path("other")))
	f.has("other", "3")
	f.must(os.Remove(f.path("other")))
	f.lacks("other")
	_, err = os.Stat(f.path("other"))
	f.fails(err, syscall.ENOENT)
	f.write("empty", "")
	f.has("empty", "")

	// System calls of programs that unpack archives succeed, but have no effect.
	f.must(errors.Join(os.Chmod(f.path("empty"), 0o600), os.Chown(f.path("empty"), 1000, 1000)))
	f.fails(os.Symlink("empty", f.path("link")), syscall.ENOTSUP)
	f.fails(os.Link(f.path("empty"), f.path("link")), syscall.ENOTSUP)
	f.fails(syscall.Mkfifo(f.path("fifo"), 0o600), syscall.ENOTSUP)
	f.fails(os.WriteFile(f.path("\xff"), nil, 0o600), syscall.EILSEQ)
	f.fails(os.WriteFile(f.path(strings.Repeat("x", 256)), nil, 0o600), syscall.ENAMETOOLONG)
}

func TestDirectories(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	ctx := t.Context()
	for _, key := range []string{"a/b/one", "a/b/two", "a/three", "four"} {
		f.must(f.objects.Put(ctx, key, strings.NewReader(key), blob.PutOptions{}))
	}
	list := func(dir string, want ...string) {
		t.Helper()
		entries, err := os.ReadDir(f.path(dir))
		f.must(err)
		got := make([]string, len(entries))
		for i, e := range entries {
			if got[i] = e.Name(); e.IsDir() {
				got[i] += "/"
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %v, want %v", dir, got, want)
		}
	}
	list(".", "a/", "four")
	list("a", "b/", "three")
	list("a/b", "one", "two")
	f.reads("a/b/one", "a/b/one")
	f.must(os.MkdirAll(f.path("new/deep"), 0o755))
	list("new", "deep/")
	f.fails(os.Mkdir(f.path("new"), 0o755), syscall.EEXIST)
	f.write("new/deep/file", "x")
	f.has("new/deep/file", "x")
	f.fails(syscall.Rmdir(f.path("new/deep")), syscall.ENOTEMPTY)
	f.fails(os.Rename(f.path("new"), f.path("newer")), syscall.EXDEV)
	f.must(os.RemoveAll(f.path("new")))
	list(".", "a/", "four")
	f.fails(os.Rename(f.path("four"), f.path("a")), syscall.EEXIST)
	f.must(os.RemoveAll(f.path("a")))
	list(".", "four")
}

func TestLargeFile(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	content := make([]byte, 40<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(content) // it does not fail
	f.must(os.WriteFile(f.path("large"), content, 0o644))
	got, err := os.ReadFile(f.path("large"))
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%d bytes come back, %v", len(got), err)
	}
	file, err := os.Open(f.path("large"))
	f.must(err)
	defer file.Close()
	piece := make([]byte, 100_000)
	for _, off := range []int64{30 << 20, 5, 31 << 20, 31<<20 + 100_000, 40<<20 - 100_000} {
		if _, err := file.ReadAt(piece, off); err != nil || !bytes.Equal(piece, content[off:off+int64(len(piece))]) {
			t.Errorf("another piece at %d: %v", off, err)
		}
	}
}

// The kernels of sandboxes keep files open: written data is uploaded without a
// close or sync.
func TestOpenFileIsUploaded(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	file, err := os.Create(f.path("log"))
	f.must(err)
	defer file.Close()
	for _, want := range []string{"one ", "one two "} {
		_, err = file.WriteString(want[len(want)-4:])
		f.must(err)
		f.reads("log", want)
		for got := ""; got != want; got, _ = f.object("log") {
			f.must(t.Context().Err())
			time.Sleep(10 * time.Millisecond)
		}
	}
	_, err = file.WriteString("three")
	f.must(errors.Join(err, file.Sync()))
	f.has("log", "one two three")
	f.must(f.buckets.Flush(t.Context(), id))
}

func TestRemovedWhileOpen(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	file, err := os.Create(f.path("tmp"))
	f.must(err)
	_, err = file.WriteString("private")
	f.must(errors.Join(err, os.Remove(f.path("tmp"))))
	got := make([]byte, 7)
	if _, err := file.ReadAt(got, 0); err != nil || string(got) != "private" {
		t.Errorf("%q, %v", got, err)
	}
	f.must(file.Close())
	f.must(f.buckets.Flush(t.Context(), id))
	f.lacks("tmp")
}

func TestSpoolIsBounded(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{Spool: 1 << 20})
	f.fails(os.WriteFile(f.path("large"), make([]byte, 2<<20), 0o644), syscall.ENOSPC)
	f.must(os.Remove(f.path("large")))
	f.write("small", "fits again")
	f.has("small", "fits again")
}

func TestManyWriters(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	const files = 600 // more than may be written at a time
	var all sync.WaitGroup
	open := make([]*os.File, files)
	for w := range 8 {
		all.Go(func() {
			for i := w; i < files; i += 8 {
				file, err := os.Create(f.path(strconv.Itoa(i)))
				if err == nil {
					_, err = file.WriteString(strconv.Itoa(i))
				}
				if open[i] = file; err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	f.must(f.buckets.Flush(t.Context(), id))
	for i, file := range open {
		f.must(file.Close())
		f.has(strconv.Itoa(i), strconv.Itoa(i))
	}
}

// The process that serves a bucket is killed: its users get an error, and the
// next mount works.
func TestServerIsKilled(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	f.write("kept", "kept")
	f.must(syscall.Kill(f.server(), syscall.SIGKILL))
	for {
		if _, err := os.Stat(f.path("kept")); errors.Is(err, syscall.ENOTCONN) {
			break
		}
		f.must(t.Context().Err())
		time.Sleep(10 * time.Millisecond)
	}
	f.must(f.buckets.Flush(t.Context(), id))
	f.mount()
	f.reads("kept", "kept")
	if all := mounts(t, f.dir); len(all) != 1 {
		t.Errorf("mounted are %v", all)
	}
}

// The process that mounted a bucket is killed. The next one finds the working
// mount, or removes it.
func TestNextProcessFindsMounts(t *testing.T) {
	f := mounted(t, blobtest.S3(t), bucket.Options{})
	file, err := os.Create(f.path("log"))
	f.must(err)
	_, err = file.WriteString("unsaved")
	f.must(err)
	next, err := bucket.Open(bucket.Options{Dir: f.dir})
	f.must(err)
	f.must(next.Sweep(t.Context(), func(string) bool { return true }))
	if len(mounts(t, f.dir)) != 1 {
		t.Error("it was unmounted although it is wanted")
	}
	f.must(next.Sweep(t.Context(), func(string) bool { return false }))
	if left := mounts(t, f.dir); len(left) > 0 {
		t.Errorf("still mounted: %v", left)
	}
	f.has("log", "unsaved")
	_ = file.Close() // its file system is gone
}

// door is in front of a service and can be shut.
type door struct {
	net.Listener
	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
}

func newDoor(t *testing.T, to string) *door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l, conns: map[net.Conn]bool{}}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); d.set(true); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { d.pass(c, to) })
		}
	})
	return d
}

func (d *door) pass(c net.Conn, to string) {
	defer c.Close()
	other, err := net.Dial("tcp", to)
	if err != nil || !d.add(c, other) {
		return
	}
	defer other.Close()
	go func() { _, _ = io.Copy(other, c); other.Close() }()
	_, _ = io.Copy(c, other)
}

func (d *door) add(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		d.conns[c] = true
	}
	return !d.shut
}

func (d *door) set(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = shut
	for c := range d.conns {
		c.Close()
	}
	clear(d.conns)
}

func TestServiceGoesAway(t *testing.T) {
	address := blobtest.S3(t)
	_, host, _ := strings.Cut(address, "endpoint=http://")
	d := newDoor(t, host)
	f := mounted(t, strings.Replace(address, host, d.Addr().String(), 1), bucket.Options{})
	file, err := os.Create(f.path("log"))
	f.must(err)
	d.set(true)
	_, err = file.WriteString("late")
	f.must(err)
	f.fails(file.Sync(), syscall.EIO)
	if err := f.buckets.Flush(t.Context(), id); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("%v", err)
	}
	f.reads("log", "late")
	d.set(false)
	f.must(f.buckets.Flush(t.Context(), id))
	f.has("log", "late")
	f.must(file.Close())
}

func TestAttackServerIsConfined(t *testing.T) {
	possible(t)
	address := blobtest.S3(t)
	t.Setenv("SOME_TOKEN", "canary-71aa")
	before, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{0}); err != nil { // as after a login
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setgroups(before) })
	f := mounted(t, address, bucket.Options{})
	pid := strconv.Itoa(f.server())
	status, err := os.ReadFile("/proc/" + pid + "/status")
	f.must(err)
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534\n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Groups:\t \n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("%q is not in %s", want, status)
		}
	}
	threads, err := filepath.Glob("/proc/" + pid + "/task/*/status")
	f.must(err)
	for _, thread := range threads {
		// One that has ended since has no file any more.
		if status, err := os.ReadFile(thread); err == nil && !strings.Contains(string(status), "Seccomp:\t2\n") {
			t.Errorf("a thread has no system call filter: %s", status)
		}
	}
	if len(threads) == 0 {
		t.Error("it has no thread")
	}
	env, err := os.ReadFile("/proc/" + pid + "/environ")
	f.must(err)
	secret := os.Getenv("AWS_SECRET_ACCESS_KEY")
	if strings.Contains(string(env), secret) || strings.Contains(string(env), "canary") {
		t.Error("its environment holds a secret")
	}
	root, err := os.ReadDir("/proc/" + pid + "/root")
	f.must(err)
	if len(root) != 2 {
		t.Errorf("its root directory has %v", root)
	}
	if own, theirs := link(t, "self"), link(t, pid); own == theirs {
		t.Error("it is in our namespaces")
	}
}

func link(t *testing.T, pid string) string {
	t.Helper()
	to, err := os.Readlink("/proc/" + pid + "/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestRefusals(t *testing.T) {
	possible(t)
	address := blobtest.S3(t)
	try := func(address string) error {
		t.Helper()
		dir := t.TempDir()
		b, err := bucket.Open(bucket.Options{Executable: program, Dir: dir, Named: map[string]string{"default/data": address}})
		if err != nil {
			return err
		}
		_, err = b.Mount(t.Context(), id, "default/data")
		if left := mounts(t, dir); len(left) > 0 {
			t.Errorf("still mounted: %v", left)
		}
		if _, err := os.Lstat(filepath.Join(dir, id)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory is left: %v", err)
		}
		b.Close()
		return err
	}
	for _, c := range []struct {
		address string
		want    sandbox.Code
	}{
		{strings.Replace(address, "s3://", "s3://not-", 1), sandbox.CodeNotFound},
		{"s3://bucket?region=r&endpoint=http://127.0.0.1:1", sandbox.CodeUnavailable},
		{"https://bucket", sandbox.CodeInvalid},
		{"s3://key:secret@bucket", sandbox.CodeInvalid},
	} {
		if err := try(c.address); sandbox.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", c.address, err, c.want)
		}
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary-3f1c")
	err := try(address)
	if sandbox.CodeOf(err) != sandbox.CodeDenied || strings.Contains(fmt.Sprintf("%+v", err), "canary") {
		t.Errorf("a wrong key: %v", err)
	}
	b, err := bucket.Open(bucket.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Mount(t.Context(), id, "default/data"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("an unknown bucket: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Mount(ended, id, "default/data"); err == nil {
		t.Error("it was mounted for nobody")
	}
}

func TestParseNamed(t *testing.T) {
	for text, want := range map[string]string{
		"data=s3://b/p": "owner/data", "acme/data=s3://b": "acme/data", "data": "", "=s3://b": "", "a/b/c=s3://b": "", "data=/tmp": "", "../x=s3://b": "",
	} {
		name, _, err := bucket.ParseNamed(text, "owner")
		if name != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", text, name, err)
		}
	}
}
