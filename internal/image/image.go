// Package image gets root file systems for sandboxes: it resolves a reference
// to a ready image, pulling or importing it if need be, and keeps images on
// disk, as read-only EROFS files that sandboxes share. An image that was made
// of another has that one's files and, over them, one with what it adds; see
// package stack.
//
// Nothing of an image is ever unpacked on this machine, except by
// [Image.Unpack] for engines that need a directory.
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
// A file appears under its final name only when it is complete and synced, so
// a crash leaves nothing but files in tmp and partial. Many processes may use
// one store: they exclude one another with flock(2), which a crash releases.
package image

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Image is an image that is ready to use. Values are not changed after they
// were returned, and may be used concurrently.
type Image struct {
	Ref      string    // what was asked for, in its familiar form
	Digest   string    // "sha256:…": of the manifest, or of the tree for local sources
	Names    []string  // all names that lead to this image, sorted; after Get only the one it got
	Platform string    // "linux/amd64"
	Created  time.Time // as the image says; zero when it does not
	Pulled   time.Time // when it was pulled, imported or generated
	Size     int64     // bytes of its layers on disk, also of those that other images have
	Config   Config
	Binds    []Bind
	// Signatures lay beside it when it was pulled or imported.
	Signatures []Signature

	// Layers name what the root file system is made of, the upper layer first.
	// Images that have a layer in common share its file.
	Layers []string
	// Unique is how many bytes of Size no other image has. Only List and Inspect
	// say so.
	Unique int64

	dir string // of the layers
}

// Bind is a read-only tree of this machine that is shown over the root file
// system. Only the host image has any.
type Bind struct {
	Source string `json:"source"` // on this machine
	Target string `json:"target"` // inside
}

// Config is what the image says about how to run it. All of it is the image
// author's word, bounded in size but otherwise not to be trusted.
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

// OpenLayers opens the EROFS files for reading, the upper one first. Each holds a
// shared lock for as long as it, or any duplicate of it in any process, is open:
// give them to the sandbox's kernel, and the image cannot be removed under the
// sandbox. The caller closes the files. An image that was removed meanwhile is
// CodeNotFound: Get it again.
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
	if st.Nlink == 0 { // it was removed between open and lock
		f.Close()
		return nil, i.removed()
	}
	return f, nil
}

func (i *Image) removed() error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "image.open", Subject: i.Ref, Message: "the image was removed meanwhile"}
}

// Phase is what a Get is busy with.
type Phase string

// The phases, in order. Not every Get has each.
const (
	PhaseWaiting     Phase = "waiting"     // for another Get of the same image
	PhaseResolving   Phase = "resolving"   // the reference
	PhaseDownloading Phase = "downloading" // Done of Total bytes of one layer
	PhaseBuilding    Phase = "building"    // Done of Total bytes of one layer are read
	PhaseReady       Phase = "ready"
)

// Progress is one step of a Get. Layers are counted from 1; bytes are those of
// the layer as transferred, so they are real. Total is 0 when it is not known.
// Several layers may be downloading at a time.
type Progress struct {
	Phase  Phase
	Layer  int
	Layers int
	Digest string // of the layer, if known
	Done   int64
	Total  int64
}

// String describes the step for a person, without its bytes.
func (p Progress) String() string {
	if p.Layers > 0 {
		return fmt.Sprintf("%s layer %d/%d", p.Phase, p.Layer, p.Layers)
	}
	return string(p.Phase)
}

// fail makes an error of this package. Its text is shown to users.
func fail(code sandbox.Code, op, subject, hint, format string, args ...any) error {
	if len(subject) > 200 {
		subject = subject[:200] + "…"
	}
	return &sandbox.Error{Code: code, Op: op, Subject: subject, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// internal wraps an error that is this machine's fault; ENOSPC has a code of
// its own. The cause is not part of the text.
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
