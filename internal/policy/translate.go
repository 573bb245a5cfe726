package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Unenforceable is how to treat rules that a provider cannot enforce.
type Unenforceable string

// The ways to treat them.
const (
	Refuse  Unenforceable = "refuse" // refuse the sandbox; the meaning of an empty value
	Narrow  Unenforceable = "narrow" // deny more than the rules do
	LetPass Unenforceable = "allow"  // allow more than the rules do
)

// Lost is a rule that a provider cannot enforce as it is written.
type Lost struct {
	Rule string // name of the rule; "default" for the default of the profile
	Why  string
}

// Translate returns what a provider without our gateway has to enforce for a
// profile and its limits. If the provider cannot enforce a rule, Translate
// returns CodeUnsupported with the rule's name, or, depending on mode, denies
// more or allows more and lists the rule as Lost. Unless mode is LetPass, the
// result allows no connection that the profile denies. It says nothing about
// what is sent over an allowed connection.
func (p *Policy) Translate(a enforce.Ability, mode Unenforceable) (sandbox.EgressRules, []Lost, error) {
	if p.upstream.steered() {
		return sandbox.EgressRules{}, nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "network", Message: "the provider has no gateway, which is what uses dnsServers and proxy",
			Hint: hint(a, "use a provider with a gateway"),
		}
	}
	t := translation{ability: a, pass: mode == LetPass}
	if a.Kind == enforce.Full {
		if len(p.limits) == 0 {
			rules := sandbox.EgressRules{Requests: t.requests(p)}
			return t.conclude(rules, mode)
		}
		// The intersection of several lists is a list of hosts.
		t.ability.Kind = enforce.Host
	}
	allow := t.layer(p, "")
	for _, c := range p.limits {
		allow = intersect(allow, t.layer(c, "policy "+c.name+": "))
	}
	if a.MaxTargets > 0 && len(allow) > a.MaxTargets {
		t.lose("default", fmt.Sprintf("%d targets are more than the %d that the provider takes", len(allow), a.MaxTargets))
		if allow = allow[:a.MaxTargets]; t.pass {
			t.open = true
		}
	}
	rules := sandbox.EgressRules{Allow: allow}
	switch a.Kind {
	case enforce.None, "":
		t.lose("default", "the provider bounds nothing")
		rules.Open = true
	case enforce.Switch:
		if len(allow) > 0 {
			t.lose("default", "the provider lets out everything or nothing")
		}
		rules.Open, rules.Allow = t.pass && len(allow) > 0, nil
	}
	return t.conclude(rules, mode)
}

// conclude refuses lost rules, unless the mode tolerates them.
func (t *translation) conclude(rules sandbox.EgressRules, mode Unenforceable) (sandbox.EgressRules, []Lost, error) {
	rules.Open = rules.Open || t.open
	if len(t.lost) == 0 || mode == LetPass || mode == Narrow && !rules.Open {
		return rules, t.lost, nil
	}
	return sandbox.EgressRules{}, t.lost, &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: "network", Rule: t.lost[0].Rule,
		Message: fmt.Sprintf("the provider cannot enforce %s: %s", t.lost[0].Rule, t.lost[0].Why),
		Hint:    hint(t.ability, "use a provider with a gateway, or a policy with onUnenforceable"),
	}
}

// hint names the setting that makes rules enforceable, if there is one.
func hint(a enforce.Ability, otherwise string) string {
	if a.GatewaySetting == "" {
		return otherwise
	}
	return "set " + a.GatewaySetting + ", " + otherwise
}

// translation collects lost rules.
type translation struct {
	ability enforce.Ability
	pass    bool // allow what is lost
	open    bool // too much is lost to restrict anything
	lost    []Lost
}

func (t *translation) lose(rule, why string) { t.lost = append(t.lost, Lost{rule, why}) }

func (t *translation) knows(kinds ...enforce.Kind) bool {
	return slices.Contains(kinds, t.ability.Kind)
}

// layer translates one list of rules.
func (t *translation) layer(p *Policy, prefix string) (out []sandbox.EgressTarget) {
	if !p.online {
		return nil
	}
	for i := range p.rules {
		r := &p.rules[i]
		if !r.allows() {
			continue
		}
		why := t.unseen(r)
		if why != "" {
			t.lose(prefix+r.label(), why)
			if !t.pass {
				continue
			}
		}
		for _, h := range r.hosts {
			targets, why := t.targets(p, h, p.rules[:i])
			if why != "" {
				t.lose(prefix+r.label(), why)
			}
			out = append(out, targets...)
		}
	}
	if p.fallback == sandbox.Allow {
		out = append(out, t.fallback(p, prefix)...)
	}
	return out
}

