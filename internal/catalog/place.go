package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/atoll-run/atoll/sandbox"
)

// PlaceFacts describe a node for Place.
type PlaceFacts struct {
	Provider string // of the node
	Refused  string // why it gets no new sandboxes; empty: it does
	HasImage bool   // the image is stored there, or needs no download
	Free     int64  // memory in bytes
	// Isolation is what the node gives. Empty: it is not known.
	Isolation sandbox.Isolation
}

// Place orders nodes by their suitability for a sandbox, best first, and
// explains each. It is pure. A node with the image comes before others, then the
// one with more free memory. Nodes that lack the memory come last. A node that
// gives less than the demanded isolation is refused.
func Place(memory int64, demand sandbox.Isolation, nodes []PlaceFacts) sandbox.Choice {
	list := slices.Clone(nodes)
	for i := range list {
		if f := &list[i]; f.Refused == "" && demand != "" && !f.Isolation.Meets(demand) {
			f.Refused = fmt.Sprintf("gives %s, and isolation %s is demanded", f.Isolation.Known(), demand)
		}
	}
	full := func(f PlaceFacts) bool { return f.Free < memory }
	slices.SortFunc(list, func(a, b PlaceFacts) int {
		return cmp.Or(
			cmp.Compare(order(a.Refused != ""), order(b.Refused != "")),
			cmp.Compare(order(full(a)), order(full(b))),
			cmp.Compare(order(!a.HasImage), order(!b.HasImage)),
			cmp.Compare(b.Free, a.Free),
			cmp.Compare(a.Provider, b.Provider),
		)
	})
	choice := sandbox.Choice{Candidates: []sandbox.Candidate{}}
	for _, f := range list {
		c := sandbox.Candidate{Provider: f.Provider, Fits: f.Refused == "", Reasons: []string{f.Refused}}
		if c.Fits {
			c.Reasons = []string{"has to fetch the image"}
			if f.HasImage {
				c.Reasons = []string{"has the image"}
			}
			c.Reasons = append(c.Reasons, fmt.Sprintf("%.1f GiB of memory free", float64(f.Free)/(1<<30)))
			if choice.Provider == "" {
				choice.Provider = c.Provider
			}
		}
		choice.Candidates = append(choice.Candidates, c)
	}
	return choice
}
