package chunk

import (
	"context"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/internal/blob"
)

// Reader reads many chunks. It reads whole packs if many of their chunks are
// needed, and caches the last ones. It is safe for concurrent use and need not
// be closed.
type Reader struct {
	store  *Store
	wanted map[string]int64 // needed bytes of each pack

	mu   sync.Mutex
	kept []*fetched // most recently used last
}

type fetched struct {
	key     string
	once    sync.Once
	content []byte
	err     error
}

// keptPacks is the number of packs, of about 16 MiB, that a Reader caches.
const keptPacks = 4

// Reader returns a Reader for the chunks in plan. It can read others, too.
func (s *Store) Reader(plan []ID) *Reader {
	r := &Reader{store: s, wanted: map[string]int64{}}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, id := range plan {
		l := s.where[id]
		r.wanted[l.pack] += l.length
	}
	return r
}

// Get returns the content of a chunk. The caller owns it.
func (r *Reader) Get(ctx context.Context, id ID) ([]byte, error) {
	sealed, err := r.sealed(ctx, id)
	if err != nil {
		return nil, err
	}
	return r.store.codec.OpenID(sealed, id)
}

// sealed returns a chunk as it is stored.
func (r *Reader) sealed(ctx context.Context, id ID) ([]byte, error) {
	p, l, err := r.store.find(id)
	if err != nil {
		return nil, err
	}
	if r.wanted[l.pack] < p.Size/4 {
		sealed, err := read(ctx, r.store.blobs, l.pack, l.offset, l.length)
		return sealed, gone(err, p)
	}
	content, err := r.pack(ctx, p)
	if err != nil {
		return nil, err
	}
	return content[l.offset:][:l.length], nil
}

func (r *Reader) pack(ctx context.Context, p Pack) ([]byte, error) {
	key := p.Key()
	r.mu.Lock()
	i := slices.IndexFunc(r.kept, func(f *fetched) bool { return f.key == key })
	var f *fetched
	if i >= 0 {
		f = r.kept[i]
		r.kept = slices.Delete(r.kept, i, i+1)
	} else {
		f = &fetched{key: key}
	}
	if r.kept = append(r.kept, f); len(r.kept) > keptPacks {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.mu.Unlock()
	f.once.Do(func() { f.content, f.err = readPack(ctx, r.store.blobs, p) })
	return f.content, f.err
}

// readPack reads a whole pack. Its chunks are verified when they are opened.
func readPack(ctx context.Context, blobs blob.Store, p Pack) ([]byte, error) {
	if !p.valid() {
		return nil, damaged("the description of a pack is invalid")
	}
	content, err := read(ctx, blobs, p.Key(), 0, p.Size)
	return content, gone(err, p)
}
