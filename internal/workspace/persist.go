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
	"github.com/atoll-run/atoll/sandbox/durable"
)

// PersistOptions are the options of Persist.
type PersistOptions struct {
	// Base is the version from which the directory was created, 0 for none. If it
	// is not the newest version, Persist returns CodeConflict.
	Base int
	// Note is stored with the version.
	Note string
	// Unchanged makes Persist return CodeConflict if anything has changed.
	Unchanged bool
	// Cache is the path of a file, outside the directory, that stores the state of
	// the directory, so that the next Persist reads only changed files. It is
	// created or replaced, and ignored if it is invalid. Empty: none.
	Cache  string
	Limits Limits

	always bool // create a version even if nothing has changed
}

// Persist stores the state of a directory as the newest version, and returns
// it. If nothing has changed, it returns the existing version. The directory
// may be in use: every file is stored in a consistent state if it is not
// written continuously, but different files may be from different times.
func (w *Workspace) Persist(ctx context.Context, root *os.Root, opts PersistOptions) (Version, error) {
	head, err := w.head(ctx)
	if err != nil {
		return Version{}, err
	}
	if latest := head.latest(); latest.Number != opts.Base {
		return Version{}, errStale("the workspace has a newer version than the one this directory is based on")
	}
	v, err := w.persist(ctx, root, head, opts)
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		// Our packs may have been pruned meanwhile. That is no conflict for the
		// caller: try again.
		if head, err := w.head(ctx); err == nil && head.latest().Number == opts.Base {
			return w.persist(ctx, root, head, opts)
		}
	}
	return v, err
}

// Append stores a directory that is unrelated to existing versions as a new
// version, concurrently with other writers. Equal content is still stored once.
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
		// Another writer was faster. Each retry means that another writer made
		// progress.
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
		if len(packs) == 0 {
			return latest, nil
		}
		next.Packs = append(next.Packs, packs...) // chunks that were lost from the blob store
		return latest, w.commit(ctx, next)
	}
	if opts.Unchanged {
		return Version{}, errStale("the directory differs from the newest version")
	}
	v := Version{WorkspaceVersion: durable.WorkspaceVersion{Number: next.Number, Created: now(), Note: opts.Note, Files: p.kept, Dirs: p.dirs, Bytes: p.stored.Load(), Skipped: p.skipped}, Root: encoded}
	for _, pack := range packs {
		v.Added += pack.Size
	}
	next.Versions, next.Packs = append(next.Versions, v), append(next.Packs, packs...)
	return v, w.commit(ctx, next)
}

// firstKnown returns the most useful error: if writing a pack fails, other
// operations only report cancellation.
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

// persisting is the state of one Persist.
type persisting struct {
	scanner
	w      *Workspace
	root   *os.Root
	writer *chunk.Writer
	begin  time.Time
	stored atomic.Int64 // bytes of content
	kept   int64        // number of files, except directories
	dirs   int64
}

// run stores everything and returns the encoding of the top directory.
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

// topName is the name of the top directory.
const topName = "top"

func (p *persisting) keeper() *keeper {
	return &keeper{root: p.root, codec: p.w.codec, keep: p.writer.Add}
}

// read completes the entries of regular files, several at once.
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
		stable, err := k.read(ctx, e)
		switch {
		case errors.Is(err, errVanished):
			e.kind = 0
			return nil
		case err != nil:
			return err
		case !stable:
			e.state = state{} // never equal to a real state
		}
	}
	for _, piece := range e.content {
		if !piece.hole() {
			p.stored.Add(piece.length)
		}
	}
	return nil
}

// has reports whether the store still has all of a content.
func (p *persisting) has(content []piece) bool {
	for _, piece := range content {
		if !piece.hole() && !p.w.chunks.Has(piece.id) {
			return false
		}
	}
	return true
}

// rescue reads files whose first name was removed meanwhile, using another
// name.
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

// list stores the listings of a directory and all its subdirectories.
func (p *persisting) list(ctx context.Context, k *keeper, d *entry) error {
	p.dirs++
	nodes := make([]*node, 0, len(d.children))
	for _, e := range d.children {
		switch e.kind {
		case 0:
			continue // it was removed
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

// coarse is more than the resolution of file timestamps: a file that changed
// this recently may change again without a new timestamp.
const coarse = 20 * time.Millisecond

// remember returns the cache for the next Persist.
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
