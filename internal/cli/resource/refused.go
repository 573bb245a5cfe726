package resource

import "regexp"

// OpFlow is the operation of events about what sandboxes send.
const OpFlow = "egress.flow"

// operatorRE finds the address in a refusal that only the owner of the machine can
// lift.
var operatorRE = regexp.MustCompile(`([0-9A-Fa-f:.]+) is an? [a-z -]+, which the operator of this machine does not allow`)

// hostPortRE finds the port of the machine in another one.
var hostPortRE = regexp.MustCompile(`port ([0-9]+) of this machine's loopback is not open`)

// OperatorFlag returns the flag with which the operator allows the refused
// destination; empty if a rule is enough.
func OperatorFlag(subject string) string {
	if m := hostPortRE.FindStringSubmatch(subject); m != nil {
		return "atoll up --egress-host-ports " + m[1]
	}
	m := operatorRE.FindStringSubmatch(subject)
	if m == nil {
		return ""
	}
	return "atoll up --egress-allow " + m[1]
}
