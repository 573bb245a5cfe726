package workspace

import (
	"bytes"
	"context"
	"slices"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
)

// Kinds of differences of a path.
const (
	Added    = "added"
	Removed  = "removed"
	Modified = "modified" // different content, link target or type
	Touched  = "touched"  // same content, different mode, owner or attributes
)

// Change is one difference between two versions.
type Change struct {
	Path string `json:"path"` // relative; any bytes but NUL
	Kind string `json:"kind"`
	Size int64  `json:"size"` // size in bytes in the newer version
	Dir  bool   `json:"dir,omitempty"`
}

// MaxChanges is the maximum number of changes that Diff returns.
const MaxChanges = 100_000

// Diff returns the changes between two versions, ordered by path, and whether
// there were more than MaxChanges. As from, 0 means an empty version; as to,
// the newest. If a directory was added or removed, its content is listed.
// Unchanged files are not read.
func (w *Workspace) Diff(ctx context.Context, from, to int) ([]Change, bool, error) {
	head, err := w.head(ctx)
	if err != nil {
		return nil, false, err
	}
	if err := w.chunks.Load(ctx, head.Packs); err != nil {
		return nil, false, err
	}
	d := &differ{ctx: ctx, from: w.direct()}
	var tops [2]*node
	for i, number := range []int{from, to} {
		if i == 0 && number == 0 || len(head.Versions) == 0 && number == 0 {
			continue
		}
		v, err := head.find(number)
		if err != nil {
			return nil, false, err
		}
		if tops[i], err = v.top(); err != nil {
			return nil, false, err
		}
	}
	err = d.dirs("", tops[0], tops[1], 0)
	slices.SortFunc(d.found, func(a, b Change) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
	if err == errEnough {
		return d.found, true, nil
	}
	return d.found, false, err
}

type differ struct {
	ctx   context.Context
	from  source
	found []Change
}

// errEnough ends a comparison early.
var errEnough = damaged("too many changes")

// dirs compares two directories, one of which may be missing.
func (d *differ) dirs(at string, a, b *node, depth int) error {
	if depth > maxDepth {
		return damaged("directories are nested too deep")
	}
	if a != nil && b != nil && slices.Equal(a.content, b.content) {
		return nil
	}
	before, err := d.list(a)
	if err != nil {
		return err
	}
	after, err := d.list(b)
	if err != nil {
		return err
	}
	for len(before) > 0 || len(after) > 0 {
		var x, y *node
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].name < after[0].name:
			x, before = before[0], before[1:]
		case len(before) == 0 || after[0].name < before[0].name:
			y, after = after[0], after[1:]
		default:
			x, y, before, after = before[0], after[0], before[1:], after[1:]
		}
		if err := d.nodes(at, x, y, depth); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) list(n *node) ([]*node, error) {
	if n == nil {
		return nil, d.ctx.Err()
	}
	return listing(d.ctx, d.from, n)
}

// nodes compares two nodes with the same name, one of which may be missing.
func (d *differ) nodes(at string, x, y *node, depth int) error {
	name, kind := "", ""
	switch {
	case y == nil:
		name, kind, y = join(at, x.name), Removed, &node{}
	case x == nil:
		name, kind, x = join(at, y.name), Added, &node{}
	default:
		name, kind = join(at, x.name), compare(x, y)
	}
	if kind != "" {
		if len(d.found) == MaxChanges {
			return errEnough
		}
		c := Change{Path: name, Kind: kind, Dir: y.kind == dir || kind == Removed && x.kind == dir}
		if y.kind == file {
			c.Size = y.size()
		}
		d.found = append(d.found, c)
	}
	if x.kind != dir {
		x = nil
	}
	if y.kind != dir {
		y = nil
	}
	if x == nil && y == nil {
		return nil
	}
	return d.dirs(name, x, y, depth+1)
}

// compare returns how a file differs. Times and content of a directory are
// ignored: they follow from its entries.
func compare(x, y *node) string {
	switch {
	case x.kind != y.kind, x.target != y.target, x.kind == file && !slices.Equal(x.content, y.content):
		return Modified
	case x.mode != y.mode, x.uid != y.uid, x.gid != y.gid, x.kind != dir && !x.modified.Equal(y.modified),
		!slices.EqualFunc(x.xattrs, y.xattrs, func(a, b xattr) bool { return a.name == b.name && bytes.Equal(a.value, b.value) }):
		return Touched
	}
	return ""
}

// chunkIDs yields the ids of a content's chunks.
func chunkIDs(content []piece, yield func(chunk.ID)) {
	for _, p := range content {
		if !p.hole() {
			yield(p.id)
		}
	}
}
