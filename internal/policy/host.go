package policy

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// hosts maps a name to its canonical form, as browsers do, except that it
// allows underscores, which occur in DNS names.
var hosts = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.StrictDomainName(false))

const (
	maxHost  = 253 // bytes of a name, as in the DNS
	maxLabel = 63
)

// The errors of a host.
var (
	errEmptyHost = errors.New("it is empty")
	errLongHost  = errors.New("a label or the whole is too long")
	errBadHost   = errors.New("it contains a character that is not allowed in a host name")
	errOddNumber = errors.New("it is an address in an unusual notation")
)

// Host is either a name or an address.
type Host struct {
	Name string     // canonical: lower case, ASCII, without a trailing dot
	Addr netip.Addr // without a zone; an IPv4 address is never mapped
}

// String returns the canonical form.
func (h Host) String() string {
	if h.Name != "" || !h.Addr.IsValid() {
		return h.Name
	}
	return h.Addr.String()
}

// ParseHost parses a host without a port, as in a Host header, a TLS server
// name or a DNS question. Case, one trailing dot, and the Unicode form of a
// name make no difference. Text that resembles an address, such as "127.1" or
// "0x7f.0.0.1", is refused, because programs interpret it differently.
func ParseHost(s string) (Host, error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		if !ok || err != nil || !a.Is6() || a.Zone() != "" {
			return Host{}, errBadHost
		}
		return Host{Addr: a.Unmap()}, nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return Host{}, errBadHost
		}
		return Host{Addr: a.Unmap()}, nil
	}
	name, err := canonicalName(s)
	return Host{Name: name}, err
}

// canonicalName returns the form of a name that is used for comparison.
func canonicalName(s string) (string, error) {
	if len(s) > 4*maxHost {
		return "", errLongHost
	}
	name := s
	if !plain(s) {
		mapped, err := hosts.ToASCII(s)
		if err != nil || !utf8.ValidString(s) {
			return "", errBadHost
		}
		name = strings.ToLower(mapped)
		// If mapping the result again gives another name, the name could mean
		// different hosts to different programs.
		if again, err := hosts.ToASCII(name); err != nil || again != name {
			return "", errBadHost
		}
	}
	name = strings.TrimSuffix(name, ".")
	if err := checkName(name); err != nil {
		return "", err
	}
	return name, nil
}

// plain reports whether a name is lower-case ASCII without punycode labels, as
// most are. Such a name needs no mapping.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c >= 0x80 || c >= 'A' && c <= 'Z' {
			return false
		}
	}
	return !strings.Contains(s, "xn--")
}

// checkName checks that labels contain only letters, digits, hyphens and
// underscores, and have a length that DNS allows.
func checkName(name string) error {
	if name == "" {
		return errEmptyHost
	}
	if len(name) > maxHost {
		return errLongHost
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return errBadHost
		case len(label) > maxLabel:
			return errLongHost
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return errBadHost
			}
		}
		last = label
	}
	if numeric(last) {
		return errOddNumber
	}
	return nil
}

// numeric reports whether some programs would parse a name that ends in this
// label as an IPv4 address.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// SplitHostPort parses a host with an optional port, as in a Host header. Port
// 0 means that there is none.
func SplitHostPort(s string) (Host, uint16, error) {
	host, port, err := cutPort(s)
	if err != nil {
		return Host{}, 0, err
	}
	h, err := ParseHost(host)
	if err != nil || port == "" {
		return h, 0, err
	}
	n, err := parsePort(port)
	return h, n, err
}

// cutPort splits "host:port", "[v6]:port" and "[v6]"; an IPv6 address without
// brackets is a host.
func cutPort(s string) (host, port string, err error) {
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", "", errBadHost
		}
		host, rest := s[:end+1], s[end+1:]
		if rest == "" {
			return host, "", nil
		}
		port, ok := strings.CutPrefix(rest, ":")
		if !ok || port == "" {
			return "", "", errBadHost
		}
		return host, port, nil
	}
	if strings.Count(s, ":") != 1 {
		return s, "", nil
	}
	host, port, _ = strings.Cut(s, ":")
	if port == "" {
		return "", "", errBadPort
	}
	return host, port, nil
}

