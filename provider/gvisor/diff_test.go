package gvisor_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// changes returns the members of a diff: a file's content, "dir", or a link's
// target.
func changes(t *testing.T, in driver.Instance) map[string]string {
	t.Helper()
	var b bytes.Buffer
	if err := in.(driver.Differ).Diff(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		switch h.Typeflag {
		case tar.TypeDir:
			out[name] = fmt.Sprintf("dir %o", h.Mode)
		case tar.TypeSymlink, tar.TypeLink:
			out[name] = "->" + h.Linkname
		default:
			out[name] = fmt.Sprintf("%.40s %d:%d %o", content, h.Uid, h.Gid, h.Mode)
		}
		if h.Size > 1<<20 {
			out[name] = fmt.Sprintf("%d bytes", h.Size)
		}
	}
}

func TestDiff(t *testing.T) {
	in := create(t, newProvider(t, nil), sandbox.Spec{ID: "diff"})
	before := changes(t, in)
	mustRun(t, in, `set -e
		mkdir -m 700 /srv/d && echo new >/srv/d/f && chown 7:8 /srv/d/f && chmod 640 /srv/d/f
		ln -s f /srv/d/l && ln /srv/d/f /srv/d/h && rm /etc/passwd && truncate -s 3M /srv/holes
		cp /etc/group /etc/one && rm /etc/group
		rm -r /srv/none 2>/dev/null || true; echo tmp >/dev/shm/mounted`)
	got := changes(t, in)
	for name, want := range map[string]string{
		"srv/d/": "dir 700", "srv/d/l": "->f", "etc/.wh.passwd": " 0:0 0", "etc/.wh.group": " 0:0 0", "srv/holes": "3145728 bytes",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	// Either of two names of a file may come first.
	first, second := got["srv/d/f"], got["srv/d/h"]
	if strings.HasPrefix(first, "->") {
		first, second = second, first
	}
	if first != "new\n 7:8 640" || !strings.HasPrefix(second, "->") {
		t.Errorf("the file with two names is %q and %q", got["srv/d/f"], got["srv/d/h"])
	}
	for name := range got {
		if strings.HasPrefix(name, "dev/") || strings.HasPrefix(name, "proc/") || strings.Contains(name, "mounted") {
			t.Errorf("%s is mounted and no part of the image", name)
		}
	}
	if len(before) > 8 {
		t.Errorf("a sandbox that did nothing changed %v", slices.Sorted(maps.Keys(before)))
	}
	mustRun(t, in, "true") // it still works
}

// TestDiffGivenUp checks that Diff returns after its reader has gone.
func TestDiffGivenUp(t *testing.T) {
	in := create(t, newProvider(t, nil), sandbox.Spec{ID: "givenup"})
	mustRun(t, in, "head -c 4000000 /dev/urandom >/srv/x")
	if err := in.(driver.Differ).Diff(t.Context(), broken{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := in.(driver.Differ).Diff(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	mustRun(t, in, "true")
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// mustRun runs a script that must succeed.
func mustRun(t *testing.T, in driver.Instance, script string) {
	t.Helper()
	if got := sh(t, in, script); got.exit.Code != 0 {
		t.Fatalf("%s: %+v", script, got)
	}
}
