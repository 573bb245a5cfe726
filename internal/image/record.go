package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// recordVersion is the version of the records and of file systems. Records of
// other versions are ignored.
const recordVersion = 1

// layeredVersion is the version of records of images with several layers. A
// program that knows only the first version would use the top layer alone.
const layeredVersion = 2

// imageRecord is the content of images/HEX.json.
type imageRecord struct {
	Version  int       `json:"version"`
	Digest   string    `json:"digest"`
	Platform string    `json:"platform"`
	Created  time.Time `json:"created,omitzero"`
	Pulled   time.Time `json:"pulled"`
	Size     int64     `json:"size"`
	Rootfs   string    `json:"rootfs"`          // the top layer: its name in rootfs/, without the extension
	Lower    []string  `json:"lower,omitempty"` // the layers below it, from top to bottom
	Config   Config    `json:"config"`
	Binds    []Bind    `json:"binds,omitempty"`
	Blobs    []string  `json:"blobs,omitempty"` // names in blobs/sha256/

	Signatures []Signature `json:"signatures,omitempty"`
}

// layers returns the names of the layers, top first.
func (r *imageRecord) layers() []string { return append([]string{r.Rootfs}, r.Lower...) }

// usable reports whether this program supports the record.
func (r *imageRecord) usable() bool {
	version := recordVersion
	if len(r.Lower) > 0 {
		version = layeredVersion
	}
	return r.Version == version && !slices.ContainsFunc(r.layers(), func(key string) bool { return !hexRE().MatchString(key) })
}

// refRecord is the content of refs/HEX.json.
type refRecord struct {
	Version  int    `json:"version"`
	Name     string `json:"name"`
	Platform string `json:"platform"`
	Digest   string `json:"digest"`
	Stamp    string `json:"stamp,omitempty"` // of a local source, when it was read

	changes
}

var hexRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// digestHex returns the hexadecimal part of a sha256 digest.
func digestHex(digest string) (string, bool) {
	h, ok := strings.CutPrefix(digest, "sha256:")
	return h, ok && hexRE().MatchString(h)
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s *Store) rootfsPath(key string) string { return s.path("rootfs", key+".erofs") }
func (s *Store) blobPath(hex string) string   { return s.path("blobs", "sha256", hex) }

// refFile returns the name of the record of a name and platform.
func refFile(name, platform string) string {
	sum := sha256.Sum256([]byte(name + "\x00" + platform))
	return hex.EncodeToString(sum[:]) + ".json"
}

// readRecord reads a record. If it is missing, invalid or of another version,
// readRecord returns fs.ErrNotExist.
func readRecord[T any](path string, valid func(*T) bool) (*T, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rec := new(T)
	if json.Unmarshal(data, rec) != nil || !valid(rec) {
		return nil, fmt.Errorf("%s is not a record of this version: %w", filepath.Base(path), fs.ErrNotExist)
	}
	return rec, nil
}

func (s *Store) readRef(name, platform string) (*refRecord, error) {
	return readRecord(s.path("refs", refFile(name, platform)), func(r *refRecord) bool {
		_, ok := digestHex(r.Digest)
		return ok && r.Version == recordVersion && r.Name == name && r.Platform == platform
	})
}

func (s *Store) readImage(digest string) (*imageRecord, error) {
	h, ok := digestHex(digest)
	if !ok {
		return nil, fs.ErrNotExist
	}
	return readRecord(s.path("images", h+".json"), func(r *imageRecord) bool {
		return r.Digest == digest && r.usable()
	})
}

// eachRecord reads all valid records of a directory.
func eachRecord[T any](dir string, f func(file string, rec *T) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		rec, err := readRecord(filepath.Join(dir, e.Name()), func(*T) bool { return true })
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := f(e.Name(), rec); err != nil {
			return err
		}
	}
	return nil
}

// index is a consistent view of all records.
type index struct {
	refs   []*refRecord
	images []*imageRecord
}

func (s *Store) readIndex() (*index, error) {
	x := &index{}
	err := eachRecord(s.path("refs"), func(_ string, r *refRecord) error {
		if r.Version == recordVersion && !r.removed() {
			x.refs = append(x.refs, r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return x, eachRecord(s.path("images"), func(_ string, r *imageRecord) error {
		if r.usable() {
			x.images = append(x.images, r)
		}
		return nil
	})
}

// names returns the names of an image, sorted.
func (x *index) names(digest string) []string {
	var names []string
	for _, r := range x.refs {
		if r.Digest == digest && !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}

// writeRecord writes a record atomically. The caller holds the gc lock.
func (s *Store) writeRecord(rec any, elem ...string) error {
	data, err := json.MarshalIndent(rec, "", "\t")
	if err != nil {
		return err
	}
	f, err := s.createTemp()
	if err != nil {
		return err
	}
	defer f.discard()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.publish(s.path(elem...))
}

// tempFile is a file in tmp that gets its name when it is complete.
type tempFile struct {
	*os.File
	done bool
}

func (s *Store) createTemp() (*tempFile, error) {
	f, err := os.CreateTemp(s.path("tmp"), "")
	if err != nil {
		return nil, err
	}
	return &tempFile{File: f}, nil
}

// publish syncs, renames and closes the file.
func (t *tempFile) publish(path string) error {
	if err := t.Sync(); err != nil {
		return err
	}
	if err := os.Rename(t.Name(), path); err != nil {
		return err
	}
	t.done = true
	if err := t.Close(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// discard removes the file unless it was published.
func (t *tempFile) discard() {
	if !t.done {
		t.done = true
		_ = os.Remove(t.Name())
		_ = t.Close()
	}
}

// syncDir makes new names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}
