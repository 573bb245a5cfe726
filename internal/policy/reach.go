package policy

import (
	"net/netip"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

var loopbacks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// CheckReach refuses rules that allow a sandbox's own loopback. Such
// connections never leave the sandbox, so the rules would never match.
func CheckReach(profile sandbox.Profile) error {
	for i := range profile.Rules {
		r := &profile.Rules[i]
		if r.Action != sandbox.Allow {
			continue
		}
		for _, h := range r.Hosts {
			p, err := parsePattern(h)
			if err != nil || !p.loops() {
				continue // Compile reports the error
			}
			return &sandbox.Error{
				Code: sandbox.CodeInvalid, Subject: field(i+1, "hosts"), Message: clip(h) + " never matches: inside a sandbox that is the sandbox itself",
				Hint: "for a service on the machine's loopback, allow " + sandbox.MachineHost + ":PORT, and have the owner of the machine open the port with: atoll up --egress-host-ports PORT",
			}
		}
	}
	return nil
}

// loops reports whether a pattern matches only loopback hosts.
func (p pattern) loops() bool {
	if p.prefix.IsValid() {
		for _, l := range loopbacks {
			if l.Overlaps(p.prefix) && p.prefix.Bits() >= l.Bits() {
				return true
			}
		}
		return false
	}
	name := p.name + p.suffix
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}
