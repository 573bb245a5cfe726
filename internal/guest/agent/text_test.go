package agent

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// feed creates a named pipe and a reader of its lines.
func feed(t *testing.T) (w *os.File, r *textReader) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "feed")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, &textReader{file: f, lines: bufio.NewReader(f)}
}

func TestTextReader(t *testing.T) {
	w, r := feed(t)
	long := bytes.Repeat([]byte("0123456789abcdef"), 2000)
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("from a file"))
	text := base64.StdEncoding.EncodeToString
	lines := text([]byte("short")) + "\n\n" + text(long) + "\r\n@" + file + " " + hex.EncodeToString(sum[:]) + "\n"
	go func() {
		for len(lines) > 0 { // in pieces that do not end at lines
			n := min(len(lines), 1000)
			_, _ = w.WriteString(lines[:n])
			lines = lines[n:]
		}
	}()
	want := "short" + string(long) + "from a file"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(want))
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

// The part of a line that was read before the deadline is kept.
func TestTextReaderDeadline(t *testing.T) {
	w, r := feed(t)
	if _, err := w.WriteString("aGVs"); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, err := r.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes of half a line: %v", n, err)
	}
	if err := r.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("bG8=\n"); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("read %q, %v", b[:n], err)
	}
}

// A file with another content and a line that is not base64 end the link.
func TestTextReaderRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("sent"))
	for _, line := range []string{"@" + file + " " + hex.EncodeToString(sum[:]), "@/nowhere 00", "not base64!"} {
		w, r := feed(t)
		if _, err := w.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Read(make([]byte, 10)); err == nil {
			t.Errorf("%s: read %d bytes", line, n)
		}
	}
}

// The guest of a restarted machine reads its predecessor's defaults.
func TestRemember(t *testing.T) {
	file := filepath.Join(t.TempDir(), "defaults")
	before := newAgent("/")
	before.remember(file)
	before.record(&wire.Defaults{Env: map[string]string{"A": "b"}, Workdir: "/srv", User: "nobody"})
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the file: %v, %v", info, err)
	}
	after := newAgent("/")
	after.remember(file)
	if got := after.getDefaults(); got.Env["A"] != "b" || got.Workdir != "/srv" || got.User != "nobody" {
		t.Errorf("the next guest has %+v", got)
	}
	if err := os.WriteFile(file, []byte{0xff}, 0o600); err != nil {
		t.Fatal(err)
	}
	spoilt := newAgent("/")
	spoilt.remember(file)
	if got := spoilt.getDefaults(); got.Workdir != "" {
		t.Errorf("a guest with a spoilt file has %+v", got)
	}
}
