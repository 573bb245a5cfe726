package layer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/mkfs"
)

// maxHops is the maximum number of symbolic links in a path, as in Linux.
// maxSteps is the maximum number of path elements, including those of links.
const (
	maxHops  = 40
	maxSteps = 4096
)

// entry is a file in the tree of one layer.
type entry struct {
	node     *mkfs.Node // nil for a hard link without a target
	children map[string]*entry
	implicit bool                // a directory without a member of its own
	bare     bool                // an implicit directory that contains only whiteouts
	opaque   bool                // hides the content of the lower directory
	gone     map[string]struct{} // removed names of the lower directory
	link     []string            // the target of an unresolved hard link
	name     string              // of a hard link, for errors
}

func (e *entry) isDir() bool { return e.node != nil && e.node.IsDir() }

// put adds a child to a directory. A directory that is added again keeps its
// children; anything else replaces an existing child.
func (e *entry) put(name string, c *entry) {
	if old := e.children[name]; old != nil && c.isDir() {
		if old.isDir() {
			old.node, old.implicit, old.bare = c.node, false, false
			return
		}
		c.opaque = true // the replaced entry had already hidden the lower layers' one
	}
	if e.children == nil {
		e.children = map[string]*entry{}
	}
	e.children[name] = c
}

func newDir(t time.Time) *mkfs.Node {
	n := &mkfs.Node{Mode: unix.S_IFDIR | 0o755, Children: map[string]*mkfs.Node{}}
	setTime(n, t)
	return n
}

// mkdirs returns the directory at parts in this layer, following symbolic links
// inside the tree and creating missing directories. real means that the
// directory must exist even if no lower layer has it.
func (p *parser) mkdirs(parts []string, t time.Time, real bool) (*entry, error) {
	w := &walk[*entry]{stack: []*entry{p.root}, todo: parts, depth: p.limits.Depth}
	return w.run(func(dir *entry, name string) (*entry, string, error) {
		c := dir.children[name]
		if c == nil {
			c = &entry{node: newDir(t), implicit: true, bare: !real}
			dir.put(name, c)
		}
		switch {
		case c.isDir():
			c.bare = c.bare && !real
			return c, "", nil
		case c.node != nil && c.node.IsSymlink():
			return nil, c.node.Target, nil
		}
		return nil, "", fmt.Errorf("its parent %q is not a directory", name)
	})
}

// find returns the entry of this layer at parts, or nil. It does not follow a
// link in the last element.
func (p *parser) find(parts []string) *entry {
	w := &walk[*entry]{stack: []*entry{p.root}, todo: parts[:len(parts)-1], depth: p.limits.Depth}
	dir, err := w.run(func(dir *entry, name string) (*entry, string, error) {
		c := dir.children[name]
		switch {
		case c == nil || c.node == nil:
			return nil, "", errMissing
		case c.node.IsDir():
			return c, "", nil
		case c.node.IsSymlink():
			return nil, c.node.Target, nil
		}
		return nil, "", errMissing
	})
	if err != nil {
		return nil
	}
	return dir.children[parts[len(parts)-1]]
}

var errMissing = errors.New("missing")

// lookup returns the node at parts below root, or nil. It does not follow a
// link in the last element.
func lookup(root *mkfs.Node, parts []string) *mkfs.Node {
	dir, err := walkNodes(root, parts[:len(parts)-1])
	if err != nil {
		return nil
	}
	return dir.Children[parts[len(parts)-1]]
}

// walkNodes returns an existing directory of the merged tree.
func walkNodes(root *mkfs.Node, parts []string) (*mkfs.Node, error) {
	w := &walk[*mkfs.Node]{stack: []*mkfs.Node{root}, todo: parts, depth: maxSteps}
	return w.run(func(dir *mkfs.Node, name string) (*mkfs.Node, string, error) {
		return stepNode(dir.Children[name])
	})
}

// stepNode is one step of a walk to n, which may be nil.
func stepNode(n *mkfs.Node) (*mkfs.Node, string, error) {
	switch {
	case n == nil:
		return nil, "", errMissing
	case n.IsDir():
		return n, "", nil
	case n.IsSymlink():
		return nil, n.Target, nil
	}
	return nil, "", errMissing
}

