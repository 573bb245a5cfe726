package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("BLOB_TEST_HANG"); dir != "" {
		hang(dir)
	}
	os.Exit(blobtest.Main(m))
}

func TestDir(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		s, err := blob.Open(t.Context(), "dir:"+filepath.Join(t.TempDir(), "blobs"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// hang writes half a blob, says so, and waits to be killed.
func hang(dir string) {
	s, err := blob.OpenDir(dir)
	if err != nil {
		panic(err)
	}
	stuck, _ := io.Pipe()
	announce := &afterFirst{r: io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), stuck)}
	panic(s.Put(context.Background(), "half", announce, blob.PutOptions{}))
}

func TestKilledWriterLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	writer := exec.Command(os.Args[0])
	writer.Env = append(os.Environ(), "BLOB_TEST_HANG="+dir)
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		entries, err := os.ReadDir(filepath.Join(dir, ".pending"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if _, err := blob.OpenDir(dir); err != nil || count() != 1 {
		t.Fatalf("the writer lives, and of its blob there are %d: %v", count(), err)
	}
	if err := writer.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Wait() // it was killed
	s, err := blob.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d unfinished blobs are left", n)
	}
	if _, err := s.Stat(t.Context(), "half"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("the half blob: %v", err)
	}
}

// Links in the store are not followed.
func TestDirIsNotLeft(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	s, err := blob.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"out/secret", "link"} {
		if r, err := s.Get(t.Context(), key, 0, -1); err == nil {
			got, _ := io.ReadAll(r)
			t.Errorf("%s was read: %q", key, got)
		}
		if _, err := s.Stat(t.Context(), key); err == nil {
			t.Errorf("%s was described", key)
		}
	}
	if err := s.Put(t.Context(), "out/new", strings.NewReader("x"), blob.PutOptions{}); err == nil {
		t.Error("a file was written outside")
	}
	for info, err := range s.List(t.Context(), "") {
		t.Errorf("listed %v, %v", info, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("outside there are %d files", len(entries))
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, address := range []string{
		"s3://user:hunter2@bucket", "s3://", "gs://bucket", "s3://bucket?endpoint=ftp://hunter2", "http://hunter2/",
	} {
		_, err := blob.Open(t.Context(), address)
		var known *sandbox.Error
		if !errors.As(err, &known) || known.Code != sandbox.CodeInvalid {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if strings.Contains(known.Error()+known.Hint, "hunter2") {
			t.Errorf("the error repeats what may be a secret: %v", err)
		}
	}
}

func BenchmarkDirPut(b *testing.B) {
	s, err := blob.OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	content := make([]byte, 16<<20)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		if err := s.Put(b.Context(), "bench", bytes.NewReader(content), blob.PutOptions{Size: int64(len(content))}); err != nil {
			b.Fatal(err)
		}
	}
}

// afterFirst prints a byte when its second read begins: the first one is
// written then.
type afterFirst struct {
	r     io.Reader
	reads int
}

func (a *afterFirst) Read(p []byte) (int, error) {
	if a.reads++; a.reads == 2 {
		_, _ = os.Stdout.WriteString(".") // without it the test waits and fails
	}
	return a.r.Read(p)
}
