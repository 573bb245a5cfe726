package hosted

import (
	"strings"

	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// States translates the statuses of a service.
type States map[string]sandbox.State

// Of returns what a status means. An unknown status is Lost.
func (s States) Of(status string) sandbox.State {
	if state, ok := s[status]; ok {
		return state
	}
	return sandbox.Lost
}

// The keys of metadata that mark a sandbox as ours. Labels are metadata too.
const (
	MetaScope = "atoll-scope"
	MetaID    = "atoll-id"
	metaLabel = "label."
)

// Metadata returns the metadata of a new sandbox.
func Metadata(scope string, spec *sandbox.Spec) map[string]string {
	m := map[string]string{MetaScope: scope, MetaID: string(spec.ID)}
	for k, v := range spec.Labels {
		m[metaLabel+k] = v
	}
	return m
}

// Wanted returns the metadata of the sandboxes with a scope and an ID; "" means
// any.
func Wanted(scope string, id sandbox.ID) map[string]string {
	m := map[string]string{}
	if scope != "" {
		m[MetaScope] = scope
	}
	if id != "" {
		m[MetaID] = string(id)
	}
	return m
}

// Marked adds to a sandbox what its metadata says.
func Marked(b Sandbox, metadata map[string]string) Sandbox {
	b.Scope, b.Sandbox, b.Labels, b.Metadata = metadata[MetaScope], sandbox.ID(metadata[MetaID]), map[string]string{}, metadata
	for k, v := range metadata {
		if name, ok := strings.CutPrefix(k, metaLabel); ok {
			b.Labels[name] = v
		}
	}
	return b
}

// Names are the names of sandboxes or snapshots, for services that mark them in
// no other way. The value separates the scope from the ID.
type Names string

const namePrefix = "atoll-"

// Of returns the name of a thing with a scope and an ID. Without an ID it is
// the prefix of all of them, and without a scope that of all scopes.
func (n Names) Of(scope string, id sandbox.ID) string {
	if scope == "" {
		return namePrefix
	}
	return namePrefix + scope + string(n) + string(id)
}

// Parse returns the scope and the ID in a name of ours.
func (n Names) Parse(name string) (scope string, id sandbox.ID, ours bool) {
	rest, ours := strings.CutPrefix(name, namePrefix)
	scope, text, cut := strings.Cut(rest, string(n))
	if !ours || !cut || !identity.Valid(scope) {
		return "", "", false
	}
	return scope, sandbox.ID(text), true
}

// Named reports whether a name is one of this directory's.
func (rs Records) Named(n Names, name string) bool {
	own, err := rs.Scope()
	scope, id, ours := n.Parse(name)
	return err == nil && ours && scope == own && sandbox.ValidateName(string(id)) == nil
}
