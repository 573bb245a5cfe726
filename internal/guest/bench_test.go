package guest_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

func BenchmarkExecTrue(b *testing.B) {
	c := newClient(b, "/")
	ctx := b.Context()
	for b.Loop() {
		p, err := c.Exec(ctx, &sandbox.Command{Args: []string{"/bin/true"}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(ctx); err != nil {
			b.Fatal(err)
		}
		p.Close()
	}
}

func BenchmarkOutput(b *testing.B) {
	c := newClient(b, "/")
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		p, err := c.Exec(b.Context(), sh(fmt.Sprintf("head -c %d /dev/zero", size)))
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, p.Stdout()); n != size || err != nil {
			b.Fatal(n, err)
		}
		p.Close()
	}
}

func BenchmarkWrite(b *testing.B) {
	dir := b.TempDir()
	c := newClient(b, dir)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := c.Write(b.Context(), dir+"/f", bytes.NewReader(data), driver.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	if err := os.WriteFile(dir+"/f", make([]byte, 64<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	c := newClient(b, dir)
	b.SetBytes(64 << 20)
	for b.Loop() {
		r, _, err := c.Read(b.Context(), dir+"/f", driver.ReadOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); n != 64<<20 || err != nil {
			b.Fatal(n, err)
		}
		r.Close()
	}
}

func BenchmarkList(b *testing.B) {
	dir := b.TempDir()
	for i := range 10_000 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	c := newClient(b, dir)
	for b.Loop() {
		n := 0
		for _, err := range c.List(b.Context(), dir, driver.ListOptions{}) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != 10_000 {
			b.Fatal(n)
		}
	}
}
