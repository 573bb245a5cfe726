package control

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strings"
)

// Variables with which the owner of the machine decides about all networks.
const (
	EnvEgressAllow     = "ATOLL_EGRESS_ALLOW"      // CIDRs that rules may allow although they are not public
	EnvEgressHostPorts = "ATOLL_EGRESS_HOST_PORTS" // ports of the machine's loopback that rules may open
	EnvEgressProxy     = "ATOLL_EGRESS_PROXY"      // http:// or socks5:// for all that leaves; may hold a password
	EnvEgressRoots     = "ATOLL_EGRESS_ROOTS"      // PEM file of authorities besides the machine's
	EnvEgressHosts     = "ATOLL_EGRESS_HOSTS"      // file of names with addresses, as /etc/hosts
)

// EgressVariables lists them.
func EgressVariables() []string {
	return []string{EnvEgressAllow, EnvEgressHostPorts, EnvEgressProxy, EnvEgressRoots, EnvEgressHosts}
}

// EgressFingerprint is equal for values of one of the variables that mean the
// same, and tells nothing else of them. That of a file is one of its content.
func EgressFingerprint(variable, value string) string {
	switch variable {
	case EnvEgressAllow, EnvEgressHostPorts:
		items := EgressList(value)
		slices.Sort(items)
		value = strings.Join(slices.Compact(items), ",")
	case EnvEgressRoots, EnvEgressHosts:
		content, err := os.ReadFile(value)
		if err != nil {
			return "unreadable"
		}
		value = string(content)
	}
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

// EgressList are the items of a variable that holds several.
func EgressList(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}
