// Package policyset evaluates the operator's policies: files, usually under
// version control, that restrict the sandboxes of a tenant. They set upper
// limits for resources and lifetime, the allowed images, mounts and secrets,
// and a limit of network access.
//
// All policies that match a sandbox, by its tenant and its labels, apply at
// once. A policy can only remove permissions, so their order does not matter.
// Decisions are pure, as in package policy; only [Open] reads files of the
// machine.
package policyset

import (
	"crypto"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Set is a set of policies. The zero value allows everything. A Set is
// immutable and safe for concurrent use.
type Set struct {
	policies []entry
	tests    []Test
	digest   string
}

// entry is a policy with its keys.
type entry struct {
	operator.Policy
	keys [][]crypto.PublicKey // for each of SignedImages
}

// Policies returns the policies in the order of their files.
func (set *Set) Policies() []operator.Policy {
	return set.list(func(*entry) bool { return true })
}

// PoliciesOf returns the policies that may apply to sandboxes of a tenant.
func (set *Set) PoliciesOf(tenant string) []operator.Policy {
	return set.list(func(p *entry) bool { return p.concerns(tenant) })
}

func (set *Set) list(wanted func(*entry) bool) []operator.Policy {
	out := []operator.Policy{}
	if set != nil {
		for i := range set.policies {
			if wanted(&set.policies[i]) {
				out = append(out, set.policies[i].Policy)
			}
		}
	}
	return out
}

// Digest identifies the text of the set; empty for an empty set.
func (set *Set) Digest() string {
	if set == nil {
		return ""
	}
	return set.digest
}

// About identifies a sandbox by tenant and labels.
type About struct {
	Tenant string
	Labels map[string]string
}

// matches reports whether a policy applies to a sandbox.
func (p *entry) matches(a About) bool {
	if !p.concerns(a.Tenant) {
		return false
	}
	for name, values := range p.Labels {
		if !like(values, a.Labels[name]) {
			return false
		}
	}
	return true
}

// concerns reports whether a policy may apply to sandboxes of a tenant.
func (p *entry) concerns(tenant string) bool { return p.Tenants == nil || like(p.Tenants, tenant) }

// about returns the policies that apply to a sandbox.
func (set *Set) about(a About) []*entry {
	var out []*entry
	if set != nil {
		for i := range set.policies {
			if set.policies[i].matches(a) {
				out = append(out, &set.policies[i])
			}
		}
	}
	return out
}

// Redacts reports whether a policy requires that secret values are removed from
// the output of the sandbox's commands.
func (set *Set) Redacts(a About) bool {
	return slices.ContainsFunc(set.about(a), func(p *entry) bool { return p.Redact })
}

// EgressLimits returns the limits of the sandbox's network access.
func (set *Set) EgressLimits(a About) []policy.EgressLimit {
	var out []policy.EgressLimit
	for _, p := range set.about(a) {
		if p.Network != nil && !*p.Network {
			off := false
			out = append(out, policy.EgressLimit{Name: p.Name, Profile: sandbox.Profile{Internet: &off}})
		}
		if p.Egress != nil {
			out = append(out, policy.EgressLimit{Name: p.Name, Profile: *p.Egress})
		}
	}
	return out
}

// MaySecret reports whether a sandbox may have a secret in a mode. The mode is
// empty for a secret that a rule adds to requests.
func (set *Set) MaySecret(a About, name string, mode sandbox.SecretMode) bool {
	return set.Check(Request{About: a, Secrets: []Grant{{name, mode}}}, Secrets, SecretModes) == nil
}

// Unenforceable returns how to treat rules that a provider cannot enforce,
// according to the strictest policy that sets it.
func (set *Set) Unenforceable(a About) policy.Unenforceable {
	said := policy.Unenforceable("")
	order := []policy.Unenforceable{"", policy.LetPass, policy.Narrow, policy.Refuse}
	for _, p := range set.about(a) {
		if slices.Index(order, policy.Unenforceable(p.OnUnenforceable)) > slices.Index(order, said) {
			said = policy.Unenforceable(p.OnUnenforceable)
		}
	}
	if said == "" {
		return policy.Refuse
	}
	return said
}

// Caps are the lowest limits that apply to a sandbox, and the strongest isolation
// that is demanded for it; zero means unlimited, or any.
type Caps struct {
	Resources sandbox.Resources
	Lifetime  time.Duration
	Isolation sandbox.Isolation
}

// Caps returns the limits that apply to a sandbox.
func (set *Set) Caps(a About) (c Caps) {
	for _, p := range set.about(a) {
		lower(&c.Resources.CPUs, p.CPUs)
		lower(&c.Resources.Memory, p.Memory)
		lower(&c.Resources.Disk, p.Disk)
		lower(&c.Resources.PIDs, p.PIDs)
		lower(&c.Lifetime, p.Lifetime)
		c.Isolation = c.Isolation.Stronger(p.Isolation)
	}
	return c
}

func lower[T ~int64 | ~float64](have, limit *T) {
	if limit != nil && (*have == 0 || *limit < *have) {
		*have = *limit
	}
}

// Fill sets the limits that a request leaves open, to the lower of the cap and
// the default. It never changes a requested limit.
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

// matchText compares text with a pattern in which * matches any characters,
// including slashes.
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

// mayMount reports whether a directory of the machine may be mounted: it is at
// or below the directory of a pattern, and read-only if the pattern ends in
// ":ro".
func mayMount(patterns []string, m sandbox.Mount) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		dir, readOnly := strings.CutSuffix(p, ":ro")
		source := path.Clean(m.Source)
		return (m.ReadOnly || !readOnly) && (source == dir || dir == "/" || strings.HasPrefix(source, dir+"/"))
	})
}