// unseen returns what the provider lacks to enforce a rule on connections, or
// "".
func (t *translation) unseen(r *rule) string {
	switch {
	case r.conditional():
		return "it does not see methods and paths of requests"
	case len(r.rule.Inject) > 0:
		return "it adds no credentials"
	case r.filters != nil:
		return "it does not look at contents"
	case r.rule.Limits != nil:
		return "it counts nothing"
	case r.inspects:
		return "it does not look into TLS"
	}
	return ""
}

// targets returns the targets of one pattern, without what earlier rules deny.
func (t *translation) targets(p *Policy, h pattern, before []rule) ([]sandbox.EgressTarget, string) {
	if h.prefix.IsValid() {
		return t.addresses(p, h, before)
	}
	why := ""
	switch {
	case h.name == sandbox.MachineHost:
		return nil, "it has no way to the daemon's machine"
	case !t.knows(enforce.Host, enforce.HostPort):
		why = "it does not know names"
		t.open = t.open || t.pass
		return nil, why
	case h.any || h.suffix != "" && !t.ability.Wildcards:
		why = fmt.Sprintf("it has no pattern such as %s", h)
		t.open = t.open || t.pass
		return nil, why
	case slices.ContainsFunc(before, func(r rule) bool { return !r.allows() && r.hides(h) }):
		why = "an earlier rule denies a part of it"
	}
	ports, exact := t.namePorts(h)
	if !exact {
		why = "it knows no ports of names"
	}
	if why != "" && !t.pass {
		return nil, why
	}
	return []sandbox.EgressTarget{{Host: h.String(), Ports: ports}}, why
}

// hides reports whether a deny rule may overlap with a pattern of names. A rule
// about addresses may, because the addresses of names are not known here.
func (r *rule) hides(h pattern) bool {
	return slices.ContainsFunc(r.hosts, func(d pattern) bool { return d.overlaps(h) || d.prefix.IsValid() && d.sharesPort(h) })
}

// namePorts returns the ports of a name, and whether the provider supports
// exactly these.
func (t *translation) namePorts(h pattern) (out []sandbox.PortRange, exact bool) {
	if t.knows(enforce.HostPort) {
		return portRanges(h), true
	}
	if t.ability.NamePorts == nil {
		return nil, allPorts(h)
	}
	for _, n := range t.ability.NamePorts {
		if !h.hasPort(n) {
			return nil, false
		}
	}
	return nil, true
}

// addresses returns those addresses of a pattern that are public or that the
// operator allows, without those that an earlier rule denies.
func (t *translation) addresses(p *Policy, h pattern, before []rule) ([]sandbox.EgressTarget, string) {
	if t.knows(enforce.None, enforce.Switch, "") || t.ability.NamesOnly {
		t.open = t.open || t.pass
		return nil, "it does not know addresses"
	}
	var ports []sandbox.PortRange
	switch {
	case t.knows(enforce.CIDRPort, enforce.HostPort):
		ports = portRanges(h)
	case !allPorts(h):
		if !t.pass {
			return nil, "it knows no ports"
		}
	}
	rest, why := []netip.Prefix{h.prefix}, ""
	for i := range before {
		for _, d := range before[i].hosts {
			if before[i].allows() || !d.prefix.IsValid() || !d.prefix.Overlaps(h.prefix) || !d.sharesPort(h) {
				continue
			}
			// If a rule denies some ports or requests, leave out the addresses entirely.
			rest = subtract(rest, d.prefix)
			if !d.coversPorts(h) || before[i].conditional() {
				why = "an earlier rule denies a part of it"
			}
		}
	}
	for _, n := range notPublic() {
		rest = p.operator.without(rest, n)
	}
	return targetsOf(rest, ports), why
}

// fallback returns the public addresses, provided that the rules only deny
// addresses.
func (t *translation) fallback(p *Policy, prefix string) []sandbox.EgressTarget {
	fail := func(why string) []sandbox.EgressTarget {
		t.lose(prefix+"default", why)
		t.open = t.open || t.pass
		return nil
	}
	if t.knows(enforce.None, enforce.Switch, "") || t.ability.NamesOnly {
		return fail("it does not know addresses")
	}
	rest := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), global}
	for i := range p.rules {
		for _, d := range p.rules[i].hosts {
			switch {
			case p.rules[i].allows() && !p.rules[i].inspects:
			case !d.prefix.IsValid():
				return fail("it cannot leave out names")
			default:
				rest = subtract(rest, d.prefix)
				if !allPorts(d) || p.rules[i].conditional() {
					t.lose(prefix+"default", "a rule denies a part of what some addresses offer")
				}
			}
		}
	}
	for _, n := range notPublic() {
		rest = subtract(rest, n)
	}
	return targetsOf(rest, nil)
}

