package sparse

import (
	"errors"
	"io"
)

// page is the size of all files in sysfs. Files in procfs have size 0.
const page = 4096

// maxWhole limits the size of a file read into memory because its size is
// unknown.
const maxWhole = 16 << 20

var errEndless = errors.New("it has no size and no end")

// Whole returns the content of a file that the kernel generates on reading, as
// in /proc and /sys, whose reported size is wrong. For files with other sizes
// it returns false. A file that cannot be read and has no size counts as empty.
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
