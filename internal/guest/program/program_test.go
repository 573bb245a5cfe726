package program

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

func pack(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func readAll(t *testing.T, open func() (io.ReadCloser, error)) []byte {
	t.Helper()
	r, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unpack(t *testing.T, packed []byte) []byte {
	t.Helper()
	return readAll(t, func() (io.ReadCloser, error) { return gzip.NewReader(bytes.NewReader(packed)) })
}

// TestEmbedded checks that the built program is read, installed and sent
// unchanged.
func TestEmbedded(t *testing.T) {
	content := bytes.Repeat([]byte("a program"), 1000)
	sum := sha256.Sum256(content)
	p, err := embedded(fstest.MapFS{
		"built/linux-arm64.gz":     {Data: pack(t, content)},
		"built/linux-arm64.sha256": {Data: []byte(hex.EncodeToString(sum[:]) + "\n")},
	}, "arm64")
	if err != nil || p == nil {
		t.Fatalf("got %v, %v", p, err)
	}
	if p.Arch() != "arm64" || p.Digest() != hex.EncodeToString(sum[:]) {
		t.Errorf("got %s %s", p.Arch(), p.Digest())
	}
	if !bytes.Equal(readAll(t, p.Open), content) || !bytes.Equal(unpack(t, readAll(t, p.OpenGzip)), content) {
		t.Error("the program is not what was embedded")
	}
	dir := filepath.Join(t.TempDir(), "new")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			path, err := p.Install(dir)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes were installed (%v)", len(got), err)
			}
		})
	}
	all.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("there are %v (%v), want one file", entries, err)
	}
}

// TestBuilt checks the guests that this program embeds.
func TestBuilt(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		p, err := embedded(built, arch)
		if err != nil {
			t.Fatal(err)
		}
		if p == nil {
			need.Thing(t, "make guest", "without it, atoll is its own guest")
		}
		content := readAll(t, p.Open)
		sum := sha256.Sum256(content)
		if hex.EncodeToString(sum[:]) != p.Digest() {
			t.Errorf("%s: the digest is not the program's", arch)
		}
		f, err := elf.NewFile(bytes.NewReader(content))
		if err != nil || f.Machine != machine {
			t.Fatalf("%s: %v, want an executable for %v", arch, err, machine)
		}
		if libs, _ := f.ImportedLibraries(); len(libs) > 0 {
			t.Errorf("%s: it needs %v, want a static program", arch, libs)
		}
		if most := 4 << 20; len(content) > most {
			t.Errorf("%s: it has %d bytes, want at most %d", arch, len(content), most)
		}
	}
}

// TestFallback: without an embedded guest an executable is its own.
func TestFallback(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := File(self)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(unpack(t, readAll(t, p.OpenGzip)), want) {
		t.Error("what is sent is not the executable")
	}
	if path, err := p.Install(t.TempDir()); err != nil || path != self {
		t.Errorf("got %s (%v), want %s itself", path, err, self)
	}
	if p.Arch() != runtime.GOARCH || len(p.Digest()) != 64 {
		t.Errorf("got %s, %q", p.Arch(), p.Digest())
	}
	other := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(other, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if p, err := File(other); err == nil {
		t.Errorf("a script became %v", p)
	}
}

func TestOtherArchitecture(t *testing.T) {
	_, err := For("riscv64", "")
	var se *sandbox.Error
	if !errors.As(err, &se) || se.Code != sandbox.CodeUnsupported {
		t.Errorf("got %v, want unsupported", err)
	}
}
