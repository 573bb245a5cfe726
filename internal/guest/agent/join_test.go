package agent

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// After a long freeze of the machine the deadline has passed, but the caller's
// data is waiting to be read.
func TestReadHeaderAfterFreeze(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	past := func() {
		if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	header := make([]byte, 4)
	past()
	if _, err := r.Read(header); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("reading past the deadline: %v", err) // the deadline must have passed
	}
	if _, err := w.WriteString("ping"); err != nil {
		t.Fatal(err)
	}
	if err := readHeader(r, header); err != nil || string(header) != "ping" {
		t.Errorf("read %q, %v; want what was sent", header, err)
	}
	past()
	w.Close()
	if err := readHeader(r, header); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want an error for a vanished caller", err)
	}
}
