package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/view/terminal"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// A recording ends before it would exceed its size, and what it has is whole (RB-72).
func TestTheLargestSize(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "x.cast"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := &tape{recorder: &recorder{s: &Service{cfg: Config{SizeLimit: 1000}}, file: file}}
	r.row.Started = time.Now()
	if why := r.write(terminal.Change{Screen: []byte("screen"), Size: terminal.DefaultSize}); why != "" {
		t.Fatal(why)
	}
	why := sandbox.Reason("")
	for n := 0; why == "" && n < 1000; n++ {
		why = r.write(terminal.Change{Output: []byte("some output\r\n")})
	}
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if why != viewing.ReasonSizeLimit || len(got) > 1000 || len(got) < 900 || int64(len(got)) != r.bytes {
		t.Errorf("it ended because of %q, with %d bytes of which %d count", why, len(got), r.bytes)
	}
	if _, text := read(t, got); !strings.HasPrefix(text["o"], "screensome output\r\n") {
		t.Errorf("it shows %q", text["o"])
	}
}

// A changed size is one event, in front of what is shown in it (RB-72).
func TestSizesAreRecorded(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "x.cast"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := &tape{recorder: &recorder{s: &Service{cfg: Config{SizeLimit: maxSize}}, file: file}, size: sandbox.WindowSize{Cols: 10, Rows: 10}}
	r.row.Started = time.Now()
	wide := sandbox.WindowSize{Cols: 120, Rows: 40}
	for _, c := range []terminal.Change{
		{Screen: []byte("a"), Size: terminal.DefaultSize},
		{Size: wide},
		{Output: []byte("b")},
		{Screen: []byte("c"), Size: wide},
		{Input: []byte("d")},
		{Screen: []byte("e"), Size: terminal.DefaultSize},
	} {
		if why := r.write(c); why != "" {
			t.Fatal(why)
		}
	}
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	header, text := read(t, got)
	if header["width"] != 80.0 || text["r"] != "120x4080x24" || text["o"] != "abce" || text["i"] != "d" {
		t.Errorf("recorded: %v, %q", header, text)
	}
}
