// Package snapshotstore stores the data of sandboxes that are not running: snapshot directories for providers and,
// encrypted, the environment variables of sandboxes for the control plane.
//
// A snapshot is written to a draft, which [Snapshots.Finish] completes: it
// syncs every file, writes their sizes and SHA-256 sums to a manifest, and only
// then renames the directory. A crash leaves a draft, never an incomplete
// snapshot. [Snapshots.Use] compares all files with the manifest before
// anything is restored from them.
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
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/snapshotstore/tarball"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	draftPrefix  = ".new-"
	filesDir     = "files"
	manifestName = "manifest.json"
	maxManifest  = 16 << 20
)

// Describe returns the kind of a snapshot in a directory, and the engine that
// can restore it. An incomplete snapshot is an error.
type Describe func(dir string) (kind driver.SnapshotKind, engine string, err error)

// Snapshots is a directory of snapshots of one provider. It is safe for
// concurrent use. Several processes may use one directory if only one of them
// removes snapshots. The directory is created when it is needed.
type Snapshots struct {
	dir      string
	provider string
	describe Describe

	mu    sync.Mutex
	users map[string]int
	idle  map[string]chan struct{} // closed when the last user releases it
}

// NewSnapshots returns the snapshots in dir. provider is the provider's name in
// its Facts.
func NewSnapshots(dir, provider string, describe Describe) *Snapshots {
	return &Snapshots{dir: dir, provider: provider, describe: describe, users: map[string]int{}, idle: map[string]chan struct{}{}}
}

func (s *Snapshots) kept(id string) string  { return filepath.Join(s.dir, id) }
func (s *Snapshots) draft(id string) string { return filepath.Join(s.dir, draftPrefix+id) }

// Draft returns an empty directory for a new snapshot. It removes remains of an
// earlier attempt. If a complete snapshot has the ID, it returns
// CodeAlreadyExists.
func (s *Snapshots) Draft(id string) (dir string, err error) {
	if err := sandbox.ValidateName(id); err != nil {
		return "", err
	}
	if s.has(id) {
		return "", &sandbox.Error{Code: sandbox.CodeAlreadyExists, Subject: id, Message: "a snapshot with this ID exists"}
	}
	if err := os.RemoveAll(s.draft(id)); err != nil {
		return "", err
	}
	dir = s.filesOf(s.draft(id))
	return dir, os.MkdirAll(dir, 0o700)
}

// has reports whether a complete snapshot exists, damaged or not.
func (s *Snapshots) has(id string) bool {
	_, err := os.Lstat(s.kept(id))
	return err == nil
}

func (s *Snapshots) filesOf(snapshot string) string { return filepath.Join(snapshot, filesDir) }

// manifest lists the files of a snapshot.
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

// Finish completes a draft. A transient snapshot stays a draft, which only this
// process restores.
func (s *Snapshots) Finish(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	files := s.filesOf(s.draft(opts.ID))
	kind, engine, err := s.describe(files)
	if err != nil {
		return driver.Snapshot{}, err
	}
	data, size := opts.ID, int64(0)
	if opts.Transient {
		data = transientMark + opts.ID
		size, err = sizeOf(files)
	} else {
		size, err = s.keep(ctx, opts.ID)
	}
	return driver.Snapshot{Ref: s.ref(kind, data), Engine: engine, Size: size}, err
}

// transientMark is the prefix of the Data of a transient snapshot, which is
// restored without verification.
const transientMark = "transient:" // ids contain no colon

func (s *Snapshots) ref(kind driver.SnapshotKind, data string) driver.SnapshotRef {
	return driver.SnapshotRef{Provider: s.provider, Kind: kind, Data: data}
}

