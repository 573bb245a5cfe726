package gvisor_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// sourceTree returns an archive of many files with the sizes of source code.
func sourceTree(t testing.TB, files int) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	random := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	for i := range files {
		if i%50 == 0 {
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("tree/d%d", i/50), Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
		}
		size := int64(random.ExpFloat64() * 6000)
		size = min(size, int64(len(content)))
		if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("tree/d%d/f%d.go", i/50, i), Mode: 0o644, Size: size}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(content[:size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestImportManyFiles imports and exports a hundred thousand files, in short
// mode a fifth of them. The guest's memory must not grow with their number.
func TestImportManyFiles(t *testing.T) {
	files := shorter(100_000, 20_000)
	archive := sourceTree(t, files)
	sb := create(t, newProvider(t, nil), sandbox.Spec{ID: "many", Image: "host", Resources: sandbox.Resources{Memory: 512 << 20, Disk: 4 << 30}})
	archiver, _ := driver.As[driver.Archiver](sb)
	if err := archiver.Import(t.Context(), "/many", bytes.NewReader(archive), driver.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(archiver.Export(t.Context(), "/many/tree", w, driver.ExportOptions{})) }()
	var members int
	var bytes int64
	for tr := tar.NewReader(r); ; members++ {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		bytes += h.Size
	}
	if members != files+files/50+1 {
		t.Errorf("%d members, %d bytes", members, bytes)
	}
	if rss := guestMemory(t, sb); rss > 128<<20 {
		t.Errorf("the guest took up to %d bytes", rss)
	}
}

// guestMemory returns the memory of process 1 inside.
func guestMemory(t *testing.T, sb driver.Instance) int64 {
	t.Helper()
	out := sh(t, sb, "grep VmRSS /proc/1/status")
	var kib int64
	if _, err := fmt.Sscanf(out.stdout, "VmRSS: %d kB", &kib); err != nil {
		t.Fatalf("%q: %v", out.stdout, err)
	}
	return kib << 10
}

func inside(b *testing.B, sb driver.Instance, script string) {
	b.Helper()
	if out := sh(b, sb, script); out.exit.Code != 0 {
		b.Fatalf("%s: %+v", script, out)
	}
}

// BenchmarkHydrate unpacks the same archive by Import, by GNU tar in the
// sandbox, and by GNU tar on the machine.
func BenchmarkHydrate(b *testing.B) {
	archive := sourceTree(b, 10_000)
	sb := create(b, newProvider(b, nil), sandbox.Spec{ID: "hydrate", Image: "host", Resources: sandbox.Resources{Memory: 2 << 30, Disk: 8 << 30}})
	archiver, _ := driver.As[driver.Archiver](sb)
	files, _ := driver.As[driver.FileSystem](sb)
	clean := func() { _ = files.Remove(b.Context(), "/h", true) } // it does not exist the first time
	b.Run("import", func(b *testing.B) {
		b.SetBytes(int64(len(archive)))
		for b.Loop() {
			b.StopTimer()
			clean()
			b.StartTimer()
			if err := archiver.Import(b.Context(), "/h", bytes.NewReader(archive), driver.ImportOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tar-inside", func(b *testing.B) {
		b.SetBytes(int64(len(archive)))
		if _, err := files.Write(b.Context(), "/a.tar", bytes.NewReader(archive), driver.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			b.StopTimer()
			clean()
			b.StartTimer()
			inside(b, sb, "mkdir /h && tar -x -C /h -f /a.tar")
		}
	})
	b.Run("tar-outside", func(b *testing.B) {
		b.SetBytes(int64(len(archive)))
		for b.Loop() {
			b.StopTimer()
			dir := b.TempDir()
			b.StartTimer()
			cmd := exec.Command("tar", "-x", "-C", dir)
			cmd.Stdin, cmd.Stderr = bytes.NewReader(archive), os.Stderr
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("export", func(b *testing.B) {
		b.SetBytes(int64(len(archive)))
		for b.Loop() {
			if err := archiver.Export(b.Context(), "/h", io.Discard, driver.ExportOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tar-export-inside", func(b *testing.B) {
		b.SetBytes(int64(len(archive)))
		for b.Loop() {
			inside(b, sb, "tar -c -C / h | cat >/dev/null")
		}
	})
}
