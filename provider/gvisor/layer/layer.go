// Package layer writes the changes of a sandbox to its image as a tar stream
// in the format of an image layer: a file named .wh.NAME records that NAME was
// removed, and .wh..wh..opq that a directory hides the image's entries. The
// format does not depend on the engine's version.
//
// A sandbox's kernel can write such a stream itself, but reads every file into
// its own memory, including holes: `truncate -s 1T x` inside would crash it. So
// it is asked only for the tree, with the location of every file's data in the
// writable layer. That layer is our file, and the data is read from it.
package layer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/provider/internal/netfiles"
	"github.com/atoll-run/atoll/sandbox"
)

// Source has the changes of a paused sandbox. The caller owns the
// files.
type Source struct {
	// Tree is the kernel's list of files: a tar stream with the places of each
	// file's data instead of its content. It is not trusted.
	Tree io.ReadSeeker
	// Upper is the file behind the sandbox's writable layer.
	Upper io.ReaderAt
}

// Save writes all changes for a snapshot. Files with large holes are written
// without them, in a form that only Atoll's guest reads.
func (s Source) Save(w io.Writer) error { return s.write(w, sparse, nil) }

// Export writes the changes for an image: files with zeros for their holes, and
// without what the network link has added. A file of more than 32 GiB returns
// CodeExhausted.
func (s Source) Export(w io.Writer) error {
	ca, err := s.authority()
	if err != nil {
		return err
	}
	if len(ca) > 0 {
		return s.write(w, unplugged(ca), netfiles.Plugged)
	}
	return s.write(w, whole, netfiles.Provided)
}

func (s Source) write(w io.Writer, regular func(*tar.Writer, *tar.Header, content) error, skip func(string) bool) error {
	if _, err := s.Tree.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<20)
	l := &writer{out: tar.NewWriter(out), upper: s.Upper, regular: regular, skip: skip, removed: map[string]bool{}}
	return errors.Join(l.write(bufio.NewReaderSize(s.Tree, 1<<16)), out.Flush())
}

// Names and records with a special meaning in a layer or in the kernel's tree.
const (
	whiteout     = ".wh."
	opaqueMarker = ".wh..wh..opq"
	xattrRecord  = "SCHILY.xattr."
	opaqueRecord = xattrRecord + "trusted.overlay.opaque"
	aclPrefix    = xattrRecord + "system.posix_acl_"
)

// writer converts the kernel's tree and the data in upper to a layer.
type writer struct {
	out     *tar.Writer
	upper   io.ReaderAt
	regular func(*tar.Writer, *tar.Header, content) error // writes a file
	skip    func(name string) bool                        // reports files to leave out; may be nil

	// removed holds the removed names. The kernel may store all of them as links
	// to one file.
	removed map[string]bool
}

func (l *writer) write(tree io.Reader) error {
	tr := tar.NewReader(tree)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return l.out.Close()
		}
		if err != nil {
			return fmt.Errorf("the kernel's list of files: %w", err)
		}
		if err := l.member(h, tr); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

func (l *writer) member(h *tar.Header, r io.Reader) error {
	gone := h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 || h.Typeflag == tar.TypeLink && l.removed[h.Linkname]
	if gone {
		l.removed[h.Name] = true // also if it is skipped: other names may be links to it
	}
	if l.skip != nil && l.skip(path.Join("/", h.Name)) {
		return nil
	}
	h.Format = tar.FormatPAX
	opaque := h.PAXRecords[opaqueRecord] == "y"
	h.PAXRecords = attributes(h.PAXRecords)
	switch {
	case h.Typeflag == tar.TypeReg:
		size, segments, err := readSegments(r, h.Size)
		if err != nil {
			return err
		}
		return l.regular(l.out, h, content{size, joined(segments), l.upper})
	case gone:
		dir, name := path.Split(h.Name)
		return l.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + name, Format: tar.FormatPAX})
	}
	if err := l.out.WriteHeader(h); err != nil || !opaque {
		return err
	}
	return l.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: h.Name + opaqueMarker, Format: tar.FormatPAX})
}

// attributes returns the extended attributes that are meaningful elsewhere.
func attributes(of map[string]string) map[string]string {
	records := map[string]string{}
	for k, v := range of {
		switch {
		case !strings.HasPrefix(k, xattrRecord), strings.HasPrefix(k, xattrRecord+"trusted.overlay."):
			continue
		case strings.HasPrefix(k, aclPrefix):
			// The kernel encodes the values when it writes them, but not when it reads
			// them.
			raw, err := base64.RawStdEncoding.DecodeString(v)
			if err != nil {
				continue
			}
			v = string(raw)
		}
		records[k] = v
	}
	return records
}