// walk resolves a path in a tree. It cannot leave the tree: the parent of the
// root is the root, as with chroot.
type walk[T any] struct {
	stack []T // root first
	todo  []string
	depth int
	hops  int
	steps int
}

// run resolves the path. step returns the directory with that name, or the
// target of a symbolic link.
func (w *walk[T]) run(step func(dir T, name string) (T, string, error)) (T, error) {
	var zero T
	for len(w.todo) > 0 {
		name := w.todo[0]
		w.todo = w.todo[1:]
		if w.steps++; w.steps > maxSteps {
			return zero, errors.New("its parent leads through too long a path")
		}
		switch name {
		case "", ".":
			continue
		case "..":
			w.stack = w.stack[:max(1, len(w.stack)-1)]
			continue
		}
		if len(name) > mkfs.MaxName {
			return zero, errors.New("its parent leads through a link with an unusable target")
		}
		next, target, err := step(w.stack[len(w.stack)-1], name)
		if err != nil {
			return zero, err
		}
		if target == "" {
			if w.stack = append(w.stack, next); len(w.stack) > w.depth {
				return zero, fmt.Errorf("it is below more than %d directories", w.depth)
			}
			continue
		}
		if w.hops++; w.hops > maxHops {
			return zero, errors.New("its parent leads through too many symbolic links")
		}
		if target[0] == '/' {
			w.stack = w.stack[:1]
		}
		w.todo = append(strings.Split(target, "/"), w.todo...)
	}
	return w.stack[len(w.stack)-1], nil
}

// merge merges directory src of a layer into the last directory of stack. The
// other elements of stack are its parents.
func (p *parser) merge(stack []*mkfs.Node, src *entry) error {
	if len(stack) > p.limits.Depth {
		return fmt.Errorf("it is below more than %d directories", p.limits.Depth)
	}
	dst := stack[len(stack)-1]
	if src.opaque {
		dst.Children = map[string]*mkfs.Node{}
	}
	for name := range src.gone {
		delete(dst.Children, name)
	}
	if !src.implicit {
		children := dst.Children
		*dst = *src.node
		dst.Children = children
	}
	// In order, so that the result is deterministic if two names lead to one
	// directory through a link.
	for _, name := range slices.Sorted(maps.Keys(src.children)) {
		c := src.children[name]
		if !c.isDir() {
			dst.Children[name] = c.node
			continue
		}
		if below := p.lower(stack, name, c); below != nil {
			if err := p.merge(below, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// lower returns the path of the directory into which c is merged, whose name in
// the last directory of stack is name. It creates the directory if necessary.
// It returns nil if c contains only whiteouts and there is nothing to hide.
func (p *parser) lower(stack []*mkfs.Node, name string, c *entry) []*mkfs.Node {
	dir := stack[len(stack)-1]
	old := dir.Children[name]
	if old != nil && old.IsDir() {
		return push(stack, old)
	}
	if old != nil && old.IsSymlink() && c.implicit {
		if way := p.behind(stack, old.Target, c); way != nil {
			return way
		}
	}
	if c.implicit && c.bare {
		return nil
	}
	d := newDir(time.Time{})
	*d = *c.node
	d.Children = map[string]*mkfs.Node{}
	dir.Children[name] = d
	return push(stack, d)
}

// behind returns the path of the target directory of a lower layer's link. It
// creates missing directories with the attributes of c. It returns nil if there
// is no such path.
func (p *parser) behind(stack []*mkfs.Node, target string, c *entry) []*mkfs.Node {
	if target[0] == '/' {
		stack = stack[:1]
	}
	w := &walk[*mkfs.Node]{stack: slices.Clone(stack), todo: strings.Split(target, "/"), depth: p.limits.Depth}
	_, err := w.run(func(dir *mkfs.Node, name string) (*mkfs.Node, string, error) {
		next := dir.Children[name]
		if next == nil && !c.bare {
			next = newDir(time.Time{})
			next.MTime, next.MTimeNsec = c.node.MTime, c.node.MTimeNsec
			dir.Children[name] = next
		}
		return stepNode(next)
	})
	if err != nil {
		return nil
	}
	return w.stack
}

// push returns a copy of stack with one more element.
func push(stack []*mkfs.Node, n *mkfs.Node) []*mkfs.Node {
	return append(stack[:len(stack):len(stack)], n)
}