// idOf parses a reference. If another provider created it, idOf returns
// CodeInvalid.
func (s *Snapshots) idOf(ref driver.SnapshotRef) (id string, transient bool, err error) {
	if ref.Provider != s.provider {
		return "", false, &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "snapshot", Message: fmt.Sprintf("the snapshot was created by provider %q, and this is %s", ref.Provider, s.provider),
			Hint: "choose the provider that created it",
		}
	}
	id, transient = strings.CutPrefix(ref.Data, transientMark)
	return id, transient, sandbox.ValidateName(id)
}

// keep returns the size of a snapshot in bytes.
func (s *Snapshots) keep(ctx context.Context, id string) (size int64, err error) {
	m, err := describe(ctx, s.filesOf(s.draft(id)), true)
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

// Find implements driver.SnapshotKeeper. It completes a draft with a full set
// of files, whose writer was killed.
func (s *Snapshots) Find(ctx context.Context, id string) (snap driver.Snapshot, err error) {
	if err := sandbox.ValidateName(id); err != nil {
		return snap, err
	}
	if m, err := readManifest(s.kept(id)); err == nil {
		kind, engine, err := s.describe(s.filesOf(s.kept(id)))
		if err != nil { // damaged: restoring it will report that
			kind = driver.SnapshotFilesystem
		}
		return driver.Snapshot{Ref: s.ref(kind, id), Engine: engine, Size: m.size()}, nil
	}
	if s.has(id) {
		return driver.Snapshot{Ref: s.ref(driver.SnapshotFilesystem, id)}, nil
	}
	if _, _, err := s.describe(s.filesOf(s.draft(id))); err != nil {
		return snap, missing(id)
	}
	return s.Finish(ctx, driver.SnapshotOptions{ID: id})
}

func missing(id string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: "the snapshot is not on this machine", Cause: driver.ErrSnapshotLost}
}

