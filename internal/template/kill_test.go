package template

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"testing"
)

// hangEnv names the cache in which the test binary, as a separate process,
// writes half a layer.
const hangEnv = "TEMPLATE_TEST_HANG"

// TestKilledBuild kills the writer of a layer. Opening the cache while the
// writer is alive keeps its file, and later removes it. Complete layers are
// kept.
func TestKilledBuild(t *testing.T) {
	if dir := os.Getenv(hangEnv); dir != "" {
		hang(dir)
	}
	path := t.TempDir()
	c := opened(t, path)
	if err := c.put("tenant", "whole", func(w io.Writer) error { _, err := io.WriteString(w, "layer"); return err }); err != nil {
		t.Fatal(err)
	}
	writer := exec.Command(os.Args[0], "-test.run=^TestKilledBuild$")
	writer.Env = append(os.Environ(), hangEnv+"="+path)
	in, err := writer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
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
	if n := layers(t, opened(t, path)); n != 2 {
		t.Errorf("while one is written there are %d files", n)
	}
	if err := writer.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Wait() // it was killed
	if c = opened(t, path); layers(t, c) != 1 || !c.has("tenant", "whole") || c.has("tenant", "half") {
		t.Errorf("after that there are %d", layers(t, c))
	}
}

func opened(t *testing.T, path string) *Cache {
	t.Helper()
	c, err := OpenCache(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func layers(t *testing.T, c *Cache) int {
	t.Helper()
	entries, err := fs.ReadDir(c.root.FS(), dir("tenant"))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// hang writes half a layer, says so, and waits to be killed.
func hang(path string) {
	c, err := OpenCache(path)
	if err == nil {
		err = c.put("tenant", "half", func(w io.Writer) error {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
			fmt.Print("!")
			_, err := io.Copy(io.Discard, os.Stdin) // until it or its parent is killed
			return err
		})
	}
	panic(err)
}
