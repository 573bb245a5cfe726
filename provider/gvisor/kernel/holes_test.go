package kernel

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// TestHoles checks that large ranges that were never written to are found, and
// no written range, even if it contains zeros.
func TestHoles(t *testing.T) {
	fd, err := unix.MemfdCreate("holes", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "holes")
	defer f.Close()
	const page, size = 4 << 10, 8 << 20
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 1 << 20, 1<<20 + page + minHole - page, 2 << 20, size - page} {
		if _, err := f.WriteAt(make([]byte, page), at); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		begin, end uint64
		want       []memmap.FileRange
	}{
		{0, size, []memmap.FileRange{{Start: page, End: 1 << 20}, {Start: 1<<20 + minHole + page, End: 2 << 20}, {Start: 2<<20 + page, End: size - page}}},
		{3 << 20, 5 << 20, []memmap.FileRange{{Start: 3 << 20, End: 5 << 20}}},
		{1 << 20, 1<<20 + minHole, nil},
		{1<<20 + page, 1<<20 + minHole, nil},
		{0, page, nil},
		{0, 0, nil},
		{size, 2 * size, []memmap.FileRange{{Start: size, End: 2 * size}}},
	} {
		if got := holes(fd, c.begin, c.end); !slices.Equal(got, c.want) {
			t.Errorf("between %#x and %#x: %v, and not %v", c.begin, c.end, got, c.want)
		}
	}
	f.Close()
	if got := holes(fd, 0, size); got != nil {
		t.Errorf("in a file that is closed: %v", got)
	}
}
