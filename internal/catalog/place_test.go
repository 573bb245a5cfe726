package catalog

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestPlace(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct {
		name   string
		memory int64
		demand sandbox.Isolation
		nodes  []PlaceFacts
		want   string // all providers in order, and * after each that fits
		why    string // of the first
	}{
		{"none", gib, "", nil, "", ""},
		{"the image first", gib, "", []PlaceFacts{{Provider: "a", Free: 8 * gib}, {Provider: "b", Free: 2 * gib, HasImage: true}}, "b* a*", "has the image; 2.0 GiB of memory free"},
		{"then memory", gib, "", []PlaceFacts{{Provider: "a", Free: 2 * gib}, {Provider: "b", Free: 8 * gib}}, "b* a*", "has to fetch the image; 8.0 GiB of memory free"},
		{"then the name", gib, "", []PlaceFacts{{Provider: "b", Free: gib}, {Provider: "a", Free: gib}}, "a* b*", ""},
		{"one that is full last", 4 * gib, "", []PlaceFacts{{Provider: "a", Free: gib, HasImage: true}, {Provider: "b", Free: 8 * gib}}, "b* a*", ""},
		{"never a refused one", gib, "", []PlaceFacts{{Provider: "a", Free: 8 * gib, HasImage: true, Refused: "is cordoned"}, {Provider: "b", Free: gib}}, "b* a", ""},
		{"all refused", gib, "", []PlaceFacts{{Provider: "a", Refused: "is cordoned"}}, "a", "is cordoned"},
		{"too weak", gib, sandbox.IsolationKernel, []PlaceFacts{{Provider: "a", Free: 8 * gib, Isolation: "none"}, {Provider: "b", Free: gib, Isolation: "hardware"}, {Provider: "c", Free: 4 * gib}}, "b* a c", ""},
		{"all too weak", gib, sandbox.IsolationKernel, []PlaceFacts{{Provider: "a", Free: gib, Isolation: "none"}}, "a", "gives none, and isolation kernel is demanded"},
	} {
		got := Place(tt.memory, tt.demand, tt.nodes)
		var all []string
		first := sandbox.Candidate{}
		for i, c := range got.Candidates {
			if i == 0 {
				first = c
			}
			name := c.Provider
			if c.Fits {
				name += "*"
			}
			all = append(all, name)
		}
		if strings.Join(all, " ") != tt.want || tt.why != "" && strings.Join(first.Reasons, "; ") != tt.why || first.Fits != (got.Provider != "") || first.Fits && got.Provider != first.Provider {
			t.Errorf("%s: %+v, want %s because %s", tt.name, got, tt.want, tt.why)
		}
	}
}
