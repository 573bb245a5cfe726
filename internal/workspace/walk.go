package workspace

import (
	"context"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
)

// source reads the content of one version.
type source interface {
	Get(ctx context.Context, id chunk.ID) ([]byte, error)
}

// direct returns a source that reads chunks one by one, for listings.
func (w *Workspace) direct() source { return w.chunks.Reader(nil) }

// top returns the top directory of a version.
func (v Version) top() (*node, error) {
	nodes, err := parse(v.Root)
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 || nodes[0].kind != dir {
		return nil, damaged("the version %d has no directory", v.Number)
	}
	return nodes[0], nil
}

// listing reads the entries of a directory.
func listing(ctx context.Context, from source, d *node) ([]*node, error) {
	size := d.size()
	if size > maxListing {
		return nil, damaged("the listing of a directory is too long")
	}
	var encoded []byte
	for _, p := range d.content {
		if p.hole() {
			return nil, damaged("the listing of a directory has a hole")
		}
		part, err := piecesContent(ctx, from, p)
		if err != nil {
			return nil, err
		}
		if len(d.content) == 1 {
			return parse(part)
		}
		encoded = append(encoded, part...)
	}
	return parse(encoded)
}

// piecesContent reads a piece and verifies its length.
func piecesContent(ctx context.Context, from source, p piece) ([]byte, error) {
	content, err := from.Get(ctx, p.id)
	if err == nil && int64(len(content)) != p.length {
		err = damaged("a piece of a file has the wrong length")
	}
	return content, err
}

// walk visits every node below d, parents first. It skips the content of
// directories for which visit returns false.
func walk(ctx context.Context, from source, d *node, at string, depth int, visit func(path string, n *node) (bool, error)) error {
	if depth > maxDepth {
		return damaged("directories are nested too deep")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	nodes, err := listing(ctx, from, d)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		name := join(at, n.name)
		enter, err := visit(name, n)
		if err != nil {
			return err
		}
		if enter && n.kind == dir {
			if err := walk(ctx, from, n, name, depth+1, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// join joins relative paths. Names contain no slash and are not cleaned.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
