// Package policyset says what the sandboxes of a tenant may be: policies, written
// in files that somebody keeps under version control, with upper limits of
// resources and lifetime, the images, mounts and secrets that are allowed, and a
// ceiling over what may be reached.
//
// All policies that match a sandbox, by its tenant and its labels, hold
// together: a policy can only take something away, so that neither their order
// nor one more of them makes anything wider. Decisions are pure, as those of
// package policy are; only [Open] looks at the machine.
package policyset

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// Set is a set of policies. The zero value allows everything. A Set is
// never changed and may be used concurrently.
type Set struct {
	policies []Policy
	tests    []Test
	digest   string
}

// Policy is one policy. A field that is nil says nothing.
type Policy struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Tenants and Labels say about which sandboxes it is: patterns in which *
	// stands for any characters. A label that a sandbox does not have is empty.
	Tenants []string            `json:"tenants,omitempty"`
	Labels  map[string][]string `json:"labels,omitempty"`

	CPUs     *float64       `json:"cpus,omitempty"`
	Memory   *int64         `json:"memory,omitempty"` // bytes
	Disk     *int64         `json:"disk,omitempty"`   // bytes
	PIDs     *int64         `json:"pids,omitempty"`
	Lifetime *time.Duration `json:"lifetime,omitempty"`

	Images      []string             `json:"images,omitzero"` // nil: those of Signed, or all
	Signed      []Signed             `json:"signed,omitempty"`
	Mounts      []string             `json:"mounts,omitzero"`
	Network     *bool                `json:"network,omitempty"`
	Egress      *sandbox.Profile     `json:"egress,omitempty"` // a ceiling
	Secrets     []string             `json:"secrets,omitzero"`
	SecretModes []sandbox.SecretMode `json:"secretModes,omitzero"`
	// Redact takes the values of secrets out of what commands write.
	Redact bool `json:"redact,omitempty"`
	// OnUnenforceable says how to treat rules that a provider cannot enforce.
	OnUnenforceable policy.Unenforceable `json:"onUnenforceable,omitempty"`

	File  string         `json:"file"`
	Lines map[string]int `json:"lines"` // of its fields in the file
}

// Policies returns the policies in the order of their files.
func (b *Set) Policies() []Policy {
	if b == nil {
		return nil
	}
	return slices.Clone(b.policies)
}

// Digest tells sets of different texts apart; empty for none.
func (b *Set) Digest() string {
	if b == nil {
		return ""
	}
	return b.digest
}

// About says which sandbox is meant.
type About struct {
	Tenant string
	Labels map[string]string
}

// matches reports whether a policy is about a sandbox.
func (p *Policy) matches(a About) bool {
	if !p.Concerns(a.Tenant) {
		return false
	}
	for name, values := range p.Labels {
		if !like(values, a.Labels[name]) {
			return false
		}
	}
	return true
}

// Concerns reports whether a policy may be about sandboxes of a tenant.
func (p *Policy) Concerns(tenant string) bool { return p.Tenants == nil || like(p.Tenants, tenant) }

// For returns the policies that are about a sandbox.
func (b *Set) For(a About) []Policy {
	var out []Policy
	if b != nil {
		for i := range b.policies {
			if b.policies[i].matches(a) {
				out = append(out, b.policies[i])
			}
		}
	}
	return out
}

// Redacts reports whether a policy wants values of secrets to be taken out of
// what the commands of a sandbox write.
func (b *Set) Redacts(a About) bool {
	return slices.ContainsFunc(b.For(a), func(p Policy) bool { return p.Redact })
}

// Ceilings are those over what a sandbox may reach.
func (b *Set) Ceilings(a About) []policy.Ceiling {
	var out []policy.Ceiling
	for _, p := range b.For(a) {
		if p.Network != nil && !*p.Network {
			off := false
			out = append(out, policy.Ceiling{Name: p.Name, Profile: sandbox.Profile{Internet: &off}})
		}
		if p.Egress != nil {
			out = append(out, policy.Ceiling{Name: p.Name, Profile: *p.Egress})
		}
	}
	return out
}

// MaySecret reports whether a sandbox may have a secret in a mode, empty for
// one that a rule adds.
func (b *Set) MaySecret(a About, name string, mode sandbox.SecretMode) bool {
	return b.Check(Request{About: a, Secrets: []Grant{{name, mode}}}, Secrets, SecretModes) == nil
}

// Unenforceable returns how to treat rules that a provider cannot enforce,
// according to the strictest policy that says anything about it.
func (b *Set) Unenforceable(a About) policy.Unenforceable {
	said := policy.Unenforceable("")
	order := []policy.Unenforceable{"", policy.LetPass, policy.Narrow, policy.Refuse}
	for _, p := range b.For(a) {
		if slices.Index(order, p.OnUnenforceable) > slices.Index(order, said) {
			said = p.OnUnenforceable
		}
	}
	if said == "" {
		return policy.Refuse
	}
	return said
}

// Caps are the lowest of the limits that hold for a sandbox; zero for none.
type Caps struct {
	Resources sandbox.Resources
	Lifetime  time.Duration
}

// Caps returns the limits that hold for a sandbox.
func (b *Set) Caps(a About) (c Caps) {
	for _, p := range b.For(a) {
		lower(&c.Resources.CPUs, p.CPUs)
		lower(&c.Resources.Memory, p.Memory)
		lower(&c.Resources.Disk, p.Disk)
		lower(&c.Resources.PIDs, p.PIDs)
		lower(&c.Lifetime, p.Lifetime)
	}
	return c
}

func lower[T ~int64 | ~float64](have, limit *T) {
	if limit != nil && (*have == 0 || *limit < *have) {
		*have = *limit
	}
}

// Fill gives a request that leaves limits open those that hold: the lower of
// the cap and what it would get otherwise. It never changes what was asked for.
func (c Caps) Fill(r *sandbox.Resources, defaults sandbox.Resources) {
	fill(&r.CPUs, c.Resources.CPUs, defaults.CPUs)
	fill(&r.Memory, c.Resources.Memory, defaults.Memory)
	fill(&r.Disk, c.Resources.Disk, defaults.Disk)
	fill(&r.PIDs, c.Resources.PIDs, defaults.PIDs)
}

func fill[T ~int64 | ~float64](v *T, limit, otherwise T) {
	if *v == 0 && limit != 0 && (otherwise <= 0 || otherwise > limit) {
		*v = limit
	}
}

// like reports whether a text matches one of the patterns.
func like(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchText(p, text) })
}

// matchText compares a text with a pattern in which * stands for any
// characters, slashes too.
func matchText(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}

// mayMount reports whether a directory of the machine may be shown: it is the
// one of a pattern, or below it, and read-only where ":ro" says so.
func mayMount(patterns []string, m sandbox.Mount) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		dir, readOnly := strings.CutSuffix(p, ":ro")
		source := path.Clean(m.Source)
		return (m.ReadOnly || !readOnly) && (source == dir || dir == "/" || strings.HasPrefix(source, dir+"/"))
	})
}
