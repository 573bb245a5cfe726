package fleet

import (
	"iter"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// Any reports whether there are nodes.
func (f *Fleet) Any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.nodes) > 0
}

// Choose returns the provider of the node that suits a sandbox best, and why. Its
// memory counts as used there until the next answer of the node. Empty: no node
// takes the sandbox.
func (f *Fleet) Choose(ref string, memory int64, demand sandbox.Isolation) (provider, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	best, ok := catalog.Best(catalog.Needs{Isolation: demand}, f.facts(ref, memory))
	if !ok {
		return "", ""
	}
	f.nodes[strings.TrimPrefix(best.Descriptor.Name, Prefix)].promise += memory
	return best.Descriptor.Name, strings.Join(best.Merits(), "; ")
}

// Candidates describes the nodes for a sandbox with an image that asks for memory.
func (f *Fleet) Candidates(ref string, memory int64) []catalog.Facts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(f.facts(ref, memory))
}

// facts yields what a choice needs to know of each node.
func (f *Fleet) facts(ref string, memory int64) iter.Seq[catalog.Facts] {
	anywhere := ref == "" || ref == "host"
	name := ""
	if !anywhere {
		name = image.Name(ref)
	}
	return func(yield func(catalog.Facts) bool) {
		for _, n := range f.nodes {
			at := &catalog.Node{HasImage: anywhere || n.images[name]}
			_, at.Refused = n.state()
			one := catalog.Facts{Descriptor: catalog.Descriptor{Name: n.provider}, Available: true, Node: at}
			if n.load != nil {
				one.Descriptor.Isolation = n.load.Isolation
				at.Free = min(max(n.load.MemoryFree-n.promise, 0), n.load.MemoryTotal-n.load.MemoryReserved-n.promise)
			}
			at.Full = at.Free < memory
			if !yield(one) {
				return
			}
		}
	}
}
