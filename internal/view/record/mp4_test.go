package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// box makes a box of an MP4 file.
func box(name string, content ...[]byte) []byte {
	all := bytes.Join(content, nil)
	b := binary.BigEndian.AppendUint32(nil, uint32(boxHead+len(all)))
	return append(append(b, name...), all...)
}

// fragment makes a fragment of a video at a time.
func fragment(at uint64, data string) []byte {
	when := binary.BigEndian.AppendUint64([]byte{1, 0, 0, 0}, at)
	moof := box("moof", box("mfhd", make([]byte, 8)), box("traf", box("tfhd", make([]byte, 8)), box("tfdt", when)))
	return append(moof, box("mdat", []byte(data))...)
}

var header = append(box("ftyp", []byte("iso5")), box("moov", []byte("how to decode it"))...)

// shown returns the times and the content of a video, read strictly.
func shown(t *testing.T, file []byte) (times []uint64, data string) {
	t.Helper()
	r := bytes.NewReader(file)
	if got, err := readHeader(r); err != nil || !bytes.Equal(got, header) {
		t.Fatalf("the header is %q, %v", got, err)
	}
	for {
		moof, mdat, err := readFragment(r)
		if errors.Is(err, io.EOF) {
			return times, data
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := binary.BigEndian.Uint32(inside(moof, "mfhd")[4:]); int(n) != len(times)+1 {
			t.Errorf("fragment %d has the number %d", len(times)+1, n)
		}
		at, err := place(moof, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		times, data = append(times, at), data+string(mdat[boxHead:])
	}
}

// RB-72.
func TestVideosAreWholeFragments(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.mp4")
	two := append(bytes.Clone(header), append(fragment(0, "one"), fragment(9, "two")...)...)
	first := len(header) + len(fragment(0, "one"))
	for size := range len(two) + 1 {
		want := 0
		switch {
		case size == len(two):
			want = size
		case size >= first:
			want = first
		}
		if err := os.WriteFile(name, two[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := wholeFragments(file)
		info, _ := file.Stat()
		_ = file.Close()
		if err != nil || got != int64(want) || info.Size() != got {
			t.Fatalf("of %d bytes %d are whole and %d left, %v; want %d", size, got, info.Size(), err, want)
		}
	}
}

// What a sandbox writes may be anything.
func FuzzVideo(f *testing.F) {
	f.Add(append(bytes.Clone(header), fragment(7, "data")...))
	f.Add([]byte("\x00\x00\x00\x01mdat\x00\x00\x00\x00\x00\x00\x00\x08"))
	f.Add(append(bytes.Clone(header), "\xff\xff\xff\xffmoof"...))
	f.Fuzz(func(_ *testing.T, p []byte) {
		r := bytes.NewReader(p)
		if _, err := readHeader(r); err != nil {
			return
		}
		for {
			moof, _, err := readFragment(r)
			if err != nil {
				return
			}
			_, _ = place(moof, 1, 1<<40)
		}
	})
}
