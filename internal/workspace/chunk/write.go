package chunk

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/internal/blob"
)

// Writer adds chunks to a Store. It is safe for concurrent use; Close must be
// called last. Its packs are only used once a record refers to them. If the
// writer is dropped, its packs are garbage.
type Writer struct {
	store  *Store
	target int
	group  *errgroup.Group
	ctx    context.Context // of the uploads

	mu      sync.Mutex
	known   map[ID]bool
	current *builder
	packs   []Pack
	slots   [][]slot
}

// uploads is the number of concurrent uploads of a writer.
const uploads = 2

// Writer returns a Writer of packs for a version. Uploads stop when ctx ends.
func (s *Store) Writer(ctx context.Context, target int) *Writer {
	w := &Writer{store: s, target: target, known: map[ID]bool{}, current: &builder{}}
	w.group, w.ctx = errgroup.WithContext(ctx)
	w.group.SetLimit(uploads)
	return w
}

// Add stores content of at most MaxSize bytes, unless it is stored already.
func (w *Writer) Add(content []byte) (ID, error) {
	if len(content) > MaxSize {
		return ID{}, fmt.Errorf("a chunk of %d bytes, at most %d", len(content), MaxSize)
	}
	id := w.store.codec.ID(content)
	if !w.claim(id) {
		return id, nil
	}
	sealed, err := w.store.codec.Seal(content, id[:])
	if err != nil {
		return id, err
	}
	return id, w.append(id, sealed)
}

// Move copies a chunk that r can read to a new pack, without re-encoding.
func (w *Writer) Move(ctx context.Context, r *Reader, id ID) error {
	sealed, err := r.sealed(ctx, id)
	if err != nil {
		return err
	}
	return w.append(id, sealed)
}

// claim reports whether the caller has to write a chunk.
func (w *Writer) claim(id ID) bool {
	if w.store.Has(id) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known[id] {
		return false
	}
	w.known[id] = true
	return true
}

func (w *Writer) append(id ID, sealed []byte) error {
	w.mu.Lock()
	w.current.add(id, sealed)
	full := w.current
	if full.Len() < packSize {
		w.mu.Unlock()
		return context.Cause(w.ctx)
	}
	w.current = &builder{}
	w.mu.Unlock()
	w.group.Go(func() error { return w.upload(full) }) // blocks while the maximum number of uploads is running
	return context.Cause(w.ctx)
}

func (w *Writer) upload(b *builder) error {
	pack, err := b.finish(w.store.codec, w.target)
	if err != nil {
		return err
	}
	if err := w.store.blobs.Put(w.ctx, pack.Key(), bytes.NewReader(b.Bytes()), blob.PutOptions{Size: pack.Size}); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.packs, w.slots = append(w.packs, pack), append(w.slots, b.slots)
	return nil
}

// Close writes the remaining chunks and returns all packs of the writer. The
// Store knows them from now on.
func (w *Writer) Close() ([]Pack, error) {
	last := w.current
	if len(last.slots) > 0 {
		w.group.Go(func() error { return w.upload(last) })
	}
	if err := w.group.Wait(); err != nil {
		return nil, err
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	for i, p := range w.packs {
		w.store.packs[p.Key()] = p
		w.store.enter(p, w.slots[i])
	}
	return w.packs, nil
}
