package host

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"
)

func TestImageSource(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, entries ...string) string {
		file := filepath.Join(dir, name)
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := tar.NewWriter(f)
		defer w.Close()
		for _, e := range entries {
			if err := w.WriteHeader(&tar.Header{Name: e, Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
		}
		return file
	}
	layout := filepath.Join(dir, "layout")
	if err := os.Mkdir(layout, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(layout, "oci-layout"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	saved, root := write("saved.tar", "blobs/a", "manifest.json"), write("root.tar", "bin/sh", "srv/manifest.json")
	for source, want := range map[string]string{
		saved: "docker-archive:" + saved, root: "tar:" + root, dir: "dir:" + dir, layout: "oci:" + layout,
		"tar:x.tar": "tar:x.tar", "/not/there": "/not/there",
	} {
		if got := imageSource(source); got != want {
			t.Errorf("%s is %s, want %s", source, got, want)
		}
	}
}

// A file that does not exist is not looked for in a registry.
func TestSourcesThatDoNotExist(t *testing.T) {
	t.Chdir(t.TempDir())
	for source, want := range map[string]string{
		"rootfs.tar": "tar:rootfs.tar", "x/rootfs.tar.gz": "tar:x/rootfs.tar.gz", "a.tgz": "tar:a.tgz", "./rootfs": "./rootfs", "/rootfs.tar": "tar:/rootfs.tar",
		"debian:12": "debian:12", "ghcr.io/a/b": "ghcr.io/a/b", "localhost:5000/a.b": "localhost:5000/a.b", "tar:x": "tar:x", "oci:x:y": "oci:x:y", "": "",
	} {
		if got := imageSource(source); got != want {
			t.Errorf("%q is %q, want %q", source, got, want)
		}
	}
}
