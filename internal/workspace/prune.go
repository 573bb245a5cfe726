package workspace

import (
	"context"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
)

// Keep selects the versions that a Prune keeps: those that match one of the
// rules, and always the newest. The zero value keeps all versions and only
// removes garbage.
type Keep struct {
	Last   int           // the newest versions, this many
	Within time.Duration // all younger versions
}

// Pruned is the result of a Prune.
type Pruned struct {
	Versions []int `json:"versions"` // the removed versions
	Freed    int64 `json:"freed"`    // freed bytes
}

// A pack is rewritten without garbage if less than half of it is in use. Small
// packs are combined if there are several.
const (
	smallPack  = 4 << 20
	manySmalls = 8
)

// Prune removes versions, and removes from the blob store what no version
// needs, including remains of killed writers. Concurrent operations are safe: a
// Persist that started earlier starts again. A killed Prune is completed by the
// next one.
func (w *Workspace) Prune(ctx context.Context, keep Keep) (Pruned, error) {
	return w.prune(ctx, keep.split)
}

// Forget is Prune with a function that selects versions, including the newest.
// It keeps the versions for which keep returns true.
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
		return w.sweep(ctx, head) // records of earlier versions
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

// Whole returns the versions that can be restored, as far as the names and sizes of
// the packs in the blob store tell, oldest first.
func (w *Workspace) Whole(ctx context.Context) ([]Version, error) {
	for {
		head, err := w.head(ctx)
		if err != nil {
			return nil, err
		}
		sizes := map[string]int64{}
		for info, err := range w.blobs.List(ctx, chunk.Prefix) {
			if err != nil {
				return nil, err
			}
			sizes[info.Key] = info.Size
		}
		there := slices.DeleteFunc(slices.Clone(head.Packs), func(p chunk.Pack) bool { return sizes[p.Key()] != p.Size })
		if len(there) == len(head.Packs) {
			return head.Versions, nil
		}
		if newest, err := w.newest(ctx); err != nil || newest != head.Number {
			if err != nil {
				return nil, err
			}
			continue // a Prune removed packs
		}
		if err := w.chunks.Load(ctx, there); err != nil {
			return nil, err
		}
		var whole []Version
		for _, v := range head.Versions {
			_, err := w.live(ctx, []Version{v})
			if err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
				return nil, err
			}
			if err == nil {
				whole = append(whole, v)
			}
		}
		return whole, nil
	}
}

// live returns all chunks that versions need. It reads shared listings once.
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

// repack returns the packs with all live chunks. It rewrites some of them.
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

// unlisted returns the packs that no record refers to and no writer may still
// need. Packs for a later number may belong to a running writer.
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
		// Packs for the next number are garbage, too, once a Prune has used that
		// number.
		if ok && p.Target <= head.Number+1 && !listed[info.Key] {
			found = append(found, info.Key)
		}
	}
	return found, nil
}

// sweep removes what a committed record does not refer to.
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

// Report is the result of a Verify.
type Report struct {
	Versions int   `json:"versions"`
	Chunks   int   `json:"chunks"`
	Bytes    int64 `json:"bytes"` // of packs
}

// Verify checks that every version can be restored: all listings can be read
// and all chunks exist. With deep, it reads all packs and verifies their
// digests.
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
