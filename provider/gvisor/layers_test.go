package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// steps change files like build steps, each based on the previous one's files.
var steps = []string{
	`mkdir -p /srv/d/deep/er /srv/gone/below /srv/again/old /srv/kind /srv/empty
	echo a >/srv/a; ln /srv/a /srv/a2; ln /srv/a /srv/d/a3; echo b >/srv/b; ln /srv/b /srv/b2; echo lone >/srv/lone
	head -c 3000000 /dev/zero | tr '\0' x >/srv/big; : >/srv/nothing; mkfifo /srv/fifo
	echo 1 >/srv/d/one; echo 2 >/srv/d/two; echo 3 >/srv/d/deep/er/three; echo 4 >/srv/gone/below/four; echo 5 >/srv/again/old/five
	echo f >/srv/kind/file; mkdir /srv/kind/dir; echo in >/srv/kind/dir/in; ln -s one /srv/d/link; ln -s /srv/d /srv/todir
	echo '#!/bin/sh' >/srv/tool; echo 'echo tool says $1' >>/srv/tool; chmod 4755 /srv/tool
	chmod 1777 /srv/d/deep; chown 12:34 /srv/d/two; chmod 640 /srv/d/two; touch -d 2001-02-03T04:05:06 /srv/d/one`,
	`rm /srv/d/one; rm -r /srv/gone; rm -r /srv/again; mkdir -m 700 /srv/again; echo new >/srv/again/new
	rm /srv/kind/file; mkdir /srv/kind/file; echo inner >/srv/kind/file/inner; rm -r /srv/kind/dir; echo now >/srv/kind/dir
	chmod 750 /srv/d; chown 56:78 /srv/d/deep; chmod 600 /srv/nothing; rm /srv/d/link; ln -s two /srv/d/link`,
	`ln /srv/lone /srv/linked; rm /srv/b2; echo more >>/srv/a; chmod 755 /srv/tool; printf y | dd of=/srv/big bs=1 seek=1000 conv=notrunc 2>/dev/null
	echo thru >/srv/todir/through`,
	`mv /srv/d/deep /srv/moved; rm -rf /srv/again; mkdir -p /srv/again/old; echo 6 >/srv/again/old/six; touch -d 2002-02-02 /srv/empty`,
	`mkdir -p /srv/gone/below; echo back >/srv/gone/below/four; echo one >/srv/d/one; rm /srv/kind/dir; mkdir /srv/kind/dir; rm /srv/fifo`,
	`rm -r /srv/moved; touch /srv/touched`,
}

// listing prints everything that programs can see of files, except for the size
// and links of directories, which differ between file systems, and fractions of
// seconds, which a diff rounds.
const listing = `cd /srv && find . ! -type d -printf '%p %y %m %U:%G %s %Ts %n %l\n' -o -printf '%p %y %m %U:%G %Ts\n' | sort
	find . -type f | sort | xargs -d '\n' sha256sum; ls -a . d again kind; /srv/tool 1`

// lineage creates the image of each step twice: with layers, and as one file.
type lineage struct {
	most  int // layers
	store *image.Store
	img   *image.Image
	prov  *gvisor.Provider
}

func newLineage(t *testing.T, most int) *lineage {
	t.Helper()
	store, err := image.Open(t.TempDir(), image.Options{MaxLayers: most})
	if err != nil {
		t.Fatal(err)
	}
	l := &lineage{most: most, store: store}
	if l.img, err = store.Get(t.Context(), "host", image.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	l.prov = newProvider(t, func(o *gvisor.Options) {
		o.Images, o.DebugDir = store, os.Getenv("ATOLL_TEST_DEBUG")
	})
	return l
}

func (l *lineage) derive(t *testing.T, diff []byte) {
	t.Helper()
	over := image.Layer{Name: "step", Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(diff)), nil }}
	img, err := l.store.Derive(context.Background(), "template/test", l.img, []image.Layer{over}, l.img.Config)
	if err != nil {
		t.Fatal(err)
	}
	l.img = img
}

