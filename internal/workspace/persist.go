package workspace

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
)

// PersistOptions say how to persist a directory.
type PersistOptions struct {
	// Base is the version the directory was derived from, 0 if from none.
	// Unless that is still the newest one, nothing is persisted, and the error
	// is CodeConflict.
	Base int
	// Note is kept with the version.
	Note string
	// Unchanged makes it CodeConflict if there is anything to persist.
	Unchanged bool
	// Cache is the path of a file, outside the directory, that remembers what
	// was persisted from it, so that only what changed is read the next time.
	// It is made, replaced, and ignored if it does not fit. Empty: none.
	Cache  string
	Limits Limits

	always bool // a new version, even if nothing has changed
}

// Persist makes the state of a directory the newest version, and returns it. If
// nothing has changed it returns the version there is. The directory may be in
// use: every file is then kept as it was at one moment, as far as it holds still
// for one, but not all at the same.
func (w *Workspace) Persist(ctx context.Context, root *os.Root, opts PersistOptions) (Version, error) {
	head, err := w.head(ctx)
	if err != nil {
		return Version{}, err
	}
	if latest := head.latest(); latest.Number != opts.Base {
		return Version{}, errStale("the workspace has a newer version than the one this directory was made from")
	}
	v, err := w.persist(ctx, root, head, opts)
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		// It may have been pruned meanwhile, which is no conflict for the
		// caller, but our packs may be gone.
		if head, err := w.head(ctx); err == nil && head.latest().Number == opts.Base {
			return w.persist(ctx, root, head, opts)
		}
	}
	return v, err
}

// Append keeps a directory that has nothing to do with the versions that there
// are as a version of its own, whoever else adds some at the same time. Equal
// content is stored once all the same.
func (w *Workspace) Append(ctx context.Context, root *os.Root, note string) (Version, error) {
	for {
		head, err := w.head(ctx)
		if err != nil {
			return Version{}, err
		}
		v, err := w.persist(ctx, root, head, PersistOptions{Note: note, always: true})
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return v, err
		}
		// Another writer was faster. Each retry means progress, so this loop
		// ends.
	}
}

func (w *Workspace) persist(ctx context.Context, root *os.Root, head *record, opts PersistOptions) (Version, error) {
	if err := w.chunks.Load(ctx, head.Packs); err != nil {
		return Version{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	next := head.next()
	writer := w.chunks.Writer(ctx, next.Number)
	p := &persisting{w: w, root: root, writer: writer, begin: time.Now(), scanner: scanner{ctx: ctx, limits: opts.Limits}}
	old := loadCache(opts.Cache, w.ID())
	encoded, err := p.run(ctx, old)
	packs, closeErr := writer.Close()
	if err := errors.Join(closeErr, err); err != nil {
		return Version{}, firstKnown(closeErr, err)
	}
	saveCache(opts.Cache, w.ID(), p.remember())
	if latest := head.latest(); !opts.always && bytes.Equal(latest.Root, encoded) {
		return latest, nil
	}
	if opts.Unchanged {
		return Version{}, errStale("the directory is not what the newest version holds")
	}
	v := Version{WorkspaceVersion: sandbox.WorkspaceVersion{Number: next.Number, Created: now(), Note: opts.Note, Files: p.kept, Dirs: p.dirs, Bytes: p.stored.Load(), Skipped: p.skipped}, Root: encoded}
	for _, pack := range packs {
		v.Added += pack.Size
	}
	next.Versions, next.Packs = append(next.Versions, v), append(next.Packs, packs...)
	return v, w.commit(ctx, next)
}

// firstKnown prefers the error that says something to a caller: when a pack
// cannot be written, all else is canceled.
func firstKnown(errs ...error) error {
	var fallback error
	for _, err := range errs {
		var known *sandbox.Error
		if errors.As(err, &known) {
			return err
		}
		if err != nil && fallback == nil {
			fallback = err
		}
	}
	return fallback
}

// persisting is one run.
type persisting struct {
	scanner
	w      *Workspace
	root   *os.Root
	writer *chunk.Writer
	begin  time.Time
	stored atomic.Int64 // bytes of contents
	kept   int64        // files of every kind but directories
	dirs   int64
}

// run keeps everything and returns the encoding of the top.
func (p *persisting) run(ctx context.Context, old cache) ([]byte, error) {
	top, err := p.scan(p.root)
	if err != nil {
		return nil, err
	}
	if err := p.read(ctx, p.files, old); err != nil {
		return nil, err
	}
	if err := p.rescue(ctx); err != nil {
		return nil, err
	}
	if err := p.list(ctx, p.keeper(), top); err != nil {
		return nil, err
	}
	top.name = topName
	return encode([]*node{&top.node}), nil
}

// topName stands for the directory itself, which has no name.
const topName = "top"

func (p *persisting) keeper() *keeper {
	return &keeper{root: p.root, codec: p.w.codec, keep: p.writer.Add}
}

// read completes the entries of regular files, several at a time.
func (p *persisting) read(ctx context.Context, files []*entry, old cache) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			k := p.keeper()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(files) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := p.one(ctx, k, files[i], old); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

func (p *persisting) one(ctx context.Context, k *keeper, e *entry, old cache) error {
	if c, ok := old[e.path]; ok && c.state == e.state && p.has(c.content) {
		e.content, e.xattrs = c.content, c.xattrs
	} else {
		settled, err := k.read(ctx, e)
		switch {
		case errors.Is(err, errVanished):
			e.kind = 0
			return nil
		case err != nil:
			return err
		case !settled:
			e.state = state{} // never equal to a real one
		}
	}
	for _, piece := range e.content {
		if !piece.hole() {
			p.stored.Add(piece.length)
		}
	}
	return nil
}

// has reports whether all of a content is still in the store.
func (p *persisting) has(content []piece) bool {
	for _, piece := range content {
		if !piece.hole() && !p.w.chunks.Has(piece.id) {
			return false
		}
	}
	return true
}

// rescue reads files whose first name vanished meanwhile under another name.
func (p *persisting) rescue(ctx context.Context) error {
	gone := map[string]bool{}
	for _, e := range p.files {
		if e.kind == 0 {
			gone[e.path] = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	var orphans []*entry
	for _, e := range p.names {
		if gone[e.target] {
			e.kind, e.target = file, ""
			orphans = append(orphans, e)
		}
	}
	return p.read(ctx, orphans, nil)
}

// list keeps the listings of a directory and of all below.
func (p *persisting) list(ctx context.Context, k *keeper, d *entry) error {
	p.dirs++
	nodes := make([]*node, 0, len(d.children))
	for _, e := range d.children {
		switch e.kind {
		case 0:
			continue // it is gone
		case dir:
			if err := p.list(ctx, k, e); err != nil {
				return err
			}
		default:
			p.kept++
		}
		nodes = append(nodes, &e.node)
	}
	listing := encode(nodes)
	if len(listing) > maxListing {
		return tooMuch("%.80q has too many entries", d.path)
	}
	var err error
	d.content, err = k.stream(ctx, bytes.NewReader(listing), int64(len(listing)))
	return err
}

// coarse is more than the resolution of the clock that stamps files: a file
// that changed as late as that may change again without another time.
const coarse = 20 * time.Millisecond

// remember returns what the next run need not read again.
func (p *persisting) remember() cache {
	c := make(cache, len(p.files))
	trusted := p.begin.Add(-coarse).UnixNano()
	for _, e := range p.files {
		if e.kind == file && e.state.changed < trusted && e.state.ino != 0 {
			c[e.path] = cached{e.state, e.content, e.xattrs}
		}
	}
	return c
}
