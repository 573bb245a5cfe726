// Package sparse preserves the holes of files in tar streams. It writes the PAX
// format "GNU.sparse" 1.0, which GNU tar, libarchive and Go's reader support,
// and restores holes when such a file is unpacked.
//
// Go's archive/tar can read that format but not write it.
package sparse

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Extent is a part of a file with data.
type Extent struct{ Offset, Length int64 }

// File is a file to read. Seek is only used to find data and holes.
type File interface {
	io.ReaderAt
	io.Seeker
}

// Whence values of lseek(2).
const (
	seekData = 3
	seekHole = 4
)

const (
	// worth is the minimum number of bytes saved for a file to be written as
	// sparse, and the minimum length of a hole.
	worth = 32 << 10
	// maxExtents limits the size of a map; further extents are merged into one.
	maxExtents = 64 << 10
	block      = 4096
)

// Find returns the extents of a file of size bytes, of which allocated are on
// disk. It returns false if a sparse form is not worthwhile. If the kernel
// cannot list holes, Find reads the file and treats zeros as holes.
func Find(f File, size, allocated int64) ([]Extent, bool, error) {
	if size < 2*worth {
		return nil, false, nil
	}
	_, err := f.Seek(0, seekHole)
	known := err == nil
	if known && allocated >= size {
		return nil, false, nil
	}
	if known {
		all, err := ask(f, size)
		if err != nil {
			return nil, false, err
		}
		if len(all) != 1 || all[0].Length < size {
			return all, spares(all, size), nil
		}
	}
	all, err := Scan(f, size)
	return all, spares(all, size), err
}

func spares(all []Extent, size int64) bool {
	for _, e := range all {
		size -= e.Length
	}
	return size >= worth
}

// ask lists extents with lseek(2).
func ask(f File, size int64) (all []Extent, err error) {
	for at := int64(0); at < size; {
		start, err := f.Seek(at, seekData)
		if err != nil {
			return all, nil //nolint:nilerr // the rest is a hole
		}
		end, err := f.Seek(start, seekHole)
		if err != nil {
			return nil, err
		}
		if start = max(start, at); start >= size || end <= start {
			break // the file is being truncated
		}
		if len(all) == maxExtents {
			end = size
		}
		all = append(all, Extent{start, min(end, size) - start})
		at = end
	}
	return all, nil
}

// Scan reads a file and returns the extents that are not zero.
func Scan(r io.ReaderAt, size int64) (all []Extent, err error) {
	kept := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(kept)
	buf := kept[:]
	open := false // whether the last extent continues
	for at := int64(0); at < size; {
		n, err := r.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		if n == 0 {
			if err == io.EOF {
				break // the file is being truncated
			}
			return nil, err
		}
		for part := buf[:n]; len(part) > 0; {
			piece := part[:min(block, len(part))]
			part = part[len(piece):]
			if !isZero(piece) {
				all = extend(all, at, int64(len(piece)), open)
				open = true
			} else if open && !gapIsShort(all, at+int64(len(piece))) {
				open = false
			}
			at += int64(len(piece))
		}
	}
	return all, nil
}

const bufferSize = 256 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

var zeroBlock [block]byte

func isZero(p []byte) bool { return bytes.Equal(p, zeroBlock[:len(p)]) }

// gapIsShort reports whether the gap between the last extent and end is too
// short for a hole.
func gapIsShort(all []Extent, end int64) bool {
	last := all[len(all)-1]
	return len(all) == maxExtents || end-(last.Offset+last.Length) < worth
}

func extend(all []Extent, at, length int64, open bool) []Extent {
	if !open {
		return append(all, Extent{at, length})
	}
	last := &all[len(all)-1]
	last.Length = at + length - last.Offset
	return all
}

// Write writes a member of h.Size bytes with data only in extents. out is the
// writer below tw. Of the header, it uses name, mode, owner, time and extended
// attributes. If the file shrinks meanwhile, it writes zeros instead.
func Write(out io.Writer, tw *tar.Writer, h *tar.Header, r io.ReaderAt, extents []Extent) error {
	if err := tw.Flush(); err != nil {
		return err
	}
	table := tableOf(extents, h.Size)
	packed := int64(len(table))
	for _, e := range extents {
		packed += e.Length
	}
	records := encode(recordsOf(h, packed))
	head := slices.Concat(
		header("PaxHeaders.0/data", 'x', int64(len(records)), 0o644, 0, 0, time.Unix(0, 0)), padded(records),
		header("GNUSparseFile.0/data", tar.TypeReg, packed, h.Mode, h.Uid, h.Gid, h.ModTime), table)
	if _, err := out.Write(head); err != nil {
		return err
	}
	for _, e := range extents {
		n, err := io.Copy(out, io.NewSectionReader(r, e.Offset, e.Length))
		if err != nil {
			return err
		}
		if _, err := io.CopyN(out, zeros{}, e.Length-n); err != nil {
			return err
		}
	}
	_, err := out.Write(make([]byte, -packed&(tarBlock-1)))
	return err
}

