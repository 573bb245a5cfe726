package node

import (
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// Operator has settings of the machine's owner from flags. Empty fields are
// read from the environment.
type Operator struct {
	Allow []string // addresses and CIDRs
	Proxy string   // may hold a password
	Roots string   // file
	Hosts string   // file

	HostPorts []string
}

// SetOperator sets them. Call it before the first sandbox is created.
func (n *Node) SetOperator(o Operator) { n.operator = o }

// EgressFingerprints returns fingerprints of non-empty settings, by variable;
// see engine.EgressFingerprint.
func (n *Node) EgressFingerprints() map[string]string {
	all := map[string]string{}
	for _, name := range engine.EgressVariables() {
		if value := n.setting(name); value != "" {
			all[name] = engine.EgressFingerprint(name, value)
		}
	}
	return all
}

// setting returns the value of a flag, otherwise that of its variable.
func (n *Node) setting(variable string) string {
	o := n.operator
	said := map[string]string{
		engine.EnvEgressAllow: strings.Join(o.Allow, ","), engine.EnvEgressHostPorts: strings.Join(o.HostPorts, ","),
		engine.EnvEgressProxy: o.Proxy, engine.EnvEgressRoots: o.Roots, engine.EnvEgressHosts: o.Hosts,
	}[variable]
	if said == "" {
		said, _ = n.env(variable)
	}
	return said
}

// Operator returns the machine owner's network settings.
func (n *Node) Operator() (gateway.Settings, error) {
	s := gateway.Settings{Proxy: n.setting(engine.EnvEgressProxy)}
	for _, c := range engine.EgressList(n.setting(engine.EnvEgressAllow)) {
		p, err := parsePrefix(c)
		if err != nil {
			return s, unusable(engine.EnvEgressAllow, c+" is neither an address nor a CIDR")
		}
		s.Private = append(s.Private, p)
	}
	for _, c := range engine.EgressList(n.setting(engine.EnvEgressHostPorts)) {
		port, err := strconv.ParseUint(c, 10, 16)
		if err != nil || port == 0 {
			return s, unusable(engine.EnvEgressHostPorts, c+" is not a port")
		}
		s.HostPorts = append(s.HostPorts, uint16(port))
	}
	if file := n.setting(engine.EnvEgressRoots); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return s, unusable(engine.EnvEgressRoots, err.Error())
		}
		s.Roots = pem
	}
	if file := n.setting(engine.EnvEgressHosts); file != "" {
		hosts, err := gateway.ReadHosts(file)
		if err != nil {
			return s, unusable(engine.EnvEgressHosts, err.Error())
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

// settings returns the machine's settings with those of its owner.
func settings(operator gateway.Settings, own []netip.AddrPort) gateway.Settings {
	s := gateway.MachineSettings()
	s.Private, s.HostPorts, s.Proxy, s.Roots, s.Own = operator.Private, operator.HostPorts, operator.Proxy, operator.Roots, own
	for name, addrs := range operator.Hosts {
		s.Hosts[name] = addrs
	}
	return s
}
