package image

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

// rootfsTar makes a tar like a distribution's: many small files, some large
// ones.
func rootfsTar(b *testing.B, files int) []byte {
	b.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	r := rand.New(rand.NewPCG(1, 2))
	data := []byte(noise(9, 1<<20))
	for i := range files {
		size := r.IntN(16 << 10)
		if i%100 == 0 {
			size = 1 << 20
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("usr/share/d%d/f%d", i/50, i), Size: int64(size), Mode: 0o644}); err != nil {
			b.Fatal(err)
		}
		if _, err := w.Write(data[:size]); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return buf.Bytes()
}

func BenchmarkBuildEROFS(b *testing.B) {
	plain := rootfsTar(b, 10_000)
	for _, c := range []struct {
		name string
		data []byte
	}{{"tar", plain}, {"gzip", gzipped(b, plain)}, {"zstd", zstded(b, plain)}} {
		b.Run(c.name, func(b *testing.B) {
			s := open(b, Options{})
			path := writeFile(b, filepath.Join(b.TempDir(), "r"), c.data)
			b.SetBytes(int64(len(plain)))
			for b.Loop() {
				img := mustGet(b, s, "tar:"+path, GetOptions{})
				if err := s.Remove(context.Background(), img.Digest); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGetCached(b *testing.B) {
	path := writeFile(b, filepath.Join(b.TempDir(), "r"), tarOf(b, "f", "1"))
	for _, c := range []struct{ name, ref string }{{"name", "app:1"}, {"host", "host"}, {"tar", "tar:" + path}} {
		b.Run(c.name, func(b *testing.B) {
			s := open(b, Options{})
			if _, err := s.Import(context.Background(), "tar:"+path, "app:1", GetOptions{}); err != nil {
				b.Fatal(err)
			}
			mustGet(b, s, c.ref, GetOptions{})
			for b.Loop() {
				mustGet(b, s, c.ref, GetOptions{})
			}
		})
	}
}

func BenchmarkOpenLayers(b *testing.B) {
	img := mustGet(b, open(b, Options{}), "tar:"+writeFile(b, filepath.Join(b.TempDir(), "r"), tarOf(b, "f", "1")), GetOptions{})
	for b.Loop() {
		opened, err := img.OpenLayers()
		if err != nil {
			b.Fatal(err)
		}
		closeFiles(opened)
	}
}
