package workspace

import (
	"context"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
)

// Keep says which versions a Prune keeps: all that one of the rules wants, and
// always the newest. Its zero value keeps all, so that only rubbish goes.
type Keep struct {
	Last   int           // so many of the newest
	Within time.Duration // all that are younger
}

// Pruned tells what a Prune did.
type Pruned struct {
	Versions []int `json:"versions"` // that are gone
	Freed    int64 `json:"freed"`    // bytes by which the store shrank
}

// A pack is written anew without its dead chunks when less than half of it
// lives; and small packs are put together when there are several.
const (
	smallPack  = 4 << 20
	manySmalls = 8
)

// Prune forgets versions, and removes from the blob store what no version
// needs, what killed writers left included. Concurrent operations are safe: a
// Persist that began earlier starts again. A Prune that was killed is finished
// by the next one.
func (w *Workspace) Prune(ctx context.Context, keep Keep) (Pruned, error) {
	return w.prune(ctx, keep.split)
}

// Forget is Prune for versions that are told apart by what they are, the newest
// among them. Those that keep returns true of stay.
func (w *Workspace) Forget(ctx context.Context, keep func(Version) bool) (Pruned, error) {
	return w.prune(ctx, func(all []Version) (kept []Version, dropped []int) {
		for _, v := range all {
			if keep(v) {
				kept = append(kept, v)
			} else {
				dropped = append(dropped, v.Number)
			}
		}
		return kept, dropped
	})
}

func (w *Workspace) prune(ctx context.Context, split func([]Version) (kept []Version, dropped []int)) (Pruned, error) {
	head, err := w.head(ctx)
	if err != nil {
		return Pruned{}, err
	}
	if err := w.chunks.Load(ctx, head.Packs); err != nil {
		return Pruned{}, err
	}
	next := head.next()
	var dropped []int
	next.Versions, dropped = split(next.Versions)
	live, err := w.live(ctx, next.Versions)
	if err != nil {
		return Pruned{}, err
	}
	if next.Packs, err = w.repack(ctx, next.Number, head.Packs, live); err != nil {
		return Pruned{}, err
	}
	rubbish, err := w.unlisted(ctx, head)
	if err != nil {
		return Pruned{}, err
	}
	if len(dropped) == 0 && len(rubbish) == 0 && slices.Equal(next.Packs, head.Packs) {
		return w.sweep(ctx, head) // old records
	}
	if err := w.commit(ctx, next); err != nil {
		return Pruned{}, err
	}
	done, err := w.sweep(ctx, next)
	done.Versions = dropped
	for _, p := range next.Packs {
		if p.Target == next.Number {
			done.Freed -= p.Size
		}
	}
	return done, err
}

// split divides versions into those to keep and the numbers of the others.
func (k Keep) split(all []Version) (kept []Version, dropped []int) {
	if k.Last <= 0 && k.Within <= 0 {
		return all, nil
	}
	since := now().Add(-k.Within)
	for i, v := range all {
		if i >= len(all)-max(k.Last, 1) || k.Within > 0 && v.Created.After(since) {
			kept = append(kept, v)
		} else {
			dropped = append(dropped, v.Number)
		}
	}
	return kept, dropped
}

// live finds every chunk that versions need. Listings that versions share are
// read once.
func (w *Workspace) live(ctx context.Context, versions []Version) (map[chunk.ID]bool, error) {
	live, from := map[chunk.ID]bool{}, w.direct()
	mark := func(n *node) (fresh bool) {
		chunkIDs(n.content, func(id chunk.ID) {
			fresh = fresh || !live[id]
			live[id] = true
		})
		return fresh
	}
	for _, v := range versions {
		top, err := v.top()
		if err != nil {
			return nil, err
		}
		if !mark(top) {
			continue
		}
		err = walk(ctx, from, top, "", 0, func(_ string, n *node) (bool, error) { return mark(n), nil })
		if err != nil {
			return nil, err
		}
	}
	for id := range live {
		if !w.chunks.Has(id) {
			return nil, damaged("the chunk %s is missing", id)
		}
	}
	return live, nil
}