// tableOf returns the map of a file, which precedes its data.
func tableOf(extents []Extent, size int64) []byte {
	var b bytes.Buffer
	end := int64(0)
	if len(extents) > 0 {
		end = extents[len(extents)-1].Offset + extents[len(extents)-1].Length
	}
	entries := slices.Clone(extents)
	if end < size { // an empty extent at the end marks the size
		entries = append(entries, Extent{size, 0})
	}
	fmt.Fprintf(&b, "%d\n", len(entries))
	for _, e := range entries {
		fmt.Fprintf(&b, "%d\n%d\n", e.Offset, e.Length)
	}
	return padded(b.Bytes())
}

// recordsOf returns the extended records of a member.
func recordsOf(h *tar.Header, packed int64) map[string]string {
	records := maps.Clone(h.PAXRecords)
	if records == nil {
		records = map[string]string{}
	}
	records["GNU.sparse.major"], records["GNU.sparse.minor"] = "1", "0"
	records["GNU.sparse.name"], records["GNU.sparse.realsize"] = h.Name, strconv.FormatInt(h.Size, 10)
	records["uid"], records["gid"] = strconv.Itoa(h.Uid), strconv.Itoa(h.Gid)
	records["size"] = strconv.FormatInt(packed, 10)
	records["mtime"] = seconds(h.ModTime)
	return records
}

// seconds formats a time for PAX. Before 1970 the fraction counts backwards.
func seconds(t time.Time) string {
	s, n := t.Unix(), int64(t.Nanosecond())
	if n == 0 {
		return strconv.FormatInt(s, 10)
	}
	sign := ""
	if s < 0 {
		sign, s, n = "-", -(s + 1), 1e9-n
	}
	return strings.TrimRight(fmt.Sprintf("%s%d.%09d", sign, s, n), "0")
}

// encode encodes records, each preceded by its length.
func encode(records map[string]string) []byte {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(records)) {
		rest := len(k) + len(records[k]) + len(" =\n")
		size := rest + len(strconv.Itoa(rest))
		if size = rest + len(strconv.Itoa(size)); size != rest+len(strconv.Itoa(size)) {
			size++
		}
		b = fmt.Appendf(b, "%d %s=%s\n", size, k, records[k])
	}
	return b
}

const tarBlock = 512

func padded(b []byte) []byte { return append(b, make([]byte, -len(b)&(tarBlock-1))...) }

// header returns a header block. Other fields are in the records.
func header(name string, kind byte, size, mode int64, uid, gid int, at time.Time) []byte {
	b := make([]byte, tarBlock)
	copy(b, name)
	octal := func(field []byte, v int64) {
		text := fmt.Sprintf("%0*o", len(field)-1, v)
		if v < 0 || len(text) >= len(field) {
			text = strings.Repeat("0", len(field)-1)
		}
		copy(field, text)
	}
	octal(b[100:108], mode&0o7777)
	octal(b[108:116], int64(uid))
	octal(b[116:124], int64(gid))
	octal(b[124:136], size)
	octal(b[136:148], at.Unix())
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	copy(b[148:156], "        ")
	var sum int64
	for _, c := range b {
		sum += int64(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Is reports whether a member is a sparse file. Reading it returns zeros for
// holes.
func Is(h *tar.Header) bool {
	return h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "" ||
		h.PAXRecords["GNU.sparse.size"] != ""
}

// Target is an empty file being written.
type Target interface {
	io.Writer
	io.Seeker
	Truncate(size int64) error
}

// Copy writes size bytes of src to an empty file, and leaves holes for zeros.
// It calls stop regularly, because a sender can make a hole very long at no
// cost.
func Copy(dst Target, src io.Reader, size int64, stop func() error) error {
	if err := dst.Truncate(size); err != nil {
		return err
	}
	kept := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(kept)
	buf := kept[:]
	at, written := int64(0), int64(0)
	for at < size {
		if err := stop(); err != nil {
			return err
		}
		n, err := io.ReadFull(src, buf[:min(int64(len(buf)), size-at)])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		for part := buf[:n]; len(part) > 0; {
			piece := part[:min(block, len(part))]
			part = part[len(piece):]
			if !isZero(piece) {
				if written != at {
					if _, err := dst.Seek(at, io.SeekStart); err != nil {
						return err
					}
				}
				if _, err := dst.Write(piece); err != nil {
					return err
				}
				written = at + int64(len(piece))
			}
			at += int64(len(piece))
		}
	}
	return nil
}
