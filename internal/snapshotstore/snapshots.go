// Package snapshotstore keeps on disk what a daemon needs of sandboxes that do not run:
// the directories of snapshots, and, sealed, the environments of sandboxes.
//
// A snapshot is written into a draft, which [Snapshots.Keep] turns into a kept
// one: every file is synced and its size and SHA-256 are put into a manifest,
// and only then the directory gets its name. A crash leaves a draft, never half
// a snapshot. [Snapshots.Use] compares all of it with the manifest before
// anything starts from it.
package snapshotstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	draftPrefix  = ".new-"
	filesDir     = "files"
	manifestName = "manifest.json"
	maxManifest  = 16 << 20
)

// Snapshots is a directory of snapshots. It may be used concurrently; two
// processes must not use one.
type Snapshots struct {
	dir string

	mu    sync.Mutex
	users map[string]int
	idle  map[string]chan struct{} // closed when the last user lets go
}

// OpenSnapshots opens a directory of snapshots, making it if it is missing.
func OpenSnapshots(dir string) (*Snapshots, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Snapshots{dir: dir, users: map[string]int{}, idle: map[string]chan struct{}{}}, nil
}

func (s *Snapshots) kept(id string) string  { return filepath.Join(s.dir, id) }
func (s *Snapshots) draft(id string) string { return filepath.Join(s.dir, draftPrefix+id) }

// Draft returns an empty directory in which to write a snapshot. Leftovers of
// an earlier attempt are removed.
func (s *Snapshots) Draft(id string) (dir string, err error) {
	if err := sandbox.ValidateName(id); err != nil {
		return "", err
	}
	if err := os.RemoveAll(s.draft(id)); err != nil {
		return "", err
	}
	dir = filepath.Join(s.draft(id), filesDir)
	return dir, os.MkdirAll(dir, 0o700)
}

// manifest says what belongs to a snapshot.
type manifest struct {
	Files []entry `json:"files"`
}

type entry struct {
	Path   string `json:"path"` // relative, with slashes
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func (m *manifest) size() (n int64) {
	for _, e := range m.Files {
		n += e.Size
	}
	return n
}

// Keep makes a draft a snapshot and returns its size in bytes. A draft that
// does not exist, or holds no file, is CodeNotFound; one that was kept before
// is success.
func (s *Snapshots) Keep(ctx context.Context, id string) (size int64, err error) {
	if m, err := readManifest(s.kept(id)); err == nil {
		return m.size(), nil
	}
	m, err := describe(ctx, filepath.Join(s.draft(id), filesDir), true)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(m.Files) == 0 {
		return 0, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: "the snapshot is empty"}
	}
	if err != nil {
		return 0, err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	if err := writeSynced(filepath.Join(s.draft(id), manifestName), text); err != nil {
		return 0, err
	}
	if err := syncDir(s.draft(id)); err != nil {
		return 0, err
	}
	if err := os.Rename(s.draft(id), s.kept(id)); err != nil {
		return 0, err
	}
	return m.size(), syncDir(s.dir)
}

// Use returns the directory of a snapshot, as it was written, for reading. It
// is compared with its manifest first: what is damaged is CodeInvalid, what is
// missing CodeNotFound. The snapshot stays until release is called.
func (s *Snapshots) Use(ctx context.Context, id string) (dir string, release func(), err error) {
	release = s.hold(id)
	if err := s.verify(ctx, id); err != nil {
		release()
		return "", nil, err
	}
	s.touch(id)
	return filepath.Join(s.kept(id), filesDir), release, nil
}

func (s *Snapshots) verify(ctx context.Context, id string) error {
	damaged := func(what string) error {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: id, Message: "the snapshot is damaged: " + what,
			Hint: "use another snapshot; nothing was started from this one",
		}
	}
	if _, err := os.Stat(s.kept(id)); errors.Is(err, fs.ErrNotExist) {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: "the snapshot is not on this machine"}
	}
	want, err := readManifest(s.kept(id))
	if err != nil {
		return damaged("its manifest cannot be read")
	}
	dir := filepath.Join(s.kept(id), filesDir)
	for _, e := range want.Files { // before reading gigabytes
		info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(e.Path)))
		if err != nil || !info.Mode().IsRegular() || info.Size() != e.Size {
			return damaged(fmt.Sprintf("%q has changed", e.Path))
		}
	}
	got, err := describe(ctx, dir, false)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return damaged("it cannot be read")
	case len(got.Files) != len(want.Files):
		return damaged("files were added or removed")
	}
	for i, e := range want.Files {
		if got.Files[i] != e {
			return damaged(fmt.Sprintf("%q has changed", e.Path))
		}
	}
	return nil
}