// Use returns the directory of a snapshot for reading. It first compares all
// files with the manifest: damaged files are CodeInvalid, a missing snapshot is
// CodeNotFound, and both are driver.ErrSnapshotLost. The snapshot is not
// removed until release is called.
func (s *Snapshots) Use(ctx context.Context, ref driver.SnapshotRef) (dir string, release func(), err error) {
	id, transient, err := s.idOf(ref)
	if err != nil {
		return "", nil, err
	}
	release = s.hold(id)
	if transient {
		if dir = s.filesOf(s.draft(id)); !isDir(dir) {
			release()
			return "", nil, missing(id)
		}
		return dir, release, nil
	}
	if err := s.verify(ctx, id); err != nil {
		release()
		return "", nil, err
	}
	s.touch(id)
	return s.filesOf(s.kept(id)), release, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// touch records the time of use. If that fails, the snapshot looks older, which
// does no harm.
func (s *Snapshots) touch(id string) {
	now := time.Now()
	_ = os.Chtimes(s.kept(id), now, now)
}

func (s *Snapshots) verify(ctx context.Context, id string) error {
	damaged := func(what string) error {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: id, Message: "the snapshot is damaged: " + what,
			Hint: "use another snapshot; nothing was started from this one", Cause: driver.ErrSnapshotLost,
		}
	}
	if _, err := os.Stat(s.kept(id)); errors.Is(err, fs.ErrNotExist) {
		return missing(id)
	}
	want, err := readManifest(s.kept(id))
	if err != nil {
		return damaged("its manifest cannot be read")
	}
	dir := filepath.Join(s.kept(id), filesDir)
	for _, e := range want.Files { // cheap checks first
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

// Copy creates another snapshot with the same data, which is stored once,
// because files of a snapshot never change.
func (s *Snapshots) Copy(ctx context.Context, ref driver.SnapshotRef, to string) (driver.Snapshot, error) {
	source, release, err := s.Use(ctx, ref)
	if err != nil {
		return driver.Snapshot{}, err
	}
	defer release()
	return s.add(ctx, to, func(draft string) error {
		return filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
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
	})
}

// add creates a snapshot from the files that fill writes.
func (s *Snapshots) add(ctx context.Context, id string, fill func(draft string) error) (snap driver.Snapshot, err error) {
	draft, err := s.Draft(id)
	if err != nil {
		return snap, err
	}
	if err = fill(draft); err == nil {
		snap, err = s.Finish(ctx, driver.SnapshotOptions{ID: id})
	}
	if err != nil {
		return snap, errors.Join(err, s.Discard(id))
	}
	return snap, nil
}

// Export writes the files of a snapshot as a tar archive.
func (s *Snapshots) Export(ctx context.Context, ref driver.SnapshotRef, w io.Writer) error {
	dir, release, err := s.Use(ctx, ref)
	if err != nil {
		return err
	}
	defer release()
	return tarball.Write(ctx, w, dir)
}

// Import stores what Export wrote under a new ID. Other data is CodeInvalid.
func (s *Snapshots) Import(ctx context.Context, id string, r io.Reader) (driver.Snapshot, error) {
	return s.add(ctx, id, func(draft string) error {
		if err := tarball.Read(ctx, r, draft); err != nil {
			return err
		}
		if _, _, err := s.describe(draft); err != nil {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: id, Message: "this is not a snapshot of provider " + s.provider, Cause: err}
		}
		return nil
	})
}

// Discard removes a draft, or its completed snapshot, immediately.
func (s *Snapshots) Discard(id string) error {
	// Rename the snapshot to a draft before removing it, so that an interrupted
	// removal does not leave an incomplete snapshot.
	if err := os.RemoveAll(s.draft(id)); err != nil {
		return err
	}
	if err := os.Rename(s.kept(id), s.draft(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.draft(id))
}

// Remove removes a snapshot or draft once it is not in use. It succeeds if
// there is none.
func (s *Snapshots) Remove(ctx context.Context, ref driver.SnapshotRef) error {
	id, _, err := s.idOf(ref)
	if err != nil {
		return err
	}
	for {
		s.mu.Lock()
		busy := s.idle[id]
		s.mu.Unlock()
		if busy == nil {
			return s.Discard(id)
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// List returns all snapshots and drafts.
func (s *Snapshots) List(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		entries, err := os.ReadDir(s.dir)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			yield(driver.FoundSnapshot{}, err)
			return
		}
		for _, e := range entries {
			id, draft := strings.CutPrefix(e.Name(), draftPrefix)
			if sandbox.ValidateName(id) != nil {
				continue // not a snapshot
			}
			f := driver.FoundSnapshot{ID: id, Ref: s.ref(driver.SnapshotFilesystem, id)}
			if info, err := e.Info(); err == nil {
				f.Used = info.ModTime()
			}
			if !draft {
				f = s.measured(f)
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// measured fills in the details of a snapshot that is not a draft.
func (s *Snapshots) measured(f driver.FoundSnapshot) driver.FoundSnapshot {
	if m, err := readManifest(s.kept(f.ID)); err == nil {
		f.Size = m.size()
	}
	if kind, _, err := s.describe(s.filesOf(s.kept(f.ID))); err == nil {
		f.Ref.Kind = kind
	}
	return f
}

// sizeOf returns the total size of the files below a directory.
func sizeOf(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}

// hold prevents a snapshot from being removed.
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

// describe reads all files below a directory, several at once, and with durable
// syncs them. Anything except files and directories is an error.
func describe(ctx context.Context, dir string, durable bool) (*manifest, error) {
	m := &manifest{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && durable:
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
			e.Size, e.SHA256, err = digest(ctx, filepath.Join(dir, filepath.FromSlash(e.Path)), durable)
			return err
		})
	}
	return m, g.Wait()
}

func digest(ctx context.Context, path string, durable bool) (size int64, sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	if size, err = io.Copy(h, readerUntil{ctx, f}); err != nil {
		return 0, "", err
	}
	if durable {
		err = f.Sync()
	}
	return size, hex.EncodeToString(h.Sum(nil)), err
}

// readerUntil fails when its context ends.
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
