package stack

import (
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/mkfs"
)

// Delta returns the layer that changes below to top: added and changed files,
// and whiteouts for removed ones. Unchanged files must have the same nodes in
// both trees. The result shares the nodes of files with top.
func Delta(below, top *mkfs.Node) *mkfs.Node {
	d := &differ{
		below: map[*mkfs.Node]int{}, top: map[*mkfs.Node]int{}, kept: map[*mkfs.Node]int{},
		whiteout: &mkfs.Node{Mode: unix.S_IFCHR},
	}
	names(below, d.below)
	names(top, d.top)
	d.keep(below, top)
	layer, _ := d.dir(below, top)
	return layer
}

// differ compares two trees.
type differ struct {
	below, top map[*mkfs.Node]int // number of names of a file
	kept       map[*mkfs.Node]int // number of names that are the same in both
	whiteout   *mkfs.Node
}

// names counts the names of everything except directories.
func names(dir *mkfs.Node, of map[*mkfs.Node]int) {
	for _, c := range dir.Children {
		if c.IsDir() {
			names(c, of)
		} else {
			of[c]++
		}
	}
}

// keep counts unchanged names.
func (d *differ) keep(below, top *mkfs.Node) {
	for name, c := range top.Children {
		b := below.Children[name]
		switch {
		case b == nil:
		case c.IsDir() && b.IsDir():
			d.keep(b, c)
		case c == b:
			d.kept[c]++
		}
	}
}

// unchanged reports whether a file is unchanged, with the same names: a hard
// link cannot refer to another layer.
func (d *differ) unchanged(n *mkfs.Node) bool {
	return d.kept[n] == d.top[n] && d.kept[n] == d.below[n]
}

// dir returns the difference between top and below, which may be nil, and
// whether there is any.
func (d *differ) dir(below, top *mkfs.Node) (layer *mkfs.Node, changed bool) {
	out := *top
	out.Children = map[string]*mkfs.Node{}
	if below != nil {
		for name := range below.Children {
			if top.Children[name] == nil {
				out.Children[name] = d.whiteout
			}
		}
	}
	for name, c := range top.Children {
		var b *mkfs.Node
		if below != nil {
			b = below.Children[name]
		}
		if !c.IsDir() {
			if c != b || !d.unchanged(c) {
				out.Children[name] = c
			}
			continue
		}
		if b != nil && !b.IsDir() {
			b = nil
		}
		if sub, changed := d.dir(b, c); changed {
			out.Children[name] = sub
		}
	}
	return &out, below == nil || len(out.Children) > 0 || !sameAttributes(below, top)
}

func sameAttributes(a, b *mkfs.Node) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.MTime == b.MTime && a.MTimeNsec == b.MTimeNsec
}
