// Package policy decides what a sandbox may reach. It does no I/O, reads no
// clock and keeps no state, so a decision is the same in the gateway, in a test
// and in `atoll profile test`. Facts about the machine come from [Operator].
//
// A [sandbox.Profile] is compiled to a [Policy]. Its methods correspond to the
// steps of a connection: may this name be resolved ([Policy.CanResolve]), may a
// connection be opened ([Policy.Connect], before and after the name is looked
// up), does the TLS hello match ([Policy.Hello]), and may this request pass
// ([Policy.Request]). A Policy is immutable and safe for concurrent use. A
// changed profile is compiled to a new Policy.
package policy

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Operator holds the machine owner's settings for all profiles.
type Operator struct {
	// Allow are addresses that are not public but that rules may allow, such as
	// those of a company mirror. A metadata address must be listed by itself.
	Allow []netip.Prefix
	// HostPorts are the ports of the machine's loopback that rules may open, under
	// the name sandbox.MachineHost.
	HostPorts []uint16
	// Own are the daemon's own ports, which no rule can open. An unspecified
	// address stands for every address.
	Own []netip.AddrPort
	// Machine reports whether a public address belongs to this machine. It must be
	// fast and safe for concurrent use. Nil: no address does.
	Machine func(netip.Addr) bool
	// Proxied means that all traffic goes through the operator's proxy. The proxy
	// looks up names, so their addresses are not known here.
	Proxied bool
}

// Options of Compile. The zero value is usable.
type Options struct {
	Operator Operator
	// Swaps are the placeholders of the sandbox.
	Swaps []Swap
	// Secrets are the secrets that may be injected, with the hosts to which each
	// may be sent, as in Rule.Hosts. An empty list allows every host that a rule
	// names. Nil: secrets are not checked, as for a profile without a sandbox.
	Secrets map[string][]string
	// EgressLimits limit the profile; all of them must allow.
	EgressLimits []EgressLimit
}

// Swap lets the gateway replace a placeholder with the value of a secret.
type Swap struct {
	Secret      string
	Placeholder string
	Hosts       []string // hosts that may receive it, as in Rule.Hosts without addresses; ports default to 443
	In          []string // as SecretRef.In
}

// Policy is a compiled profile.
type Policy struct {
	name     string
	online   bool
	fallback sandbox.Action
	rules    []rule
	index    index
	names    bool // a rule names hosts
	operator Operator
	swaps    []swap
	limits   []*Policy
	upstream Upstream
}

// rule is a compiled rule.
type rule struct {
	number   int // from 1
	rule     sandbox.Rule
	hosts    []pattern
	paths    []pathPattern
	methods  map[string]bool
	filters  *Filters
	inspects bool // it cannot be applied without inspecting requests
}

// conditional reports whether some requests to the rule's hosts do not match
// it.
func (r *rule) conditional() bool { return len(r.paths) > 0 || r.methods != nil }

func (r *rule) allows() bool { return r.rule.Action == sandbox.Allow }

// label returns the rule's name in decisions and events.
func (r *rule) label() string {
	if r.rule.Name != "" {
		return r.rule.Name
	}
	return "rule " + strconv.Itoa(r.number)
}

// swap is a compiled Swap.
type swap struct {
	Swap
	hosts  []pattern
	places Places
}

func (s *swap) reaches(f Flow) bool {
	for _, h := range s.hosts {
		if h.hasPort(f.Port) && (h.matchesName(f.Name) || f.Name == "" && h.matchesAddr(f.Addr)) {
			return true
		}
	}
	return false
}

// Name returns the profile's name, empty for the profile of a single sandbox.
func (p *Policy) Name() string { return p.name }

// Compile checks a profile and compiles it. An error is a *sandbox.Error with
// CodeInvalid whose Subject names the rule and the field.
func Compile(profile sandbox.Profile, opts Options) (*Policy, error) {
	p := &Policy{name: profile.Name, online: profile.Internet == nil || *profile.Internet, fallback: profile.Default, operator: opts.Operator}
	switch p.fallback {
	case "":
		p.fallback = sandbox.Deny
	case sandbox.Allow, sandbox.Deny:
	default:
		return nil, invalid("default", "%q is neither allow nor deny", clip(string(p.fallback)))
	}
	if len(profile.Rules) > bounds.MaxRules {
		return nil, invalid("rules", "%d rules, at most %d", len(profile.Rules), bounds.MaxRules)
	}
	p.rules = make([]rule, 0, len(profile.Rules))
	for i := range profile.Rules {
		r, err := compileRule(i+1, &profile.Rules[i], opts.Secrets)
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, r)
	}
	if err := p.checkPassthrough(); err != nil {
		return nil, err
	}
	p.index = newIndex(p.rules)
	p.names = len(p.index.names)+len(p.index.suffixes)+len(p.index.any) > 0
	var err error
	if p.limits, err = compileEgressLimits(opts.EgressLimits, opts.Operator); err != nil {
		return nil, err
	}
	if p.upstream, err = compileUpstream(&profile); err != nil {
		return nil, err
	}
	p.swaps, err = compileSwaps(opts.Swaps, opts.Secrets)
	return p, err
}

// Check reports what is wrong with a profile, as Compile does, without checking
// its secrets.
func Check(profile sandbox.Profile) error {
	_, err := Compile(profile, Options{})
	return err
}

// checkPassthrough refuses a rule that passes TLS through for a host for which
// an earlier rule has to inspect requests.
func (p *Policy) checkPassthrough() error {
	var looks []*rule
	for i := range p.rules {
		r := &p.rules[i]
		if r.inspects {
			looks = append(looks, r)
		}
		if r.rule.TLS != sandbox.Passthrough {
			continue
		}
		for _, other := range looks {
			if other.overlaps(r) {
				return invalid(field(r.number, "tls"), "%s inspects requests to a host that this rule passes through: move that rule after this one, or narrow the hosts", other.label())
			}
		}
	}
	return nil
}

func (r *rule) overlaps(other *rule) bool {
	for _, a := range r.hosts {
		for _, b := range other.hosts {
			if a.overlaps(b) {
				return true
			}
		}
	}
	return false
}

func compileSwaps(swaps []Swap, secrets map[string][]string) ([]swap, error) {
	var out []swap
	for _, s := range swaps {
		c := swap{Swap: s}
		subject := "secrets." + s.Secret
		for _, h := range s.Hosts {
			pat, err := sendable(h)
			if err != nil {
				return nil, invalid(subject, "%q: %v", clip(h), err)
			}
			c.hosts = append(c.hosts, pat)
		}
		if err := within(subject, s.Secret, c.hosts, secrets); err != nil {
			return nil, err
		}
		var err error
		if c.places, err = ParsePlaces(s.In); err != nil {
			return nil, invalid(subject, "%v", err)
		}
		out = append(out, c)
	}
	return out, nil
}

// field returns the Subject of an error about a rule.
func field(number int, name string) string { return fmt.Sprintf("rules[%d].%s", number, name) }

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// clip shortens hostile input in an error message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
