package policy

import (
	"net/netip"
	"strings"
)

// Class is a kind of IP address.
type Class string

// The classes. Only Public addresses can be reached unless the operator allows
// others.
const (
	Public    Class = "public"
	Private   Class = "private"    // a private network
	Loopback  Class = "loopback"   // this machine
	LinkLocal Class = "link_local" // the local link
	Metadata  Class = "metadata"   // cloud metadata services, which hand out credentials
	Multicast Class = "multicast"  // multicast
	Reserved  Class = "reserved"   // unassigned, or for documentation and tests
	Embedding Class = "embedding"  // contains an IPv4 address that a router may extract
	Machine   Class = "machine"    // a public address that belongs to this machine
)

// words describes the class for use in a sentence.
func (c Class) words() string {
	if c == Machine {
		return "a public address of this machine"
	}
	article := "a "
	if strings.ContainsRune("aeiou", rune(c[0])) {
		article = "an "
	}
	return article + strings.ReplaceAll(string(c), "_", "-") + " address"
}

// ClassOf is the function [ClassOf], which also recognises the machine's own
// addresses.
func (o Operator) ClassOf(a netip.Addr) Class {
	class := ClassOf(a)
	if class == Public && o.Machine != nil && o.Machine(a.Unmap()) {
		return Machine
	}
	return class
}

// Permits reports whether an address is public, or allowed by the operator.
func (o Operator) Permits(a netip.Addr) bool {
	class := o.ClassOf(a)
	return class == Public || permits(o.Allow, a.Unmap(), class)
}

// metadata are the addresses at which clouds serve credentials to any process
// on a machine. Some are in ranges that are otherwise public.
var metadata = set(
	"169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.169.253", "169.254.169.123", "169.254.0.23", "169.254.10.10",
	"100.100.100.200", "100.100.100.110", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd00:ec2::253", "fd20:ce::254", "fe80::a9fe:a9fe",
)

func set(addrs ...string) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, a := range addrs {
		out[netip.MustParseAddr(a)] = true
	}
	return out
}

// ranges are the addresses that are not public, from the IANA registries of
// special-purpose addresses.
var ranges = []struct {
	prefix netip.Prefix
	class  Class
}{
	{netip.MustParsePrefix("0.0.0.0/8"), Loopback}, // this host, on this network
	{netip.MustParsePrefix("10.0.0.0/8"), Private},
	{netip.MustParsePrefix("100.64.0.0/10"), Private}, // carrier-grade NAT
	{netip.MustParsePrefix("127.0.0.0/8"), Loopback},
	{netip.MustParsePrefix("169.254.0.0/16"), LinkLocal},
	{netip.MustParsePrefix("172.16.0.0/12"), Private},
	{netip.MustParsePrefix("192.0.0.0/24"), Reserved},
	{netip.MustParsePrefix("192.0.2.0/24"), Reserved},
	{netip.MustParsePrefix("192.31.196.0/24"), Reserved},
	{netip.MustParsePrefix("192.52.193.0/24"), Reserved},
	{netip.MustParsePrefix("192.88.99.0/24"), Embedding}, // 6to4 relays
	{netip.MustParsePrefix("192.168.0.0/16"), Private},
	{netip.MustParsePrefix("192.175.48.0/24"), Reserved},
	{netip.MustParsePrefix("198.18.0.0/15"), Reserved}, // includes the gateway's synthetic addresses
	{netip.MustParsePrefix("198.51.100.0/24"), Reserved},
	{netip.MustParsePrefix("203.0.113.0/24"), Reserved},
	{netip.MustParsePrefix("224.0.0.0/4"), Multicast},
	{netip.MustParsePrefix("240.0.0.0/4"), Reserved}, // includes broadcast
	{netip.MustParsePrefix("::/128"), Loopback},
	{netip.MustParsePrefix("::1/128"), Loopback},
	{netip.MustParsePrefix("::/96"), Embedding},           // IPv4-compatible
	{netip.MustParsePrefix("::ffff:0:0:0/96"), Embedding}, // IPv4-translated
	{netip.MustParsePrefix("64:ff9b::/96"), Embedding},    // NAT64
	{netip.MustParsePrefix("64:ff9b:1::/48"), Embedding},
	{netip.MustParsePrefix("100::/64"), Reserved},
	{netip.MustParsePrefix("100:0:0:1::/64"), Reserved},
	{netip.MustParsePrefix("2001::/23"), Embedding}, // Teredo and other protocols
	{netip.MustParsePrefix("2001:db8::/32"), Reserved},
	{netip.MustParsePrefix("2002::/16"), Embedding}, // 6to4
	{netip.MustParsePrefix("2620:4f:8000::/48"), Reserved},
	{netip.MustParsePrefix("3fff::/20"), Reserved},
	{netip.MustParsePrefix("5f00::/16"), Reserved},
	{netip.MustParsePrefix("fc00::/7"), Private},
	{netip.MustParsePrefix("fe80::/10"), LinkLocal},
	{netip.MustParsePrefix("fec0::/10"), Private},
	{netip.MustParsePrefix("ff00::/8"), Multicast},
}

// global is the range of public IPv6 addresses; all others are unassigned.
var global = netip.MustParsePrefix("2000::/3")

// ClassOf returns the class of a. An IPv4-mapped IPv6 address has the class of
// its IPv4 address. An address with a zone, or an invalid one, is Reserved.
func ClassOf(a netip.Addr) Class {
	if !a.IsValid() || a.Zone() != "" {
		return Reserved
	}
	a = a.Unmap()
	if metadata[a] {
		return Metadata
	}
	for _, r := range ranges {
		if r.prefix.Contains(a) {
			return r.class
		}
	}
	if a.Is6() && !global.Contains(a) {
		return Reserved
	}
	return Public
}

// permits reports whether the operator allows an address that is not public. A
// metadata address must be listed by itself, as a prefix of full length,
// because an operator who allows a network does not intend to allow that.
func permits(allowed []netip.Prefix, a netip.Addr, class Class) bool {
	for _, p := range allowed {
		if p.Contains(a) && (class != Metadata || p.IsSingleIP()) {
			return true
		}
	}
	return false
}
