package sparse

import (
	"errors"
	"io"
)

// page is the size that files of sysfs have, whatever is in them. Those of
// procfs have the size 0.
const page = 4096

// maxWhole bounds a file that is read into memory because its size says nothing.
const maxWhole = 16 << 20

var errEndless = errors.New("it has no size and no end")

// Whole returns the content of a file that a kernel makes up when it is read, as
// in /proc and /sys: its size does not tell how much that is. Of files with any
// other size it returns false. One that cannot be read, and has no size, is empty.
func Whole(f io.ReaderAt, size int64) (content []byte, ok bool, err error) {
	if size != 0 && size != page {
		return nil, false, nil
	}
	content, err = io.ReadAll(io.NewSectionReader(f, 0, maxWhole+1))
	switch {
	case err != nil && size == 0:
		return nil, true, nil
	case err == nil && len(content) > maxWhole:
		err = errEndless
	}
	return content, true, err
}
