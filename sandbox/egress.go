package sandbox

import (
	"net/netip"
	"slices"
)

// EgressKind is what a provider looks at when it decides what may leave a
// sandbox. The list is append-only.
type EgressKind string

// The kinds, each of which can do more than the one before.
const (
	EgressNone     EgressKind = "none"      // at nothing: everything leaves
	EgressSwitch   EgressKind = "switch"    // all or nothing
	EgressCIDR     EgressKind = "cidr"      // at addresses
	EgressCIDRPort EgressKind = "cidr_port" // at addresses and ports
	EgressHost     EgressKind = "host"      // at names and addresses
	EgressHostPort EgressKind = "host_port" // at names, addresses and ports
	EgressFull     EgressKind = "full"      // at requests: Spec.Network as it is
)

// Rank orders the kinds: one of a higher rank enforces more. It is negative for
// a kind that is not known.
func (k EgressKind) Rank() int {
	return slices.Index([]EgressKind{EgressNone, EgressSwitch, EgressCIDR, EgressCIDRPort, EgressHost, EgressHostPort, EgressFull}, k)
}

// EgressAbility says what of a profile a provider enforces by itself. The zero
// value enforces nothing.
type EgressAbility struct {
	Kind EgressKind
	// NamePorts are the ports on which EgressHost lets an allowed name through.
	// Nil: all.
	NamePorts []uint16
	// Wildcards says that "*.example.com" means every name below and not the
	// name itself.
	Wildcards bool
	// MaxTargets is how many targets it takes. Zero: any number.
	MaxTargets int
}

// EgressRules are what a provider that is no gateway has to enforce: nothing
// but the targets leaves, unless Open is set.
type EgressRules struct {
	Open  bool // nothing is enforced; only where a policy says that this may be
	Allow []EgressTarget
}

// EgressTarget is what may be reached: a name or addresses, on some ports.
type EgressTarget struct {
	Host   string       // name, or "*.name"; empty for addresses
	Prefix netip.Prefix // addresses; not valid for a name
	Ports  []PortRange  // nil: those that the provider has no say about
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ Low, High uint16 }
