package workspace_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace"
)

// source fills a directory with files of 1 to 20 KiB of words, in directories
// of 100.
func source(b *testing.B, files int) string {
	b.Helper()
	dir := b.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		name := filepath.Join(dir, fmt.Sprintf("pkg%03d", i/100), fmt.Sprintf("file%05d.go", i))
		if i%100 == 0 {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(name, words(random), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

func words(random *rand.Rand) []byte {
	var out []byte
	for size := 1024 + random.IntN(19<<10); len(out) < size; {
		out = fmt.Appendf(out, "func name%d(arg%d int) error { return nil }\n", random.IntN(5000), random.IntN(50))
	}
	return out
}

func run(b *testing.B, args ...string) {
	b.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", args, err, out)
	}
}

const benchFiles = 10_000

// BenchmarkTree alternates between operations on a tree of 10,000 files and
// tar, so that ratios are meaningful on a busy machine.
func BenchmarkTree(b *testing.B) {
	dir := source(b, benchFiles)
	blobs, err := blob.OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	w, err := workspace.Create(b.Context(), blobs, workspace.CreateOptions{ID: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	from := root(b, dir)
	opts := workspace.PersistOptions{Cache: filepath.Join(b.TempDir(), "cache")}
	v, err := w.Persist(b.Context(), from, opts)
	if err != nil {
		b.Fatal(err)
	}
	opts.Base = v.Number
	archive := filepath.Join(b.TempDir(), "tree.tar")
	run(b, "tar", "-C", dir, "-cf", archive, ".")
	run(b, "tar", "-C", dir, "-czf", archive+".gz", ".")
	random := rand.New(rand.NewPCG(3, 4))

	b.Run("persist first", func(b *testing.B) {
		for b.Loop() {
			fresh, err := blob.OpenDir(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			w, err := workspace.Create(b.Context(), fresh, workspace.CreateOptions{ID: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := w.Persist(b.Context(), from, workspace.PersistOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("persist 1% changed", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			for range benchFiles / 100 {
				i := random.IntN(benchFiles)
				name := filepath.Join(dir, fmt.Sprintf("pkg%03d", i/100), fmt.Sprintf("file%05d.go", i))
				if err := os.WriteFile(name, words(random), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
			v, err := w.Persist(b.Context(), from, opts)
			if err != nil {
				b.Fatal(err)
			}
			opts.Base = v.Number
		}
	})
	b.Run("tar.gz of all", func(b *testing.B) {
		for b.Loop() {
			run(b, "tar", "-C", dir, "-czf", filepath.Join(b.TempDir(), "all.tar.gz"), ".")
		}
	})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			if _, err := w.Restore(b.Context(), 0, root(b, b.TempDir())); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tar x", func(b *testing.B) {
		for b.Loop() {
			run(b, "tar", "-C", b.TempDir(), "-xf", archive)
		}
	})
	b.Run("tar xz", func(b *testing.B) {
		for b.Loop() {
			run(b, "tar", "-C", b.TempDir(), "-xzf", archive+".gz")
		}
	})
}