// repack returns the packs that hold what is live, writing some of them anew.
func (w *Workspace) repack(ctx context.Context, target int, packs []chunk.Pack, live map[chunk.ID]bool) ([]chunk.Pack, error) {
	used := map[string]int64{}
	homes := map[string][]chunk.ID{}
	for id := range live {
		key, stored := w.chunks.Home(id)
		used[key] += stored
		homes[key] = append(homes[key], id)
	}
	var small int
	for _, p := range packs {
		if p.Size < smallPack && used[p.Key()] > 0 {
			small++
		}
	}
	var kept []chunk.Pack
	var move []chunk.ID
	for _, p := range packs {
		switch n := used[p.Key()]; {
		case n == 0:
		case n < p.Size/2-p.Index, p.Size < smallPack && small >= manySmalls:
			move = append(move, homes[p.Key()]...)
		default:
			kept = append(kept, p)
		}
	}
	if len(move) == 0 {
		return kept, nil
	}
	w.chunks.SortByPlace(move)
	reader, writer := w.chunks.Reader(move), w.chunks.Writer(ctx, target)
	var err error
	for _, id := range move {
		if err = writer.Move(ctx, reader, id); err != nil {
			break
		}
	}
	fresh, closeErr := writer.Close()
	return append(kept, fresh...), firstKnown(closeErr, err)
}

// unlisted returns the packs that no record names and no writer can want any
// more: those for a later number may be about to be.
func (w *Workspace) unlisted(ctx context.Context, head *record) ([]string, error) {
	listed := map[string]bool{}
	for _, p := range head.Packs {
		listed[p.Key()] = true
	}
	var found []string
	for info, err := range w.blobs.List(ctx, chunk.Prefix) {
		if err != nil {
			return nil, err
		}
		p, ok := chunk.ParseKey(info.Key)
		// Those for the next number are rubbish too as soon as a Prune has
		// taken that number.
		if ok && p.Target <= head.Number+1 && !listed[info.Key] {
			found = append(found, info.Key)
		}
	}
	return found, nil
}

// sweep removes what a record that was committed does not name.
func (w *Workspace) sweep(ctx context.Context, head *record) (Pruned, error) {
	var done Pruned
	listed := map[string]bool{}
	for _, p := range head.Packs {
		listed[p.Key()] = true
	}
	for info, err := range w.blobs.List(ctx, chunk.Prefix) {
		if err != nil {
			return done, err
		}
		p, ok := chunk.ParseKey(info.Key)
		if !ok || p.Target > head.Number || listed[info.Key] {
			continue
		}
		if err := w.blobs.Delete(ctx, info.Key); err != nil {
			return done, err
		}
		done.Freed += info.Size
	}
	for info, err := range w.blobs.List(ctx, recordPrefix) {
		if err != nil {
			return done, err
		}
		if info.Key < recordKey(head.Number) {
			if err := w.blobs.Delete(ctx, info.Key); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// Report tells what a Verify looked at.
type Report struct {
	Versions int   `json:"versions"`
	Chunks   int   `json:"chunks"`
	Bytes    int64 `json:"bytes"` // of packs
}

// Verify makes sure that every version can be restored: that all its listings
// can be read and all its chunks are where they should be. If deep is set, every
// byte of every pack is read and compared with its digest.
func (w *Workspace) Verify(ctx context.Context, deep bool) (Report, error) {
	head, err := w.head(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := w.chunks.Load(ctx, head.Packs); err != nil {
		return Report{}, err
	}
	if _, err := w.live(ctx, head.Versions); err != nil {
		return Report{}, err
	}
	for _, p := range head.Packs {
		switch info, err := w.blobs.Stat(ctx, p.Key()); {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return Report{}, damaged("the pack %s is missing", p.Name)
		case err != nil:
			return Report{}, err
		case info.Size != p.Size:
			return Report{}, damaged("the pack %s has %d bytes instead of %d", p.Name, info.Size, p.Size)
		}
	}
	if deep {
		if err := w.chunks.Check(ctx); err != nil {
			return Report{}, err
		}
	}
	r := Report{Versions: len(head.Versions)}
	r.Chunks, r.Bytes = w.chunks.Size()
	return r, nil
}
