package policy

import (
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// requests translates the rules of a profile for a provider that filters
// requests. The provider applies them in order, as we do.
func (t *translation) requests(p *Policy) (out []sandbox.EgressRequest) {
	if !p.online {
		return nil
	}
	var missing []*rule // deny rules that are not enforced
	for i := range p.rules {
		r := &p.rules[i]
		hidden := r.allows() && slices.ContainsFunc(missing, func(d *rule) bool { return slices.ContainsFunc(r.hosts, d.hides) })
		why := t.beyond(r)
		if hidden {
			why = "an earlier rule denies a part of it"
		}
		if why == "" {
			out = append(out, expand(r)...)
			continue
		}
		t.lose(r.label(), why)
		switch {
		case t.pass && r.allows() && !slices.ContainsFunc(r.hosts, func(h pattern) bool { return t.unknown(h) != "" }):
			out = append(out, expand(&rule{number: r.number, rule: sandbox.Rule{Name: r.rule.Name, Action: sandbox.Allow}, hosts: r.hosts})...)
		case t.pass && r.allows():
			t.open = true
		case !r.allows():
			missing = append(missing, r)
		}
	}
	if p.fallback == sandbox.Allow {
		t.lose("default", "it does not promise to keep addresses away that are not public")
		t.open = t.open || t.pass
	}
	return out
}

// beyond returns what the provider lacks to enforce a rule on requests, or "".
func (t *translation) beyond(r *rule) string {
	for _, h := range r.hosts {
		if why := t.unknown(h); why != "" {
			return why
		}
	}
	many := len(r.hosts)*max(1, len(r.paths)) > 1
	switch l := r.rule.Limits; {
	case len(r.paths) > 0 && !r.allows():
		return "it may read the same path in another way"
	case slices.ContainsFunc(r.rule.Paths, func(s string) bool { return !plainPath(s) }):
		return "it has paths, and /** at the end of one, and no other patterns"
	case len(r.rule.Inject) > 0:
		return "it does not have the secret"
	case r.rule.TLS == sandbox.Passthrough:
		return "it looks into TLS"
	case len(r.rule.Filters) > 1:
		return "it has one filter for each rule"
	case len(r.rule.Filters) == 1 && (!slices.Contains(t.ability.Filters, r.rule.Filters[0].Type) || r.rule.Filters[0].Type == sandbox.FilterRegex && r.rule.Filters[0].Bytes > 0):
		return "it does not have this filter"
	case l != nil && (l.RequestBytes > 0 || l.ResponseBytes > 0 || l.Connections > 0 || l.PerMinute > 0 && l.Burst != max(1, l.PerMinute/6)):
		return "it counts requests per minute, and nothing else"
	case l != nil && l.PerMinute > 0 && many:
		return "it would be counted separately for each host and path"
	}
	return ""
}

// unknown returns why the provider does not support a host pattern.
func (t *translation) unknown(h pattern) string {
	_, exact := t.namePorts(h)
	switch {
	case h.prefix.IsValid():
		return "it does not know addresses"
	case h.any || h.suffix != "" && !t.ability.Wildcards:
		return "it has no pattern such as " + h.String()
	case !exact:
		return "it knows no ports of names"
	}
	return ""
}

// plainPath reports whether a pattern is one path, or all paths below one.
func plainPath(s string) bool {
	above, cut := strings.CutSuffix(s, "/"+anySegments)
	if cut && above == "" {
		return true
	}
	norm, err := NormalizePath(above)
	return err == nil && norm == above && !strings.ContainsAny(above, "*%")
}

// expand splits a rule into rules with one host and one path each.
func expand(r *rule) (out []sandbox.EgressRequest) {
	paths := []string{""}
	if len(r.rule.Paths) > 0 {
		paths = r.rule.Paths
	}
	for _, h := range r.hosts {
		host := h
		host.ports, host.named = nil, false
		for _, path := range paths {
			one := sandbox.EgressRequest{Rule: r.label(), Action: r.rule.Action, Host: host.String(), Methods: r.rule.Methods}
			one.Path = strings.TrimSuffix(path, "*") // "/x/**" becomes "/x/*"
			if r.rule.Limits != nil {
				one.PerMinute = r.rule.Limits.PerMinute
			}
			if len(r.rule.Filters) > 0 {
				one.Filter = &r.rule.Filters[0]
			}
			out = append(out, one)
		}
	}
	return out
}
