package node

import (
	"net/netip"
	"os"
	"strings"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// What the owner of the machine decides about all networks, in variables,
// because the address of a proxy may hold a password.
const (
	envAllow = "ATOLL_EGRESS_ALLOW" // CIDRs that rules may allow although they are not public
	envProxy = "ATOLL_EGRESS_PROXY" // http:// or socks5:// for all that leaves
	envRoots = "ATOLL_EGRESS_ROOTS" // PEM file of authorities besides the machine's
	envHosts = "ATOLL_EGRESS_HOSTS" // file of names with addresses, as /etc/hosts
)

// Operator is what the owner of the machine says in flags, in place of the
// variables. What is empty is looked for there.
type Operator struct {
	Allow []string // addresses and CIDRs
	Proxy string   // may hold a password
	Roots string   // file
	Hosts string   // file
}

// SetOperator is to be called before the first sandbox is made.
func (n *Node) SetOperator(o Operator) { n.operator = o }

// Operator reads what the owner of the machine decides about all networks.
func (n *Node) Operator() (gateway.Settings, error) {
	s := gateway.Settings{}
	said := map[string]string{
		envAllow: strings.Join(n.operator.Allow, ","), envProxy: n.operator.Proxy, envRoots: n.operator.Roots, envHosts: n.operator.Hosts,
	}
	text := func(name string) string {
		if said[name] != "" {
			return said[name]
		}
		v, _ := n.env(name)
		return v
	}
	s.Proxy = text(envProxy)
	for c := range strings.FieldsFuncSeq(text(envAllow), func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := parsePrefix(c)
		if err != nil {
			return s, unusable(envAllow, c+" is neither an address nor a CIDR")
		}
		s.Private = append(s.Private, p)
	}
	if file := text(envRoots); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return s, unusable(envRoots, err.Error())
		}
		s.Roots = pem
	}
	if file := text(envHosts); file != "" {
		hosts, err := gateway.ReadHosts(file)
		if err != nil {
			return s, unusable(envHosts, err.Error())
		}
		s.Hosts = hosts
	}
	return s, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}

func unusable(variable, message string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "egress.configure", Subject: variable, Message: message}
}

// settings are those of the machine with what its owner adds.
func settings(operator gateway.Settings, own []netip.AddrPort) gateway.Settings {
	s := gateway.MachineSettings()
	s.Private, s.Proxy, s.Roots, s.Own = operator.Private, operator.Proxy, operator.Roots, own
	for name, addrs := range operator.Hosts {
		s.Hosts[name] = addrs
	}
	return s
}
