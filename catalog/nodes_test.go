package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// place is a node.
type place struct {
	Provider  string
	Isolation sandbox.Isolation
	Node
}

// Nodes are chosen by memory and image.
func TestChooseNodes(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct {
		name   string
		memory int64
		demand sandbox.Isolation
		nodes  []place
		want   string // all providers in order, and * after each that fits
		why    string // of the first
	}{
		{"none", gib, "", nil, "", ""},
		{"the image first", gib, "", []place{{Provider: "a", Node: Node{Free: 8 * gib}}, {Provider: "b", Node: Node{Free: 2 * gib, HasImage: true}}}, "b* a*", "has the image; 2.0 GiB of memory free"},
		{"then memory", gib, "", []place{{Provider: "a", Node: Node{Free: 2 * gib}}, {Provider: "b", Node: Node{Free: 8 * gib}}}, "b* a*", "has to fetch the image; 8.0 GiB of memory free"},
		{"then the name", gib, "", []place{{Provider: "b", Node: Node{Free: gib}}, {Provider: "a", Node: Node{Free: gib}}}, "a* b*", ""},
		{"one that is full last", 4 * gib, "", []place{{Provider: "a", Node: Node{Free: gib, HasImage: true}}, {Provider: "b", Node: Node{Free: 8 * gib}}}, "b* a*", ""},
		{"never a refused one", gib, "", []place{{Provider: "a", Node: Node{Free: 8 * gib, HasImage: true, Refused: "is cordoned"}}, {Provider: "b", Node: Node{Free: gib}}}, "b* a", ""},
		{"all refused", gib, "", []place{{Provider: "a", Node: Node{Refused: "is cordoned"}}}, "a", "is cordoned"},
		{"too weak", gib, sandbox.IsolationKernel, []place{{Provider: "a", Isolation: "none", Node: Node{Free: 8 * gib}}, {Provider: "b", Isolation: "hardware", Node: Node{Free: gib}}, {Provider: "c", Node: Node{Free: 4 * gib}}}, "b* a c", ""},
		{"all too weak", gib, sandbox.IsolationKernel, []place{{Provider: "a", Isolation: "none", Node: Node{Free: gib}}}, "a", "gives none, and isolation kernel is needed"},
	} {
		var facts []Facts
		for _, p := range tt.nodes {
			p.Node.Full = p.Free < tt.memory
			facts = append(facts, Facts{Descriptor: Descriptor{Name: p.Provider, Isolation: p.Isolation}, Available: true, Node: &p.Node})
		}
		got := Choose(Needs{Isolation: tt.demand}, facts)
		var all []string
		first := Candidate{}
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
		if best, ok := Best(Needs{Isolation: tt.demand}, slices.Values(facts)); ok != first.Fits || best.Descriptor.Name != got.Provider || ok && !slices.Equal(best.Merits(), first.Reasons) {
			t.Errorf("%s: the best is %+v, %v, and the first is %+v", tt.name, best, ok, first)
		}
	}
	facts := append(facts(t), Facts{Descriptor: known(t, "remote"), Available: true, Node: &Node{Free: gib}}, Facts{Descriptor: known(t, "boxlite"), Available: true, Node: &Node{Refused: "is cordoned"}})
	got := Choose(Needs{}, facts)
	if got.Provider != "remote" || got.Candidates[0].Provider != "remote" || got.Candidates[1].Provider != "gvisor" {
		t.Errorf("nodes and others: %+v; want the node before the default", got)
	}
}

func BenchmarkChoose10000(b *testing.B) {
	nodes := make([]Facts, 10_000)
	for i := range nodes {
		nodes[i] = Facts{Descriptor: Descriptor{Name: fmt.Sprintf("node-%05d", i)}, Available: true, Node: &Node{Free: int64(i*7919%10_000) << 20}}
	}
	b.Run("best", func(b *testing.B) {
		for b.Loop() {
			Best(Needs{}, slices.Values(nodes))
		}
	})
	b.Run("explained", func(b *testing.B) {
		for b.Loop() {
			Choose(Needs{}, nodes)
		}
	})
}
