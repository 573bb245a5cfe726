// Package snapshot writes and reads the snapshots of sandboxes.
//
// A snapshot is a directory of
//
//	manifest.json  the snapshot's properties, and the sizes and checksums of the other files
//	files.tar      the sandbox's changes of its image; see package layer
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
package snapshot

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
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// The files of a snapshot.
const (
	fileManifest = "manifest.json"
	fileFiles    = "files.tar"
	fileKernel   = "kernel"
	fileIndex    = "pages.index"
	filePages    = "pages"
	fileGuest    = "guest.erofs"
)

// Limits of a manifest's contents.
const (
	manifestFormat = 1
	maxManifest    = 16 << 20 // room for the largest number of long names
)

// Manifest describes a snapshot.
type Manifest struct {
	Format    int       `json:"format"`
	Created   time.Time `json:"created"`
	Image     string    `json:"image"`               // as in the sandbox's Spec
	Digest    string    `json:"digest"`              // of that image
	Transient bool      `json:"transient,omitempty"` // without checksums: its writer restores it at once
	CA        []byte    `json:"ca,omitempty"`        // the network's certificate that its programs trust
	Parts     []part    `json:"parts"`
	Memory    *Memory   `json:"memory,omitempty"`
}

// Memory lists what restoring the memory depends on.
type Memory struct {
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

// Damaged returns the error about a damaged snapshot, with CodeInvalid.
func Damaged(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "the snapshot is damaged: " + fmt.Sprintf(format, args...)}
}

// parse reads an untrusted manifest. The memory of snapshots is complete only if
// it is restorable here.
func (m *Manifest) parse(js []byte, restorable func(engine string) bool) error {
	if len(js) > maxManifest {
		return Damaged("its manifest is too long")
	}
	// The last line is the checksum of the preceding text.
	body, end := js, ""
	if n := len(js) - sumLine; n > 0 {
		body, end = js[:n], string(js[n:])
	}
	if end != lineOf(body) {
		return Damaged("its manifest was changed")
	}
	if err := json.Unmarshal(body, m); err != nil {
		return Damaged("its manifest is malformed")
	}
	if m.Format != manifestFormat {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Message: fmt.Sprintf("snapshots of format %d are unknown here", m.Format)}
	}
	want := []string{fileFiles}
	if m.Memory != nil {
		want = append(want, fileKernel, fileIndex, filePages)
	}
	if len(m.Parts) != len(want) {
		return Damaged("it has %d parts and not %d", len(m.Parts), len(want))
	}
	for i, p := range m.Parts {
		if p.Name != want[i] || p.Size < 0 {
			return Damaged("part %d is not %s", i+1, want[i])
		}
	}
	if m.Memory == nil || !restorable(m.Memory.Engine) {
		return nil
	}
	if p := m.Memory.Image; p == nil || p.Name != fileGuest || p.Size < 0 || m.Memory.Guest == "" {
		return Damaged("it has memory but not the guest program that the memory needs")
	}
	return nil
}

// all returns the parts of a snapshot that can be used here.
func (m *Manifest) all(restorable func(engine string) bool) []part {
	if m.Memory == nil || !restorable(m.Memory.Engine) {
		return m.Parts // only its files can be used
	}
	return append(slices.Clone(m.Parts), *m.Memory.Image)
}

// write writes the manifest of the parts in dir. It remembers their checksums,
// so that a fork need not read them again.
func (m *Manifest) write(ctx context.Context, dir string) error {
	names := []string{fileFiles}
	if m.Memory != nil {
		names = append(names, fileKernel, fileIndex, filePages)
	}
	for _, name := range names {
		p, err := m.writePart(ctx, dir, name)
		if err != nil {
			return err
		}
		m.Parts = append(m.Parts, p)
	}
	if m.Memory != nil {
		p, err := m.writePart(ctx, dir, fileGuest)
		if err != nil {
			return err
		}
		m.Memory.Image = &p
	}
	js, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	return writeManifest(filepath.Join(dir, fileManifest), append(js, lineOf(js)...))
}

// writePart returns the description of a part in dir.
func (m *Manifest) writePart(ctx context.Context, dir, name string) (part, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return part{}, err
	}
	n, sum, err := m.measure(ctx, f)
	return part{name, n, sum}, errors.Join(err, f.Close())
}

// measure returns the size and the checksum of a part, and remembers them.
func (m *Manifest) measure(ctx context.Context, f *os.File) (n int64, crc uint32, err error) {
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

// Lacks returns the features that the snapshot's processes may use and that
// this processor does not have.
func (m *Memory) Lacks(have []string) []string {
	var lacking []string
	for _, f := range m.CPU {
		if !slices.Contains(have, f) {
			lacking = append(lacking, f)
		}
	}
	return lacking
}
