// Package enforce says which parts of an egress profile a provider enforces
// itself.
package enforce

import (
	"slices"

	"github.com/atoll-run/atoll/sandbox"
)

// Kind is the finest kind of egress rule that a provider can enforce. The
// list is append-only.
type Kind string

// The kinds. Each can do more than the one before.
const (
	None     Kind = "none"      // nothing is enforced
	Switch   Kind = "switch"    // all or nothing
	CIDR     Kind = "cidr"      // addresses
	CIDRPort Kind = "cidr_port" // addresses and ports
	Host     Kind = "host"      // host names and addresses
	HostPort Kind = "host_port" // host names, addresses and ports
	Full     Kind = "full"      // HTTP requests: EgressRules.Requests
)

// Rank orders the kinds: a kind of a higher rank enforces more. It is negative
// for an unknown kind.
func (k Kind) Rank() int {
	return slices.Index([]Kind{None, Switch, CIDR, CIDRPort, Host, HostPort, Full}, k)
}

// Ability says which parts of a profile a provider enforces itself. The
// zero value enforces nothing.
type Ability struct {
	Kind Kind
	// NamePorts are the ports on which a provider of the kind Host allows
	// connections to an allowed name. Nil: all.
	NamePorts []uint16
	// NamesOnly says that rules can have host names but no addresses.
	NamesOnly bool
	// Filters are the filters that a provider of the kind Full supports.
	Filters []sandbox.FilterType
	// Wildcards says that "*.example.com" matches every name below example.com, but
	// not example.com itself.
	Wildcards bool
	// MaxTargets is the maximum number of targets. Zero: no maximum.
	MaxTargets int
	// GatewaySetting is the setting with which the provider uses Atoll's gateway for
	// what it cannot enforce, for messages. Empty: there is none.
	GatewaySetting string
}