var errBadPort = errors.New("the port is not a number from 1 to 65535")

func parsePort(s string) (uint16, error) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, errBadPort
		}
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, errBadPort
	}
	return uint16(n), nil
}

// ports is a range of ports, both ends included.
type ports struct{ low, high uint16 }

func (p ports) contain(port uint16) bool { return p.low <= port && port <= p.high }

// webPorts are the ports of a pattern that specifies none.
var webPorts = []ports{{80, 80}, {443, 443}}

func parsePorts(s string) ([]ports, error) {
	if s == "" {
		return webPorts, nil
	}
	if s == "*" {
		return []ports{{1, 65535}}, nil
	}
	first, last, ranged := strings.Cut(s, "-")
	low, err := parsePort(first)
	if err != nil {
		return nil, err
	}
	high := low
	if ranged {
		if high, err = parsePort(last); err != nil {
			return nil, err
		}
	}
	if high < low {
		return nil, errBadPort
	}
	return []ports{{low, high}}, nil
}

// pattern is a parsed host pattern. Exactly one of its forms is set.
type pattern struct {
	any    bool         // matches every name
	name   string       // matches this name
	suffix string       // matches every subdomain of this name
	prefix netip.Prefix // matches these addresses
	ports  []ports
	named  bool // the pattern specifies ports
}

var errURL = errors.New("it is a URL: write the host alone, such as example.com, and paths as conditions of a profile")

// parsePattern parses a pattern of Rule.Hosts.
func parsePattern(s string) (p pattern, err error) {
	if strings.Contains(s, "://") {
		return pattern{}, errURL
	}
	host, port, err := cutPattern(s)
	if err != nil {
		return p, err
	}
	p.named = port != ""
	if p.ports, err = parsePorts(port); err != nil {
		return p, err
	}
	if host == "*" {
		p.any = true
		return p, nil
	}
	if below, ok := strings.CutPrefix(host, "*."); ok {
		p.suffix, err = canonicalName(below)
		return p, err
	}
	if prefix, err := netip.ParsePrefix(strings.Trim(host, "[]")); err == nil {
		p.prefix, err = cleanPrefix(prefix)
		return p, err
	}
	h, err := ParseHost(host)
	if err != nil {
		return p, err
	}
	if h.Name != "" {
		p.name = h.Name
		return p, nil
	}
	p.prefix = netip.PrefixFrom(h.Addr, h.Addr.BitLen())
	return p, nil
}

// cutPattern is cutPort for patterns, whose port may be a range.
func cutPattern(s string) (host, port string, err error) {
	if strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1 {
		return cutPort(s)
	}
	return s, "", nil
}

var errBadPrefix = errors.New("the addresses have bits beyond the length of the prefix, or are IPv4 in the form of IPv6")

// cleanPrefix refuses ambiguous prefixes.
func cleanPrefix(p netip.Prefix) (netip.Prefix, error) {
	if p.Addr().Is4In6() || p.Masked() != p {
		return netip.Prefix{}, errBadPrefix
	}
	return p, nil
}

// overlaps reports whether some host and port match both patterns.
func (p pattern) overlaps(q pattern) bool {
	if !p.sharesPort(q) {
		return false
	}
	if p.prefix.IsValid() || q.prefix.IsValid() {
		return p.prefix.IsValid() && q.prefix.IsValid() && p.prefix.Overlaps(q.prefix)
	}
	switch {
	case p.any || q.any:
		return true
	case p.name != "" && q.name != "":
		return p.name == q.name
	case p.name != "":
		return below(p.name, q.suffix)
	case q.name != "":
		return below(q.name, p.suffix)
	}
	return p.suffix == q.suffix || below(p.suffix, q.suffix) || below(q.suffix, p.suffix)
}

func (p pattern) sharesPort(q pattern) bool {
	for _, a := range p.ports {
		for _, b := range q.ports {
			if a.low <= b.high && b.low <= a.high {
				return true
			}
		}
	}
	return false
}

// below reports whether name is a proper subdomain of parent.
func below(name, parent string) bool {
	return len(name) > len(parent)+1 && strings.HasSuffix(name, parent) && name[len(name)-len(parent)-1] == '.'
}
