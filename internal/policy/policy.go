// Package policy decides what a sandbox may reach. It is pure: it does no I/O,
// reads no clock and keeps no state, so that the same question has the same
// answer in the gateway, in a test and in `atoll profile test`. What it has to
// know about the machine comes from [Operator].
//
// A [sandbox.Profile] is compiled once to a [Policy], which answers in the
// order in which traffic asks: may this name be resolved ([Policy.CanResolve]),
// may a connection be made ([Policy.Connect], once before the address of a name
// is known and once after), does the TLS hello agree with it ([Policy.Hello]),
// and may this request pass ([Policy.Request]). A Policy is never changed and
// may be used concurrently. A changed profile is a new Policy.
package policy

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
)

// Operator holds the machine owner's settings for all profiles.
type Operator struct {
	// Allow are private, reserved or other addresses that are not public and
	// that rules may reach all the same, such as those of a company mirror. A
	// metadata address counts only if it is named alone.
	Allow []netip.Prefix
	// HostPorts are the ports of the machine's loopback that rules may open, by
	// the name sandbox.MachineHost.
	HostPorts []uint16
	// Own are the daemon's own ports, which no rule ever opens. An address
	// that is unspecified stands for every address.
	Own []netip.AddrPort
	// Machine reports whether an address that would be public is one of this
	// machine. It must be fast and safe for concurrent use. Nil: none is.
	Machine func(netip.Addr) bool
	// Proxied says that all that leaves goes through a proxy, which looks names
	// up: their addresses are then not known here.
	Proxied bool
}

// Options of a compilation. The zero value is usable.
type Options struct {
	Operator Operator
	// Swaps are the placeholders of the sandbox.
	Swaps []Swap
	// Secrets are the secrets that may be injected, with the hosts to which
	// each may be sent, as in Rule.Hosts; none means every host that a rule
	// names. Nil: secrets are not looked at, as for a profile that is only
	// checked.
	Secrets map[string][]string
	// Ceilings are set over the profile; all of them must allow.
	Ceilings []Ceiling
}

// Swap lets the gateway replace a placeholder by the value of a secret.
type Swap struct {
	Secret      string
	Placeholder string
	Hosts       []string // to whom, as in Rule.Hosts without addresses; ports default to 443
	In          []string // as SecretRef.In
}

// Policy is a compiled profile.
type Policy struct {
	name     string
	online   bool
	fallback sandbox.Action
	rules    []rule
	index    index
	names    bool // some rule is about hosts by name
	operator Operator
	swaps    []swap
	ceilings []*Policy
	upstream Upstream
}

// rule is a compiled rule.
type rule struct {
	number   int // from 1, as people count
	rule     sandbox.Rule
	hosts    []pattern
	paths    []pathPattern
	methods  map[string]bool
	filters  *Filters
	inspects bool // it cannot be decided, or done, without seeing requests
}

// conditional reports whether not every request to its hosts matches.
func (r *rule) conditional() bool { return len(r.paths) > 0 || r.methods != nil }

func (r *rule) allows() bool { return r.rule.Action == sandbox.Allow }

// label is the rule's name in decisions and events.
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

// Name is that of the profile, empty for one of a single sandbox.
func (p *Policy) Name() string { return p.name }

// Compile checks a profile and makes it ready to decide. An error is an
// *sandbox.Error with CodeInvalid whose Subject names the rule and the field.
func Compile(profile sandbox.Profile, opts Options) (*Policy, error) {
	p := &Policy{name: profile.Name, online: profile.Internet == nil || *profile.Internet, fallback: profile.Default, operator: opts.Operator}
	switch p.fallback {
	case "":
		p.fallback = sandbox.Deny
	case sandbox.Allow, sandbox.Deny:
	default:
		return nil, invalid("default", "%q is neither allow nor deny", clip(string(p.fallback)))
	}
	if len(profile.Rules) > sandbox.MaxRules {
		return nil, invalid("rules", "%d rules, at most %d", len(profile.Rules), sandbox.MaxRules)
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
	if p.ceilings, err = compileCeilings(opts.Ceilings, opts.Operator); err != nil {
		return nil, err
	}
	if p.upstream, err = compileUpstream(&profile); err != nil {
		return nil, err
	}
	p.swaps, err = compileSwaps(opts.Swaps, opts.Secrets)
	return p, err
}

// Check reports what is wrong with a profile, as Compile does, without its
// secrets being known.
func Check(profile sandbox.Profile) error {
	_, err := Compile(profile, Options{})
	return err
}

// checkPassthrough refuses a rule that passes TLS through for a host where an
// earlier one has to see requests: both cannot be had.
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
				return invalid(field(r.number, "tls"), "%s must see the requests to a host that this rule passes through: put it behind, or narrow the hosts", other.label())
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

// field is the subject of an error about a rule.
func field(number int, name string) string { return fmt.Sprintf("rules[%d].%s", number, name) }

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// clip keeps hostile input from filling an error message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
