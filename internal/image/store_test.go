package image

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// childRole says in the environment that the test binary is to act as another
// process.
const childRole = "ATOLL_IMAGE_TEST_CHILD"

// child is what another process does: it gets an image ("get DIR REF"), or
// holds what it inherited until its input ends ("hold").
func child(role string) int {
	words := strings.Fields(role)
	if words[0] == "hold" {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	}
	s, err := Open(words[1], Options{})
	if err == nil {
		var img *Image
		if img, err = s.Get(context.Background(), words[2], GetOptions{Platform: "linux/amd64"}); err == nil {
			fmt.Println(img.Digest)
			return 0
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func childCommand(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestManyProcesses has several processes get one image into one store.
func TestManyProcesses(t *testing.T) {
	reg, dir := newRegistry(t), t.TempDir()
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", noise(5, 1<<20))))
	reg.requests()
	var cmds []*exec.Cmd
	var outs []*strings.Builder
	for range 4 {
		cmd, out := childCommand(t, "get "+dir+" "+ref), new(strings.Builder)
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds, outs = append(cmds, cmd), append(outs, out)
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil || outs[i].String() != outs[0].String() || outs[i].Len() < 64 {
			t.Errorf("process %d: %v, %q", i, err, outs[i])
		}
	}
	if got := reg.requests(); len(got) != 4 { // manifest, config, signatures if any, layer
		t.Errorf("requests: %v", got)
	}
}

// TestInUse holds an image in another process that inherited the open file,
// as a sandbox's kernel does, and kills it.
func TestInUse(t *testing.T) {
	s, ctx := open(t, Options{}), context.Background()
	path := writeFile(t, filepath.Join(t.TempDir(), "r.tar"), tarOf(t, "f", "1"))
	img := mustGet(t, s, "tar:"+path, GetOptions{})
	opened, err := img.OpenLayers()
	if err != nil {
		t.Fatal(err)
	}
	cmd := childCommand(t, "hold")
	cmd.ExtraFiles = opened
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	closeFiles(opened) // only the other process has it now

	wantCode(t, s.Remove(ctx, "tar:"+path), sandbox.CodeConflict, "in use")
	report, err := s.Prune(ctx, PruneOptions{All: true})
	if err != nil || len(report.Images) != 0 {
		t.Errorf("prune removed %v, %v", report.Images, err)
	}
	wantFiles(t, mustGet(t, s, "tar:"+path, GetOptions{}), map[string]string{"f": "1"})

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := s.Remove(ctx, "tar:"+path); err != nil {
		t.Fatal(err)
	}
	if _, err := img.OpenLayers(); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a removed image: %v", err)
	}
	wantCode(t, s.Remove(ctx, "tar:"+path), sandbox.CodeNotFound)
}

// TestCrashes puts what a crash could leave into the store.
func TestCrashes(t *testing.T) {
	s := open(t, Options{})
	path := writeFile(t, filepath.Join(t.TempDir(), "r.tar"), tarOf(t, "f", "1"))
	img := mustGet(t, s, "tar:"+path, GetOptions{})
	h := img.Digest[7:]
	ref := s.path("refs", refFile("tar:"+path, img.Platform))
	for what, harm := range map[string]func(){
		"a temporary file":                  func() { writeFile(t, s.path("tmp", "1234"), make([]byte, 1000)) },
		"no file system":                    func() { _ = os.Remove(s.rootfsPath(img.Layers[0])) },
		"no record":                         func() { _ = os.Remove(s.path("images", h+".json")) },
		"an empty record":                   func() { writeFile(t, s.path("images", h+".json"), nil) },
		"a record of another version":       func() { writeFile(t, s.path("images", h+".json"), []byte(`{"version":99}`)) },
		"a record that leads out":           func() { writeFile(t, s.path("images", h+".json"), []byte(`{"version":1,"rootfs":"../../etc/passwd"}`)) },
		"no name":                           func() { _ = os.Remove(ref) },
		"a torn name":                       func() { writeFile(t, ref, []byte(`{"ver`)) },
		"a name that leads to nothing":      func() { writeFile(t, ref, []byte(`{"version":1,"digest":"sha256:`+strings.Repeat("0", 64)+`"}`)) },
		"a file system without a record":    func() { writeFile(t, s.path("rootfs", strings.Repeat("a", 64)+".erofs"), make([]byte, 5000)) },
		"a partial blob that nobody wants":  func() { writeFile(t, s.path("partial", strings.Repeat("b", 64)), make([]byte, 5000)) },
		"an unknown file in the lock place": func() { writeFile(t, s.path("locks", "ref-x"), nil) },
	} {
		harm()
		again := openAt(t, s.dir, Options{})
		if left, _ := os.ReadDir(s.path("tmp")); len(left) > 0 {
			t.Errorf("%s: %d temporary files stay", what, len(left))
		}
		got := mustGet(t, again, "tar:"+path, GetOptions{})
		wantFiles(t, got, map[string]string{"f": "1"})
		if _, err := again.List(context.Background()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := again.Prune(context.Background(), PruneOptions{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := tree(t, s.dir); len(got) != 5 { // rootfs, image, ref and the two locks
			t.Errorf("%s: the store holds %q", what, got)
		}
	}
}

// tree lists the files of a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNamesAndRemoval(t *testing.T) {
	reg, s, ctx := newRegistry(t), open(t, Options{}), context.Background()
	shared := tarOf(t, "base", noise(6, 100_000))
	v := imageOf(t, "linux/amd64", shared, tarOf(t, "f", "1"))
	one, two := reg.push(t, "app:1", v), reg.push(t, "app:same", v)
	other := reg.push(t, "app:2", imageOf(t, "linux/amd64", shared, tarOf(t, "f", "2")))
	img := mustGet(t, s, one, linux)
	mustGet(t, s, two, linux)
	mustGet(t, s, other, linux)
	if got, err := s.Inspect(ctx, one); err != nil || !slices.Equal(got.Names, []string{one, two}) || got.Ref != one {
		t.Errorf("%+v, %v", got, err)
	}
	for _, id := range []string{img.Digest, img.Digest[:20], img.Digest[7:20]} {
		if got, err := s.Inspect(ctx, id); err != nil || got.Digest != img.Digest {
			t.Errorf("%s: %v, %v", id, got, err)
		}
	}
	_, err := s.Inspect(ctx, "sha256:")
	wantCode(t, err, sandbox.CodeNotFound)
	all, err := s.List(ctx)
	if err != nil || len(all) != 2 || all[0].Ref != other {
		t.Errorf("%v, %v", all, err)
	}

	if err := s.Remove(ctx, one); err != nil { // a name goes
		t.Fatal(err)
	}
	if got, err := s.Inspect(ctx, two); err != nil || !slices.Equal(got.Names, []string{two}) {
		t.Errorf("%+v, %v", got, err)
	}
	blobs := func() int { list, _ := os.ReadDir(s.path("blobs", "sha256")); return len(list) }
	if blobs() != 3 {
		t.Errorf("%d blobs, want 3", blobs())
	}
	if err := s.Remove(ctx, img.Digest[:20]); err != nil { // the image goes, the shared layer stays
		t.Fatal(err)
	}
	if blobs() != 2 {
		t.Errorf("%d blobs, want 2", blobs())
	}

	dry, err := s.Prune(ctx, PruneOptions{All: true, DryRun: true})
	if err != nil || len(dry.Images) != 1 || dry.Bytes == 0 {
		t.Errorf("%+v, %v", dry, err)
	}
	mustGet(t, s, other, GetOptions{Platform: "linux/amd64", Policy: PolicyNever})
	wet, err := s.Prune(ctx, PruneOptions{All: true})
	if err != nil || wet.Files != dry.Files || wet.Bytes != dry.Bytes {
		t.Errorf("pruned %+v, but a dry run said %+v, %v", wet, dry, err)
	}
	if got := tree(t, s.dir); len(got) != 2 { // the two locks
		t.Errorf("an empty store holds %q", got)
	}
}

func TestPruneOfBlobs(t *testing.T) {
	reg, s, ctx := newRegistry(t), open(t, Options{}), context.Background()
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "1")))
	mustGet(t, s, ref, linux)
	if _, err := s.Prune(ctx, PruneOptions{Blobs: true}); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.path("blobs", "sha256")); len(left) > 0 {
		t.Error("blobs stay")
	}
	wantFiles(t, mustGet(t, s, ref, GetOptions{Platform: "linux/amd64", Policy: PolicyAlways}), map[string]string{"f": "1"})
}

// TestPruneWhileGetting prunes while a Get has written files that no record
// mentions yet.
func TestPruneWhileGetting(t *testing.T) {
	s, ctx := open(t, Options{}), context.Background()
	path := writeFile(t, filepath.Join(t.TempDir(), "r.tar"), tarOf(t, "f", "1"))
	pruned := false
	img := mustGet(t, s, "tar:"+path, GetOptions{Progress: func(p Progress) {
		if p.Phase != PhaseBuilding {
			return
		}
		report, err := s.Prune(ctx, PruneOptions{All: true, Blobs: true})
		if err != nil || !report.Busy || report.Files != 0 {
			t.Errorf("%+v, %v", report, err)
		}
		pruned = true
	}})
	wantFiles(t, img, map[string]string{"f": "1"})
	if !pruned {
		t.Error("nothing was built")
	}
}

// TestCanceledGet cancels at every kind of progress, and finds nothing left.
func TestCanceledGet(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", noise(7, 2<<20))))
	for _, phase := range []Phase{PhaseResolving, PhaseDownloading, PhaseBuilding} {
		s := open(t, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		_, err := s.Get(ctx, ref, GetOptions{Platform: "linux/amd64", Progress: func(p Progress) {
			if p.Phase == phase {
				cancel()
			}
		}})
		cancel()
		wantCode(t, err, sandbox.CodeCanceled)
		for _, dir := range []string{"tmp", "rootfs", "images", "refs"} {
			if left, _ := os.ReadDir(s.path(dir)); len(left) > 0 {
				t.Errorf("canceled when %s: %d files in %s", phase, len(left), dir)
			}
		}
		mustGet(t, s, ref, linux)
	}
}

func TestFileDescriptors(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "1")))
	bad := writeFile(t, filepath.Join(t.TempDir(), "bad.tar"), tarOf(t, "../f", "1"))
	run := func() {
		mustGet(t, s, ref, GetOptions{Platform: "linux/amd64", Policy: PolicyAlways})
		_, err := s.Get(context.Background(), "tar:"+bad, GetOptions{})
		wantCode(t, err, sandbox.CodeInvalid)
		if err := s.Remove(context.Background(), ref); err != nil {
			t.Fatal(err)
		}
	}
	run()
	before := openFiles(t)
	for range 10 {
		run()
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files of the store were open, then %d", before, after)
	}
}

// openFiles counts open regular files.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list {
		var st unix.Stat_t
		if unix.Stat("/proc/self/fd/"+e.Name(), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			n++
		}
	}
	return n
}

// TestEmptyImage has no layers at all.
func TestEmptyImage(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	wantFiles(t, mustGet(t, s, reg.push(t, "empty:1", empty.Image), linux), map[string]string{})
}

// TestRottenBlob changes a stored layer behind the store's back: the image is
// not built from it, and the next Get transfers it again.
func TestRottenBlob(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	v := imageOf(t, "linux/amd64", tarOf(t, "f", "1"))
	ref := reg.push(t, "app:1", v)
	img := mustGet(t, s, ref, linux)
	layer := layerOf(t, v)
	evil := gzipped(t, tarOf(t, "f", "2"))
	for len(evil) < len(layer.data) {
		evil = append(evil, 0)
	}
	writeFile(t, s.blobPath(layer.digest[7:]), evil[:len(layer.data)])
	if err := os.Remove(s.rootfsPath(img.Layers[0])); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(context.Background(), ref, linux)
	wantCode(t, err, sandbox.CodeInvalid)
	wantFiles(t, mustGet(t, s, ref, linux), map[string]string{"f": "1"})
}
