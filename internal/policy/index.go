package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// index finds the rules for a host without checking every rule, so that the
// cost does not grow with the number of rules. Each of its lists is in the
// order of the rules.
type index struct {
	names    map[string][]entry
	suffixes map[string][]entry // by the part after "*."
	any      []entry
	prefixes map[netip.Prefix][]entry
	bits4    []int // the prefix lengths that occur
	bits6    []int
}

// entry is one pattern of one rule.
type entry struct {
	ports
	rule int32
}

func newIndex(rules []rule) index {
	x := index{names: map[string][]entry{}, suffixes: map[string][]entry{}, prefixes: map[netip.Prefix][]entry{}}
	for i := range rules {
		for _, h := range rules[i].hosts {
			for _, p := range h.ports {
				x.add(h, entry{p, int32(i)})
			}
		}
	}
	return x
}

func (x *index) add(h pattern, e entry) {
	switch {
	case h.any:
		x.any = append(x.any, e)
	case h.name != "":
		x.names[h.name] = append(x.names[h.name], e)
	case h.suffix != "":
		x.suffixes[h.suffix] = append(x.suffixes[h.suffix], e)
	default:
		if _, known := x.prefixes[h.prefix]; !known {
			bits := &x.bits6
			if h.prefix.Addr().Is4() {
				bits = &x.bits4
			}
			if !slices.Contains(*bits, h.prefix.Bits()) {
				*bits = append(*bits, h.prefix.Bits())
			}
		}
		x.prefixes[h.prefix] = append(x.prefixes[h.prefix], e)
	}
}

// byName appends the lists of patterns that match a name.
func (x *index) byName(lists [][]entry, name string) [][]entry {
	lists = appendList(lists, x.names[name])
	for rest := name; ; {
		_, parent, more := strings.Cut(rest, ".")
		if !more {
			break
		}
		lists = appendList(lists, x.suffixes[parent])
		rest = parent
	}
	return appendList(lists, x.any)
}

// byAddr appends the lists of patterns that match an address.
func (x *index) byAddr(lists [][]entry, a netip.Addr) [][]entry {
	bits := x.bits6
	if a.Is4() {
		bits = x.bits4
	}
	for _, n := range bits {
		if p, err := a.Prefix(n); err == nil {
			lists = appendList(lists, x.prefixes[p])
		}
	}
	return lists
}

func appendList(lists [][]entry, l []entry) [][]entry {
	if len(l) == 0 {
		return lists
	}
	return append(lists, l)
}

// merge yields the entries of all lists in the order of the rules.
func merge(lists [][]entry, yield func(entry) bool) {
	for {
		first := -1
		for i, l := range lists {
			if len(l) > 0 && (first < 0 || cmp.Less(l[0].rule, lists[first][0].rule)) {
				first = i
			}
		}
		if first < 0 || !yield(lists[first][0]) {
			return
		}
		lists[first] = lists[first][1:]
	}
}

// candidates yields the rules that match a flow by host and port, in order,
// each once. If the flow has a name, allow rules about addresses are left out:
// they only apply to flows without a name.
func (p *Policy) candidates(f Flow) func(func(*rule) bool) {
	return func(yield func(*rule) bool) {
		var room [12][]entry
		lists := room[:0]
		if f.Name != "" {
			lists = p.index.byName(lists, f.Name)
		}
		if f.Addr.IsValid() {
			lists = p.index.byAddr(lists, f.Addr)
		}
		last := int32(-1)
		merge(lists, func(e entry) bool {
			if e.rule == last || !e.contain(f.Port) {
				return true
			}
			r := &p.rules[e.rule]
			if f.Name != "" && r.allows() && !r.matchesName(f) {
				return true
			}
			last = e.rule
			return yield(r)
		})
	}
}

// names reports whether a pattern of the rule matches a name, on any port.
func (r *rule) names(name string) bool {
	return slices.ContainsFunc(r.hosts, func(h pattern) bool { return h.matchesName(name) })
}

// matchesName reports whether the rule matches the flow by its name.
func (r *rule) matchesName(f Flow) bool {
	return slices.ContainsFunc(r.hosts, func(h pattern) bool { return h.matchesName(f.Name) && h.hasPort(f.Port) })
}