// Copy makes another snapshot of the same bytes, which are stored once: kept
// files are never written to.
func (s *Snapshots) Copy(ctx context.Context, from, to string) (size int64, err error) {
	source, release, err := s.Use(ctx, from)
	if err != nil {
		return 0, err
	}
	defer release()
	draft, err := s.Draft(to)
	if err != nil {
		return 0, err
	}
	err = filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, path)
		if err != nil || rel == "." {
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(draft, rel), 0o700)
		}
		return os.Link(path, filepath.Join(draft, rel))
	})
	if err != nil {
		return 0, errors.Join(err, s.Remove(ctx, to))
	}
	return s.Keep(ctx, to)
}

// Remove removes a snapshot, or the draft of one, once nobody uses it any more.
// One that is not there is success.
func (s *Snapshots) Remove(ctx context.Context, id string) error {
	if err := sandbox.ValidateName(id); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		busy := s.idle[id]
		s.mu.Unlock()
		if busy == nil {
			break
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// A name that says it is a draft is never taken for a snapshot, should the
	// removal break off.
	if err := os.RemoveAll(s.draft(id)); err != nil {
		return err
	}
	if err := os.Rename(s.kept(id), s.draft(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.draft(id))
}

// List returns the ids of all snapshots and drafts.
func (s *Snapshots) List() (ids []string, err error) {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		ids = append(ids, strings.TrimPrefix(e.Name(), draftPrefix))
	}
	return ids, err
}

// hold keeps a snapshot from being removed.
func (s *Snapshots) hold(id string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[id]++
	if s.idle[id] == nil {
		s.idle[id] = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users[id]--; s.users[id] == 0 {
			close(s.idle[id])
			delete(s.users, id)
			delete(s.idle, id)
		}
	})
}

// describe reads every file below a directory, several at a time, and with
// settle makes sure that they are on the disk. Anything but files and
// directories is an error.
func describe(ctx context.Context, dir string, settle bool) (*manifest, error) {
	m := &manifest{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && settle:
			return syncDir(path)
		case d.IsDir():
			return nil
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%q is neither a file nor a directory", d.Name())
		}
		rel, err := filepath.Rel(dir, path)
		m.Files = append(m.Files, entry{Path: filepath.ToSlash(rel)})
		return err
	})
	if err != nil {
		return nil, err
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range m.Files {
		g.Go(func() error {
			e := &m.Files[i]
			var err error
			e.Size, e.SHA256, err = digest(ctx, filepath.Join(dir, filepath.FromSlash(e.Path)), settle)
			return err
		})
	}
	return m, g.Wait()
}

func digest(ctx context.Context, path string, settle bool) (size int64, sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	if size, err = io.Copy(h, readerUntil{ctx, f}); err != nil {
		return 0, "", err
	}
	if settle {
		err = f.Sync()
	}
	return size, hex.EncodeToString(h.Sum(nil)), err
}

// readerUntil reads until its context ends.
type readerUntil struct {
	ctx context.Context
	r   io.Reader
}

func (r readerUntil) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func readManifest(snapshot string) (*manifest, error) {
	f, err := os.Open(filepath.Join(snapshot, manifestName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := &manifest{}
	return m, json.NewDecoder(io.LimitReader(f, maxManifest)).Decode(m)
}

func writeSynced(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
