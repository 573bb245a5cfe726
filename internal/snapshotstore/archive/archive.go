// Package archive stores snapshots durably in a blob store, for all daemons
// that share it. The snapshots of one owner are a set: their common pieces are
// stored once, compressed and, unless the set is plain, encrypted.
//
// A set is a workspace (see package workspace) without a working directory. Each snapshot is a version, whose note
// names its owner. So saving and removing need no locks, on one machine or several. A killed process leaves the last
// consistent state, and garbage that the next [Archive.Sweep] removes.
//
// The blob store is not trusted: [Archive.Load] fails unless the snapshot has
// the digest that the caller stored elsewhere.
package archive

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/snapshotstore/tarball"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
)

// Archive stores sets of snapshots. It is safe for concurrent use, also by
// several processes, and need not be closed.
type Archive struct {
	blobs blob.Store
	key   []byte

	mu   sync.Mutex
	open map[string]*workspace.Workspace // cached, so that their packs are not read again
}

// New returns an Archive in a part of a blob store. key, of 32 bytes, encrypts
// the sets that are not plain.
func New(blobs blob.Store, key []byte) *Archive {
	return &Archive{blobs: blobs, key: key, open: map[string]*workspace.Workspace{}}
}

// Set identifies snapshots that share pieces.
type Set struct {
	ID        string // never reused
	Encrypted bool
}

// Place is the location and the digest of a snapshot.
type Place struct {
	Version int    // number of the version in the set
	Digest  string // of the content, in hexadecimal
	Stored  int64  // bytes by which the set grew
}

// Save adds a directory to a set, which is created if missing. The note names
// the owner, for Sweep.
func (a *Archive) Save(ctx context.Context, set Set, note, dir string) (Place, error) {
	w, err := a.set(ctx, set)
	if err != nil {
		return Place{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Place{}, err
	}
	v, err := w.Append(ctx, root, note)
	if err := errors.Join(err, root.Close()); err != nil {
		return Place{}, named(err)
	}
	return Place{Version: v.Number, Digest: v.Digest(), Stored: v.Added}, nil
}

// Load restores a snapshot into an empty directory, and verifies its digest: a
// different snapshot is CodeInvalid. On an error the directory is left
// incomplete.
func (a *Archive) Load(ctx context.Context, set Set, at Place, dir string) error {
	w, err := a.set(ctx, set)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	v, err := w.Restore(ctx, at.Version, root)
	if err := errors.Join(err, root.Close()); err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return damaged("it is missing from the blob store")
		}
		return named(err)
	}
	if at.Version == 0 || v.Digest() != at.Digest {
		return damaged("another one is in its place in the blob store")
	}
	return nil
}

// SaveFrom is Save of the files in a tar archive that export writes. It unpacks
// them below the directory scratch, which is created if missing.
func (a *Archive) SaveFrom(ctx context.Context, set Set, note, scratch string, export func(io.Writer) error) (at Place, err error) {
	dir, remove, err := scratchDir(scratch)
	if err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := export(w)
		w.CloseWithError(err)
		written <- err
	}()
	err = tarball.Read(ctx, r, dir)
	r.Close()
	if failed := <-written; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return at, failed
	}
	if err != nil {
		return at, err
	}
	return a.Save(ctx, set, note, dir)
}

// LoadTo is Load; it passes the files to read as a tar archive.
func (a *Archive) LoadTo(ctx context.Context, set Set, at Place, scratch string, read func(io.Reader) error) (err error) {
	dir, remove, err := scratchDir(scratch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := a.Load(ctx, set, at, dir); err != nil {
		return err
	}
	r, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.CloseWithError(tarball.Write(ctx, w, dir))
	}()
	err = read(r)
	r.Close()
	<-written
	return err
}

// streamFile is the name of the only file of a snapshot created by Write.
const streamFile = "stream"

// Write adds the bytes that from writes to a set, as Save adds a directory.
// size is the number of bytes. It stores them temporarily below the directory
// scratch.
func (a *Archive) Write(ctx context.Context, set Set, note, scratch string, from func(io.Writer) error) (at Place, size int64, err error) {
	return a.Take(ctx, set, scratch, func(w io.Writer) (string, error) { return note, from(w) })
}

