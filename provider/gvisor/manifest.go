package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// A snapshot is a directory of
//
//	manifest.json  the snapshot's properties, and the sizes and checksums of the other files
//	files.tar      the sandbox's changes of its image; see layer.go
//	kernel         with memory: the state of its kernel
//	pages.index    and the index of its pages
//	pages          and the pages
//	guest.erofs    and the guest's program, which is mapped into the memory
//
// Any version of Atoll can restore the files. The memory is tied to the engine
// that wrote it and to the processor's features.
//
// The checksums only detect damage. The owner of the snapshots must prevent
// deliberate changes. Therefore only a kernel reads the state of a kernel, with
// the same confinement as the kernel that wrote it.
const (
	snapManifest = "manifest.json"
	snapFiles    = "files.tar"
	snapKernel   = "kernel"
	snapIndex    = "pages.index"
	snapPages    = "pages"
	snapGuest    = "guest.erofs"
)

// Limits of a manifest's contents.
const (
	manifestFormat = 1
	maxManifest    = 16 << 20 // room for the largest number of long names
)

// manifest describes a snapshot.
type manifest struct {
	Format    int       `json:"format"`
	Created   time.Time `json:"created"`
	Image     string    `json:"image"`               // as in the sandbox's Spec
	Digest    string    `json:"digest"`              // of that image
	Transient bool      `json:"transient,omitempty"` // without checksums: its writer restores it at once
	CA        []byte    `json:"ca,omitempty"`        // the network's certificate that its programs trust
	Parts     []part    `json:"parts"`
	Memory    *memory   `json:"memory,omitempty"`
}

// memory lists what restoring the memory depends on.
type memory struct {
	Engine string            `json:"engine"`
	Guest  string            `json:"guest,omitempty"`   // digest of the guest's program
	Image  *part             `json:"program,omitempty"` // the part with that program; earlier versions had none
	CPU    []string          `json:"cpu"`               // processor features that the processes may use
	Mounts []string          `json:"mounts"`            // targets of host mounts, in order
	Group  string            `json:"group"`             // the control group of its processes inside
	Names  map[string]uint16 `json:"names,omitempty"`   // names whose addresses the processes may know
}

