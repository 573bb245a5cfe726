package guestimage

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/guest/program"
)

// The image of a guest is made once, contains its executable, and is used again.
func TestImageIsKept(t *testing.T) {
	dir := t.TempDir()
	executable, err := os.Executable() // any program
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(executable)
	if err != nil {
		t.Fatal(err)
	}
	found, err := program.File(executable)
	if err != nil {
		t.Fatal(err)
	}
	var images []os.FileInfo
	for range 2 {
		g, err := Open(found, dir)
		if err != nil {
			t.Fatal(err)
		}
		image, err := os.ReadFile(g.Image.Name())
		if err != nil || !bytes.Contains(image, content) || g.Digest != found.Digest() {
			t.Errorf("the image of %q has %d bytes, without the executable's %d: %v", g.Digest, len(image), len(content), err)
		}
		info, err := g.Image.Stat()
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, info)
		g.Close()
	}
	if !os.SameFile(images[0], images[1]) {
		t.Error("the image was made twice")
	}
	var none *Guest
	none.Close()
}

// Images of other versions are removed when they have not been used for a day,
// and unfinished ones earlier.
func TestUnusedImages(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{
		"used.erofs": unused - time.Minute, "unused.erofs": unused + time.Minute,
		halfMade + "being-written": halfWritten / 2, halfMade + "abandoned": halfWritten + time.Second,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	sweep(dir, now)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got, want := strings.Join(left, " "), halfMade+"being-written used.erofs"; got != want {
		t.Errorf("%q are left, want %q", got, want)
	}
}