// Take is Write, whose note is known only after what from writes.
func (a *Archive) Take(ctx context.Context, set Set, scratch string, from func(io.Writer) (note string, err error)) (at Place, size int64, err error) {
	dir, remove, err := scratchDir(scratch)
	if err != nil {
		return at, 0, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	f, err := os.OpenFile(filepath.Join(dir, streamFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return at, 0, err
	}
	note, err := from(f)
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil {
		return at, 0, err
	}
	at, err = a.Save(ctx, set, note, dir)
	return at, info.Size(), err
}

// Read passes the bytes of a Write to to. It verifies them before it passes
// any.
func (a *Archive) Read(ctx context.Context, set Set, at Place, scratch string, to func(io.Reader) error) (err error) {
	dir, remove, err := scratchDir(scratch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := a.Load(ctx, set, at, dir); err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(dir, streamFile))
	if err != nil {
		return damaged("it is of another type")
	}
	defer f.Close()
	return to(f)
}

func scratchDir(parent string) (dir string, remove func() error, err error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(parent, "")
	return dir, func() error { return os.RemoveAll(dir) }, err
}

// Kept is a snapshot in a set.
type Kept struct {
	Note    string
	Version int
	Digest  string
	Created time.Time
}

// List returns the content of a set. A set that does not exist is empty.
func (a *Archive) List(ctx context.Context, set Set) ([]Kept, error) {
	return a.list(ctx, set, (*workspace.Workspace).History)
}

// Whole is List of what can be loaded: without what parts are missing of. It also
// notices that the set itself is missing, or is another one after that.
func (a *Archive) Whole(ctx context.Context, set Set) ([]Kept, error) {
	w, err := a.openSet(ctx, set)
	code := sandbox.CodeOf(err)
	a.mu.Lock()
	if old := a.open[set.ID]; old != nil && (code == sandbox.CodeNotFound || err == nil && !w.Same(old)) {
		delete(a.open, set.ID)
	}
	a.mu.Unlock()
	switch {
	case code == sandbox.CodeNotFound:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return a.list(ctx, set, (*workspace.Workspace).Whole)
}

func (a *Archive) list(ctx context.Context, set Set, of func(*workspace.Workspace, context.Context) ([]workspace.Version, error)) ([]Kept, error) {
	w, err := a.find(ctx, set)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	versions, err := of(w, ctx)
	if err != nil {
		return nil, named(err)
	}
	all := make([]Kept, len(versions))
	for i, v := range versions {
		all[i] = Kept{v.Note, v.Number, v.Digest(), v.Created}
	}
	return all, nil
}

// Sweep removes the given snapshots of a set, and garbage of killed processes.
// If the set is changed at the same time, it returns CodeConflict and removes
// nothing.
func (a *Archive) Sweep(ctx context.Context, set Set, unwanted []int) error {
	w, err := a.find(ctx, set)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	drop := make(map[int]bool, len(unwanted))
	for _, n := range unwanted {
		drop[n] = true
	}
	_, err = w.Forget(ctx, func(v workspace.Version) bool { return !drop[v.Number] })
	return named(err)
}

// set opens a set, and creates it if missing.
func (a *Archive) set(ctx context.Context, set Set) (*workspace.Workspace, error) {
	w, err := a.find(ctx, set)
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return w, err
	}
	_, err = workspace.Create(ctx, a.part(set), workspace.CreateOptions{ID: set.ID, Key: a.keyOf(set)})
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		return nil, named(err)
	}
	return a.find(ctx, set)
}

// find opens a set. If it does not exist, find returns CodeNotFound.
func (a *Archive) find(ctx context.Context, set Set) (*workspace.Workspace, error) {
	a.mu.Lock()
	w := a.open[set.ID]
	a.mu.Unlock()
	if w != nil && w.Encrypted() == set.Encrypted {
		return w, nil
	}
	w, err := a.openSet(ctx, set)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[set.ID] = w
	return w, nil
}

func (a *Archive) openSet(ctx context.Context, set Set) (*workspace.Workspace, error) {
	w, err := workspace.Open(ctx, a.part(set), a.keyOf(set))
	if err != nil {
		return nil, named(err)
	}
	if w.ID() != set.ID {
		return nil, damaged("another set is in its place in the blob store")
	}
	return w, nil
}

func (a *Archive) part(set Set) blob.Store { return blob.Below(a.blobs, "snapshots/"+set.ID) }

func (a *Archive) keyOf(set Set) []byte {
	if set.Encrypted {
		return a.key
	}
	return nil
}

func damaged(what string) error {
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "snapshot", Message: "the snapshot is damaged: " + what,
		Hint: "use another snapshot; nothing was started from this one",
	}
}

// named converts errors about workspaces to errors about snapshots.
func named(err error) error {
	var known *sandbox.Error
	if !errors.As(err, &known) {
		return err
	}
	own := *known
	own.Op, own.Cause = "snapshot", err
	switch own.Code {
	case sandbox.CodeDenied:
		if known.Op != "workspace.open" { // the blob store refuses
			return err
		}
		own.Message = "the snapshot is encrypted with another key"
		own.Hint = "daemons that share snapshots need the same workspace.key in their state directories"
	case sandbox.CodeInvalid:
		own.Message = "the snapshot is damaged: " + strings.TrimPrefix(own.Message, "the store is damaged: ")
		own.Hint = "use another snapshot; nothing was started from this one"
	}
	return &own
}