// TestLayers checks that an image of layers looks like the same image in one
// file, whatever changes were made and however many layers were merged.
func TestLayers(t *testing.T) {
	flat := newLineage(t, 1)
	some := []*lineage{newLineage(t, 3), newLineage(t, 8)}
	for n, step := range steps {
		in := create(t, flat.prov, sandbox.Spec{ID: sandbox.ID(fmt.Sprint("step-", n)), Image: flat.img.Digest})
		mustRun(t, in, "set -e\n"+step)
		var diff bytes.Buffer
		if err := in.(driver.Differ).Diff(t.Context(), &diff); err != nil {
			t.Fatal(err)
		}
		flat.derive(t, diff.Bytes())
		want := sh(t, create(t, flat.prov, sandbox.Spec{ID: sandbox.ID(fmt.Sprint("flat-", n)), Image: flat.img.Digest}), listing)
		for i, l := range some {
			l.derive(t, diff.Bytes())
			if n := len(l.img.Layers); n < 2 || n > l.most {
				t.Errorf("%d layers, at most %d", n, l.most)
			}
			layered := create(t, l.prov, sandbox.Spec{ID: sandbox.ID(fmt.Sprintf("layered-%d-%d", i, n)), Image: l.img.Digest})
			if got := sh(t, layered, listing); got != want {
				t.Errorf("step %d, %d layers: got\n%s%s\nwant\n%s", n+1, len(l.img.Layers), got.stdout, got.stderr, want.stdout)
			}
		}
	}
	if n := len(some[1].img.Layers); n != 1+len(steps) {
		t.Errorf("%d layers, want one for each step and the base", n)
	}
	if n := len(flat.img.Layers); n != 1 {
		t.Errorf("%d layers, want one file", n)
	}
	testLayeredSnapshots(t, some[1])
}

// testLayeredSnapshots checks that a restored sandbox has its layers: with
// memory and without, and after it was saved again.
func testLayeredSnapshots(t *testing.T, l *lineage) {
	spec := func(id string) sandbox.Spec { return sandbox.Spec{ID: sandbox.ID(id), Image: l.img.Digest} }
	in := create(t, l.prov, spec("source"))
	mustRun(t, in, "exec 9</srv/b; rm /srv/b /srv/d/one; echo upper >/srv/upper; touch -d 2003-03-03 /srv /srv/d /srv/upper; (sleep 1000 </srv/d/two >/dev/null 2>&1 &)")
	want := sh(t, in, listing)
	for round := range 2 {
		dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
		twin, how := restore(t, l.prov, dir, spec(fmt.Sprint("memory-", round)))
		if !how.Memory {
			t.Fatalf("the memory was not restored: %s", how.Why)
		}
		if got := sh(t, twin, listing); got != want {
			t.Errorf("round %d, with memory: got\n%s%s\nwant\n%s", round, got.stdout, got.stderr, want.stdout)
		}
		dir = snapshot(t, in, driver.SnapshotOptions{})
		files, _ := restore(t, l.prov, dir, spec(fmt.Sprint("files-", round)))
		if got := sh(t, files, listing); got != want {
			t.Errorf("round %d, files: got\n%s%s\nwant\n%s", round, got.stdout, got.stderr, want.stdout)
		}
		in = twin
	}
	var diff bytes.Buffer
	if err := in.(driver.Differ).Diff(t.Context(), &diff); err != nil {
		t.Fatal(err)
	}
	l.derive(t, diff.Bytes())
	child := create(t, l.prov, spec("child"))
	if got := sh(t, child, listing); got != want {
		t.Errorf("made of the copy: got\n%s%s\nwant\n%s", got.stdout, got.stderr, want.stdout)
	}
	if got := sh(t, child, "grep -c . /proc/mounts; ls /proc/1/fd | wc -l; mount | grep -c erofs"); strings.Contains(got.stdout, "layer") {
		t.Errorf("the layers show: %s", got.stdout)
	}
}
