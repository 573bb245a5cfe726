// Package image provides root file systems for sandboxes. It resolves a
// reference to an image, pulls or imports it if necessary, and stores images on
// disk as read-only EROFS files that sandboxes share. An image derived from
// another one consists of the other's files and a layer with the changes; see
// package stack.
//
// Images are never unpacked on this machine, except by [Image.Unpack], for
// engines that need a directory.
//
// # References
//
//	host                      the machine's own toolchain, read-only; also ""
//	debian:12                 a registry, with Docker's defaults
//	quay.io/org/app@sha256:…  … verified against the digest from end to end
//	oci:DIR[:TAG]             an OCI image layout
//	docker-archive:FILE[:REF] what "docker save" writes
//	dir:DIR                   a directory that is a root file system
//	tar:FILE                  a tar of one; gzip and zstd are recognised
//
// # On disk
//
//	blobs/sha256/HEX   layers as transferred, verified; only a cache once the
//	                   images that have them are built
//	partial/HEX        the beginning of a blob whose transfer was cut short
//	rootfs/HEX.erofs   layers, each by what it was made of and those below it
//	images/HEX.json    one record for each image, by its digest
//	refs/HEX.json      one record for each name and platform, by their hash
//	tmp/               files being written
//	locks/             empty files that are locked, never read
//
// A file gets its final name only when it is complete and synced, so a crash
// leaves only files in tmp and partial. Several processes may use a store: they
// lock with flock(2), and a crash releases the locks.
package image

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Image is an image that is ready to use. Returned values are immutable and
// safe for concurrent use.
type Image struct {
	Ref      string    // the reference, in its familiar form
	Digest   string    // "sha256:…": of the manifest, or of the tree for local sources
	Names    []string  // all names of the image, sorted; after Get only the requested one
	Platform string    // "linux/amd64"
	Created  time.Time // according to the image; zero if unknown
	Pulled   time.Time // when it was pulled, imported or generated
	Size     int64     // bytes of its layers on disk, including shared ones
	Config   Config
	Binds    []Bind
	// Signatures were found with the image when it was pulled or imported. They
	// are not verified.
	Signatures []Signature

	// Layers are the names of the layers of the root file system, top first.
	// Images with a common layer share its file.
	Layers []string
	// Unique is the number of bytes of Size that no other image shares. Only List
	// and Inspect set it.
	Unique int64

	dir string // of the layers
}

// Bind is a read-only tree of this machine that is mounted over the root file
// system. Only the host image has binds.
type Bind struct {
	Source string `json:"source"` // on this machine
	Target string `json:"target"` // inside
}

// Config is the image's configuration. It comes from the image's author: its
// size is limited, but it is not trusted.
type Config struct {
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	Env          []string          `json:"env,omitempty"` // NAME=value
	User         string            `json:"user,omitempty"`
	Workdir      string            `json:"workdir,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	StopSignal   string            `json:"stopSignal,omitempty"`   // "SIGTERM" or a number
	ExposedPorts []string          `json:"exposedPorts,omitempty"` // "80/tcp", sorted
	Volumes      []string          `json:"volumes,omitempty"`      // absolute paths, sorted
}

// OpenLayers opens the EROFS files for reading, top first. Each file holds a
// shared lock as long as it, or a duplicate of it in any process, is open. If
// the sandbox's kernel holds them, the image cannot be removed while the
// sandbox runs. The caller closes the files. If the image was removed
// meanwhile, OpenLayers returns CodeNotFound: call Get again.
func (i *Image) OpenLayers() ([]*os.File, error) {
	var files []*os.File
	for _, key := range i.Layers {
		f, err := i.openLayer(key)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (i *Image) openLayer(key string) (*os.File, error) {
	f, err := os.Open(filepath.Join(i.dir, key+".erofs"))
	if err != nil {
		if os.IsNotExist(err) {
			return nil, i.removed()
		}
		return nil, internal("image.open", i.Ref, err)
	}
	if err := flock(f, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, internal("image.open", i.Ref, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, internal("image.open", i.Ref, err)
	}
	if st.Nlink == 0 { // it was removed between opening and locking
		f.Close()
		return nil, i.removed()
	}
	return f, nil
}

func (i *Image) removed() error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "image.open", Subject: i.Ref, Message: "the image was removed meanwhile"}
}

// Phase is a phase of a Get.
type Phase string

// The phases, in order. Most Gets skip some.
const (
	PhaseWaiting     Phase = "waiting"     // waiting for another Get of the same image
	PhaseResolving   Phase = "resolving"   // resolving the reference
	PhaseDownloading Phase = "downloading" // downloading a layer: Done of Total bytes
	PhaseBuilding    Phase = "building"    // building from a layer: Done of Total bytes were read
	PhaseReady       Phase = "ready"
)

// Progress is the progress of a Get. Layers are counted from 1. Bytes are those
// of the compressed layer. Total is 0 if unknown. Several layers may be
// downloading at once.
type Progress struct {
	Phase  Phase
	Layer  int
	Layers int
	Digest string // of the layer, if known
	Done   int64
	Total  int64
}

// String describes the progress for display, without byte counts.
func (p Progress) String() string {
	if p.Layers > 0 {
		return fmt.Sprintf("%s layer %d/%d", p.Phase, p.Layer, p.Layers)
	}
	return string(p.Phase)
}

// fail returns an error of this package. Its text is shown to users.
func fail(code sandbox.Code, op, subject, hint, format string, args ...any) error {
	if len(subject) > 200 {
		subject = subject[:200] + "…"
	}
	return &sandbox.Error{Code: code, Op: op, Subject: subject, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// internal wraps an error of this machine. ENOSPC has its own code. The text
// does not contain the cause.
func internal(op, subject string, err error) error {
	e := &sandbox.Error{Code: sandbox.CodeInternal, Op: op, Subject: subject, Message: "the image store failed", Cause: err}
	switch {
	case isNoSpace(err):
		e.Code, e.Message, e.Hint = sandbox.CodeExhausted, "no space left for images", "free some with: atoll image prune"
	case os.IsPermission(err):
		e.Code, e.Message = sandbox.CodeDenied, "permission denied in the image store"
	}
	return e
}
