package chunk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/sandbox"
)

// Store finds chunks in a set of packs. It is safe for concurrent use.
type Store struct {
	blobs blob.Store
	codec *Codec

	mu    sync.RWMutex
	packs map[string]Pack // by key
	where map[ID]location
}

type location struct {
	pack   string // its key
	offset int64
	length int64
}

// NewStore returns a Store without packs.
func NewStore(blobs blob.Store, codec *Codec) *Store {
	return &Store{blobs: blobs, codec: codec, packs: map[string]Pack{}, where: map[ID]location{}}
}

// parallel is the number of concurrent requests of one operation.
const parallel = 8

// Load sets the packs of the Store. It does not read known indexes again. The Store
// has no chunks of packs that are missing from the blob store, so writers write them
// again.
func (s *Store) Load(ctx context.Context, packs []Pack) error {
	wanted := make(map[string]Pack, len(packs))
	var missing []Pack
	s.mu.RLock()
	for _, p := range packs {
		wanted[p.Key()] = p
		if _, ok := s.packs[p.Key()]; !ok {
			missing = append(missing, p)
		}
	}
	same := len(missing) == 0 && len(wanted) == len(s.packs)
	s.mu.RUnlock()
	if same {
		return nil
	}
	indexes := make([][]slot, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, p := range missing {
		group.Go(func() (err error) {
			indexes[i], err = readIndex(ctx, s.blobs, s.codec, p)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packs = wanted
	for id, l := range s.where {
		if _, ok := wanted[l.pack]; !ok {
			delete(s.where, id)
		}
	}
	for i, p := range missing {
		if indexes[i] == nil { // it has no chunks, or is lost
			delete(s.packs, p.Key())
		}
		s.enter(p, indexes[i])
	}
	return nil
}

// enter adds the chunks of a pack. The caller holds s.mu.
func (s *Store) enter(p Pack, slots []slot) {
	key := p.Key()
	for _, sl := range slots {
		s.where[sl.id] = location{key, sl.offset, sl.length}
	}
}

// gone converts the error for a missing pack.
func gone(err error, p Pack) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return damaged("the pack %s is missing", p.Name)
	}
	return err
}

// Has reports whether one of the packs contains a chunk.
func (s *Store) Has(id ID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.where[id]
	return ok
}

// Home returns the key of the pack that contains a chunk, and the stored size
// of the chunk.
func (s *Store) Home(id ID) (pack string, stored int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l := s.where[id]
	return l.pack, l.length
}

// SortByPlace sorts chunks by pack and position.
func (s *Store) SortByPlace(ids []ID) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	slices.SortFunc(ids, func(a, b ID) int {
		x, y := s.where[a], s.where[b]
		return cmp.Or(strings.Compare(x.pack, y.pack), cmp.Compare(x.offset, y.offset))
	})
}

// Size returns the number of chunks and the bytes of all packs.
func (s *Store) Size() (chunks int, bytes int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.packs {
		bytes += p.Size
	}
	return len(s.where), bytes
}

func (s *Store) find(id ID) (Pack, location, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l, ok := s.where[id]
	if !ok {
		return Pack{}, l, damaged("the chunk %s is missing", id)
	}
	return s.packs[l.pack], l, nil
}

// Check reads whole packs and verifies every byte and every chunk.
func (s *Store) Check(ctx context.Context) error {
	s.mu.RLock()
	packs := make([]Pack, 0, len(s.packs))
	for _, p := range s.packs {
		packs = append(packs, p)
	}
	s.mu.RUnlock()
	slices.SortFunc(packs, func(a, b Pack) int { return a.Target - b.Target })
	for _, p := range packs {
		if err := s.checkPack(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) checkPack(ctx context.Context, p Pack) error {
	content, err := readPack(ctx, s.blobs, p)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != p.Name {
		return damaged("the content of the pack %s does not match its name", p.Name)
	}
	slots, err := parseIndex(s.codec, p, content[p.Size-footerSize-p.Index:])
	if err != nil {
		return err
	}
	for _, sl := range slots {
		if _, err := s.codec.OpenID(content[sl.offset:][:sl.length], sl.id); err != nil {
			return err
		}
	}
	return nil
}
