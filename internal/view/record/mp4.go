package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
)

// An MP4 file is a sequence of boxes: a length of 4 bytes, a name of 4 bytes, and
// a content, which for some is boxes again. A recording has ftyp and moov, which
// say how to decode it, and then fragments: a moof with the times of pictures and
// an mdat with the pictures. So a file that ends after a fragment is complete.

const (
	boxHead     = 8
	maxMoov     = 1 << 20
	maxFragment = 32 << 20
)

var errNoVideo = errors.New("this is no fragmented MP4 file")

// readBox reads a box of at most so many bytes, and returns all of it.
func readBox(r io.Reader, most int64) (name string, box []byte, err error) {
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, r, boxHead); err != nil {
		return "", nil, err
	}
	size := int64(binary.BigEndian.Uint32(buf.Bytes()))
	if size < boxHead || size > most {
		return "", nil, errNoVideo
	}
	name = string(buf.Bytes()[4:boxHead])
	if _, err := io.CopyN(&buf, r, size-boxHead); err != nil { // which grows with what arrives
		return "", nil, err
	}
	return name, buf.Bytes(), nil
}

// inside returns the content of the first box with each name, one in the other.
func inside(box []byte, names ...string) []byte {
	content := box[boxHead:]
	for _, name := range names {
		for {
			if len(content) < boxHead {
				return nil
			}
			size := int64(binary.BigEndian.Uint32(content))
			if size < boxHead || size > int64(len(content)) {
				return nil
			}
			if string(content[4:boxHead]) == name {
				content = content[boxHead:size]
				break
			}
			content = content[size:]
		}
	}
	return content
}

// readHeader reads the parameters of the decoder.
func readHeader(r io.Reader) ([]byte, error) {
	name, ftyp, err := readBox(r, maxMoov)
	if err != nil {
		return nil, err
	}
	next, moov, err := readBox(r, maxMoov)
	if err != nil {
		return nil, err
	}
	if name != "ftyp" || next != "moov" {
		return nil, errNoVideo
	}
	return append(ftyp, moov...), nil
}

// readFragment reads the next fragment. io.EOF: there is none.
func readFragment(r io.Reader) (moof, mdat []byte, err error) {
	for {
		name, box, err := readBox(r, maxFragment)
		switch {
		case err != nil:
			return nil, nil, err
		case name == "moof" && moof == nil:
			moof = box
		case name == "mdat" && moof != nil:
			return moof, box, nil
		case name == "moof" || name == "mdat" || name == "moov":
			return nil, nil, errNoVideo
		}
	}
}

// place numbers a fragment and moves it by a time. It returns its time.
func place(moof []byte, number uint32, by uint64) (at uint64, err error) {
	head, when := inside(moof, "mfhd"), inside(moof, "traf", "tfdt")
	if len(head) != 8 || len(when) != 12 || when[0] != 1 { // version 1 has 64 bits
		return 0, errNoVideo
	}
	at = binary.BigEndian.Uint64(when[4:]) + by
	binary.BigEndian.PutUint32(head[4:], number)
	binary.BigEndian.PutUint64(when[4:], at)
	return at, nil
}

// wholeFragments cuts off a fragment that was not written completely, and returns
// the size of the rest.
func wholeFragments(file *os.File) (int64, error) {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	var size, at int64
	for head := make([]byte, boxHead); ; {
		if _, err := file.ReadAt(head, at); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return 0, err
		}
		at += max(boxHead, int64(binary.BigEndian.Uint32(head)))
		if at > end {
			break
		}
		if string(head[4:]) == "mdat" {
			size = at
		}
	}
	return size, file.Truncate(size)
}
