package ops

import "slices"

// Route is a request that one of the daemon's APIs answers, or a tool of the
// MCP server, with the permissions that it needs.
type Route struct {
	// Name is the method and the path, or the name of a tool.
	Name string
	// Open: no key is needed. Ops are then what the maker of the address or token
	// in the request needed.
	Open bool
	// Ops are the operations that each such request carries out. A key needs the
	// permissions of all of them. Without any, every key will do.
	Ops []Op
	// Some are the operations that only some of the requests carry out, in
	// addition.
	Some []Op
}

// Needs returns the permissions that a key needs for every request of the
// route, in the order of Verbs. Admin and Owner stand alone.
func (r Route) Needs() []Verb {
	verbs := verbsOf(r.Ops)
	for _, most := range []Verb{Owner, Admin} {
		if slices.Contains(verbs, most) {
			return []Verb{most}
		}
	}
	return verbs
}

// May returns the permissions that some requests need in addition.
func (r Route) May() []Verb {
	needs := r.Needs()
	return slices.DeleteFunc(verbsOf(r.Some), func(v Verb) bool {
		return slices.Contains(needs, v) || slices.Contains(needs, Owner) || slices.Contains(needs, Admin)
	})
}

// Allows reports whether a key with these permissions may send the requests of
// the route that need no more than Needs.
func (r Route) Allows(verbs ...Verb) bool {
	for _, v := range r.Needs() {
		if v == Owner || !slices.Contains(verbs, v) && !slices.Contains(verbs, Admin) {
			return false
		}
	}
	return true
}

func verbsOf(all []Op) (verbs []Verb) {
	for _, v := range append(Verbs(), Owner) {
		if slices.ContainsFunc(all, func(o Op) bool { return o.Verb() == v }) {
			verbs = append(verbs, v)
		}
	}
	return verbs
}
