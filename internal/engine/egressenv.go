package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strings"
)

// Environment variables with which the owner of the machine configures all
// networks.
const (
	EnvEgressAllow     = "ATOLL_EGRESS_ALLOW"      // CIDRs that rules may allow although they are not public
	EnvEgressHostPorts = "ATOLL_EGRESS_HOST_PORTS" // ports of the machine's loopback that rules may open
	EnvEgressProxy     = "ATOLL_EGRESS_PROXY"      // http:// or socks5:// for all traffic; may contain a password
	EnvEgressRoots     = "ATOLL_EGRESS_ROOTS"      // PEM file of additional certificate authorities
	EnvEgressHosts     = "ATOLL_EGRESS_HOSTS"      // file of names with addresses, in the format of /etc/hosts
)

// EgressVariables lists them.
func EgressVariables() []string {
	return []string{EnvEgressAllow, EnvEgressHostPorts, EnvEgressProxy, EnvEgressRoots, EnvEgressHosts}
}

// EgressFingerprint returns a hash of a variable's value; values with the same
// meaning have the same hash. For a file, it is a hash of the content.
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

// EgressList splits the value of a variable with several items.
func EgressList(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}