// notPublic returns all addresses that need the operator's permission.
func notPublic() []netip.Prefix {
	var out []netip.Prefix
	for _, r := range ranges {
		out = append(out, r.prefix)
	}
	for a := range metadata {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return append(out, subtract([]netip.Prefix{netip.MustParsePrefix("::/0")}, global)...)
}

// without removes a range that is not public, except for what the operator
// allows to all rules.
func (o *Operator) without(rest []netip.Prefix, n netip.Prefix) []netip.Prefix {
	out := subtract(rest, n)
	for _, allowed := range o.Allow {
		for _, r := range rest {
			both, ok := overlap(r, n)
			if !ok {
				continue
			}
			if both, ok = overlap(both, allowed); ok && (allowed.IsSingleIP() || !holdsMetadata(both)) {
				out = append(out, both)
			}
		}
	}
	return out
}

func holdsMetadata(p netip.Prefix) bool {
	for a := range metadata {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// overlap returns the intersection of two prefixes: the longer one, or nothing.
func overlap(a, b netip.Prefix) (netip.Prefix, bool) {
	switch {
	case !a.Overlaps(b):
		return netip.Prefix{}, false
	case a.Bits() >= b.Bits():
		return a, true
	}
	return b, true
}

// subtract returns prefixes without the addresses of another prefix.
func subtract(from []netip.Prefix, gone netip.Prefix) (out []netip.Prefix) {
	for _, p := range from {
		switch {
		case !p.Overlaps(gone):
			out = append(out, p)
		case p.Bits() < gone.Bits(): // split; one half contains gone
			low, high := halves(p)
			out = append(out, subtract([]netip.Prefix{low, high}, gone)...)
		}
	}
	return out
}

func halves(p netip.Prefix) (low, high netip.Prefix) {
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 1 << (7 - p.Bits()%8)
	upper, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(upper, p.Bits()+1)
}

func targetsOf(all []netip.Prefix, ports []sandbox.PortRange) []sandbox.EgressTarget {
	out := make([]sandbox.EgressTarget, len(all))
	for i, p := range all {
		out[i] = sandbox.EgressTarget{Prefix: p, Ports: ports}
	}
	return out
}

func portRanges(h pattern) []sandbox.PortRange {
	out := make([]sandbox.PortRange, len(h.ports))
	for i, p := range h.ports {
		out[i] = sandbox.PortRange{Low: p.low, High: p.high}
	}
	return out
}

func allPorts(h pattern) bool { return covered(ports{1, 65535}, h.ports) }

// coversPorts reports whether every port of q is one of p.
func (p pattern) coversPorts(q pattern) bool {
	return !slices.ContainsFunc(q.ports, func(r ports) bool { return !covered(r, p.ports) })
}

// intersect returns what both lists allow.
func intersect(a, b []sandbox.EgressTarget) (out []sandbox.EgressTarget) {
	for _, x := range a {
		for _, y := range b {
			if both, ok := common(x, y); ok {
				out = append(out, both)
			}
		}
	}
	return out
}

// common is what two targets have in common.
func common(x, y sandbox.EgressTarget) (out sandbox.EgressTarget, ok bool) {
	switch {
	case x.Host == "" && y.Host == "":
		if out.Prefix, ok = overlap(x.Prefix, y.Prefix); !ok {
			return out, false
		}
	case x.Host == "" || y.Host == "":
		return out, false
	default:
		p, err := parsePattern(x.Host)
		q, err2 := parsePattern(y.Host)
		switch {
		case err != nil || err2 != nil || !p.overlaps(q):
			return out, false
		case q.covers(p):
			out.Host = x.Host
		default:
			out.Host = y.Host
		}
	}
	if x.Ports == nil || y.Ports == nil {
		out.Ports = append(append(out.Ports, x.Ports...), y.Ports...)
		return out, true
	}
	for _, a := range x.Ports {
		for _, b := range y.Ports {
			if low, high := max(a.Low, b.Low), min(a.High, b.High); low <= high {
				out.Ports = append(out.Ports, sandbox.PortRange{Low: low, High: high})
			}
		}
	}
	return out, len(out.Ports) > 0
}