// content is the content of a file.
type content struct {
	size     int64
	segments []segment
	upper    io.ReaderAt
}

// sparse writes a file as it is if it has no large holes, else only its data
// and a record of Atoll's with the data's offsets.
func sparse(tw *tar.Writer, h *tar.Header, c content) error {
	var data int64
	var places []string
	for _, s := range c.segments {
		data += s.len
		places = append(places, strconv.FormatInt(s.off, 10)+":"+strconv.FormatInt(s.len, 10))
	}
	h.Size = data
	if data < c.size {
		h.PAXRecords[guest.SparseRecord] = strconv.FormatInt(c.size, 10) + " " + strings.Join(places, ",")
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	for _, s := range c.segments {
		if err := s.copy(tw, c.upper); err != nil {
			return err
		}
	}
	return nil
}

// maxWhole is the largest size of a file that is written with its holes.
const maxWhole = 32 << 30

// whole writes a file with zeros for its holes, as other tools read it.
func whole(tw *tar.Writer, h *tar.Header, c content) error {
	if c.size > maxWhole {
		return &sandbox.Error{Code: sandbox.CodeExhausted, Message: fmt.Sprintf("%q has %d bytes, at most %d can be part of an image", h.Name, c.size, int64(maxWhole))}
	}
	h.Size = c.size
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	return c.writeTo(tw)
}

// writeTo writes all of a file, with zeros for its holes.
func (c content) writeTo(w io.Writer) error {
	var at int64
	for _, s := range append(c.segments, segment{off: c.size}) {
		if _, err := io.CopyN(w, zeros{}, s.off-at); err != nil {
			return err
		}
		if err := s.copy(w, c.upper); err != nil {
			return err
		}
		at = s.end()
	}
	return nil
}

// joined closes small gaps between segments, so that the record is not too long
// for a tar header. All closed gaps are written as zeros.
func joined(segments []segment) []segment {
	const most = 8192
	for gap := int64(4096); ; gap *= 16 {
		var out []segment
		for _, s := range segments {
			if n := len(out); n > 0 && s.off-out[n-1].end() < gap {
				out[n-1] = out[n-1].with(s)
				continue
			}
			out = append(out, s)
		}
		if len(out) <= most {
			return out
		}
	}
}

// segment is a range of a file that has data, at one or more places of the
// writable layer.
type segment struct {
	off, len, at int64
	more         []segment // segments that follow, maybe after gaps
}

func (s segment) end() int64 { return s.off + s.len }

// with merges two segments.
func (s segment) with(next segment) segment {
	if len(s.more) == 0 && next.off == s.end() && next.at == s.at+s.len {
		s.len += next.len
		return s
	}
	if len(s.more) == 0 {
		first := s
		s.more = []segment{first}
	}
	s.more = append(s.more, next)
	s.len = next.end() - s.off
	return s
}

// copy writes the data of a segment, with zeros for the gaps in it.
func (s segment) copy(w io.Writer, upper io.ReaderAt) error {
	if len(s.more) == 0 {
		n, err := io.Copy(w, io.NewSectionReader(upper, s.at, s.len))
		if err == nil && n < s.len {
			// The end of the writable layer, which ends with a hole.
			_, err = io.CopyN(w, zeros{}, s.len-n)
		}
		return err
	}
	at := s.off
	for _, p := range s.more {
		if _, err := io.CopyN(w, zeros{}, p.off-at); err != nil {
			return err
		}
		if err := p.copy(w, upper); err != nil {
			return err
		}
		at = p.end()
	}
	return nil
}

// zeros reads as an endless hole.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// readSegments parses the kernel's description of a file's content: its size,
// and the places of its pages.
func readSegments(r io.Reader, n int64) (size int64, segments []segment, err error) {
	const entry = 24
	if n < 8 || (n-8)%entry != 0 {
		return 0, nil, errors.New("the kernel's description of a file is invalid")
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return 0, nil, err
	}
	rd := bytes.NewReader(raw)
	var v [3]int64
	if err := binary.Read(rd, binary.LittleEndian, &size); err != nil {
		return 0, nil, err
	}
	var before int64
	for binary.Read(rd, binary.LittleEndian, &v) == nil {
		start, end, at := v[0], v[1], v[2]
		if start < before || end <= start || at < 0 || size < 0 {
			return 0, nil, errors.New("the kernel's description of a file is invalid")
		}
		before = end
		if end = min(end, size); end > start {
			segments = append(segments, segment{off: start, len: end - start, at: at})
		}
	}
	return size, segments, nil
}