// part is one file of a snapshot.
type part struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  uint32 `json:"crc32c"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum reads a part to its end and returns its size and checksum.
func sum(ctx context.Context, f *os.File) (int64, uint32, error) {
	h := crc32.New(castagnoli)
	buf := make([]byte, 1<<20)
	for off := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		n, err := f.ReadAt(buf, off)
		h.Write(buf[:n])
		off += int64(n)
		if err == io.EOF {
			return off, h.Sum32(), nil
		}
		if err != nil {
			return 0, 0, err
		}
	}
}

// damaged returns the error about a damaged snapshot.
func damaged(format string, args ...any) error {
	return &providerError{sandbox.CodeInvalid, "the snapshot is damaged: " + fmt.Sprintf(format, args...), nil}
}

// saved is a snapshot that is being restored. Its parts are open, so that the
// checked files are used even if the directory changes.
type saved struct {
	manifest
	id    string // identifies this directory
	dir   string // where it was
	parts map[string]*os.File
	users *atomic.Int32
}

// share returns another reference, which the caller also closes; nil for nil.
func (s *saved) share() *saved {
	if s != nil {
		s.users.Add(1)
	}
	return s
}

func (s *saved) close() {
	if s == nil || s.users.Add(-1) > 0 {
		return
	}
	for _, f := range s.parts {
		f.Close()
	}
}

// removed reports whether the snapshot was removed since it was opened.
func (s *saved) removed() bool {
	if s == nil {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(s.parts[snapManifest].Fd()), &st) != nil || st.Nlink == 0
}

// openSnapshot opens a snapshot and checks all of its parts.
func openSnapshot(ctx context.Context, dir string) (_ *saved, err error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, damaged("%v", reason(err))
	}
	defer unix.Close(d)
	s := &saved{dir: dir, parts: map[string]*os.File{}, users: new(atomic.Int32)}
	s.share()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	f, err := openPart(d, snapManifest)
	if err != nil {
		return nil, err
	}
	s.parts[snapManifest] = f
	if s.id, err = identityOf(f); err != nil {
		return nil, err
	}
	js, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if err := s.parse(js); err != nil {
		return nil, err
	}
	for _, p := range s.all() {
		if s.parts[p.Name], err = openPart(d, p.Name); err != nil {
			return nil, err
		}
		if err := p.check(ctx, s.parts[p.Name], s.Transient); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// identityOf returns a string that identifies an existing file.
func identityOf(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	state, ok := stateOf(info)
	if !ok {
		return "", errors.ErrUnsupported
	}
	return fmt.Sprint(state), nil
}

// parse reads an untrusted manifest.
func (s *saved) parse(js []byte) error {
	if len(js) > maxManifest {
		return damaged("its manifest is too long")
	}
	// The last line is the checksum of the preceding text.
	body, end := js, ""
	if n := len(js) - sumLine; n > 0 {
		body, end = js[:n], string(js[n:])
	}
	if end != lineOf(body) {
		return damaged("its manifest was changed")
	}
	if err := json.Unmarshal(body, &s.manifest); err != nil {
		return damaged("its manifest is malformed")
	}
	if s.Format != manifestFormat {
		return &providerError{sandbox.CodeInvalid, fmt.Sprintf("snapshots of format %d are unknown here", s.Format), nil}
	}
	want := []string{snapFiles}
	if s.Memory != nil {
		want = append(want, snapKernel, snapIndex, snapPages)
	}
	if len(s.Parts) != len(want) {
		return damaged("it has %d parts and not %d", len(s.Parts), len(want))
	}
	for i, p := range s.Parts {
		if p.Name != want[i] || p.Size < 0 {
			return damaged("part %d is not %s", i+1, want[i])
		}
	}
	if s.Memory == nil || !restorable(s.Memory.Engine) {
		return nil
	}
	if p := s.Memory.Image; p == nil || p.Name != snapGuest || p.Size < 0 || s.Memory.Guest == "" {
		return damaged("it has memory but not the guest program that the memory needs")
	}
	return nil
}

// all returns the parts of a snapshot.
func (m *manifest) all() []part {
	if m.Memory == nil || !restorable(m.Memory.Engine) {
		return m.Parts // only its files can be used
	}
	return append(slices.Clone(m.Parts), *m.Memory.Image)
}

// openPart opens a file of a snapshot and rejects anything but a regular file.
func openPart(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, damaged("%s: %s", name, reason(err))
	}
	f := os.NewFile(uintptr(fd), name)
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, damaged("%s is not a file", name)
	}
	return f, nil
}

// check compares a part with the manifest.
func (p part) check(ctx context.Context, f *os.File, transient bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != p.Size {
		return damaged("%s has %d bytes and not %d", p.Name, info.Size(), p.Size)
	}
	if transient || verified.knows(info, p.Sum) {
		return nil
	}
	n, got, err := sum(ctx, f)
	switch {
	case err != nil:
		return err
	case n != p.Size || got != p.Sum:
		return damaged("%s has a wrong checksum", p.Name)
	}
	verified.add(info, p.Sum)
	return nil
}

// write writes the manifest of the parts in dir. It remembers their checksums,
// so that a fork need not read them again. It does not sync to disk.
func (m *manifest) write(ctx context.Context, dir string) error {
	names := []string{snapFiles}
	if m.Memory != nil {
		names = append(names, snapKernel, snapIndex, snapPages)
	}
	for _, name := range names {
		p, err := m.writePart(ctx, dir, name)
		if err != nil {
			return err
		}
		m.Parts = append(m.Parts, p)
	}
	if m.Memory != nil {
		p, err := m.writePart(ctx, dir, snapGuest)
		if err != nil {
			return err
		}
		m.Memory.Image = &p
	}
	js, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	return writeManifest(filepath.Join(dir, snapManifest), append(js, lineOf(js)...))
}

// writePart returns the description of a part in dir.
func (m *manifest) writePart(ctx context.Context, dir, name string) (part, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return part{}, err
	}
	n, sum, err := m.measure(ctx, f)
	return part{name, n, sum}, errors.Join(err, f.Close())
}

// measure returns the size and the checksum of a part, and remembers them.
func (m *manifest) measure(ctx context.Context, f *os.File) (n int64, crc uint32, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	if n = info.Size(); !m.Transient {
		if n, crc, err = sum(ctx, f); err != nil {
			return 0, 0, err
		}
	}
	verified.add(info, crc)
	return n, crc, nil
}

func writeManifest(path string, js []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(js)
	return errors.Join(err, f.Close())
}

// sumLine is the length of the last line of a manifest.
const sumLine = 1 + 8 + 1

// lineOf returns that line.
func lineOf(body []byte) string {
	return fmt.Sprintf("\n%08x\n", crc32.Checksum(body, castagnoli))
}

// lacks returns the features that the snapshot's processes may use and that
// this processor does not have.
func (m *memory) lacks(have []string) []string {
	var lacking []string
	for _, f := range m.CPU {
		if !slices.Contains(have, f) {
			lacking = append(lacking, f)
		}
	}
	return lacking
}

// files reads the files from their beginning.
func (s *saved) files() io.Reader {
	return io.NewSectionReader(s.parts[snapFiles], 0, s.Parts[0].Size)
}
