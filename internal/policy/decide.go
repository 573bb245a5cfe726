package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/atoll-run/atoll/sandbox"
)

// Flow is a connection that a sandbox opens. Name is the name behind the
// synthetic address that the sandbox dialled, in canonical form; empty if it
// dialled a real address. Addr is the real address: the dialled one, or an
// address of Name once it has been looked up.
type Flow struct {
	Name string
	Addr netip.Addr
	Port uint16
}

// Reason is the reason for a decision. The list is append-only: events and
// responses contain it.
type Reason string

// The reasons.
const (
	ByRule      Reason = "rule"        // a rule matched
	ByDefault   Reason = "default"     // no rule matched
	Offline     Reason = "offline"     // the profile's internet switch is off
	BadHost     Reason = "host"        // the host name is missing, invalid or ambiguous
	BadAddress  Reason = "address"     // the address is not public, and the operator does not allow it
	OwnPort     Reason = "own_port"    // the port belongs to the daemon
	NoName      Reason = "server_name" // the TLS hello has no server name, or an encrypted one
	Disagree    Reason = "agreement"   // server name, Host header and dialled name differ
	BadPath     Reason = "path"        // the path is ambiguous
	BadMethod   Reason = "method"      // the method is never allowed
	NoUpgrade   Reason = "upgrade"     // the rule allows no WebSocket
	Plaintext   Reason = "plaintext"   // a credential would be sent without TLS
	Limited     Reason = "limit"       // a limit of the rule is reached
	Filtered    Reason = "filter"      // a filter of the rule refused the body
	Placeholder Reason = "placeholder" // a placeholder was sent to a wrong host or in a wrong place

	AboveEgressLimit Reason = "ceiling" // a policy of the machine allows less than the rules of the sandbox
)

// Decision is the result of a check. The zero value is a refusal.
type Decision struct {
	Allow  bool
	Reason Reason
	Rule   string // name of the deciding rule; empty for none
	Number int    // of the rule, from 1; 0 for none
	Detail string // explanation for a person; safe to show

	// Inspect means that an allowed connection is only allowed provisionally: TLS
	// must be terminated, and each request must be decided by Request.
	Inspect bool
	// HostOnly means that the connection is decided by its host alone: all paths
	// and methods of that host can be reached.
	HostOnly bool
	Limits   sandbox.RuleLimits

	// The following fields are set for allowed requests.

	Path      string // to be forwarded instead of the original path
	Inject    []sandbox.Injection
	Filters   *Filters // nil: none
	Swaps     []SwapFor
	WebSocket bool
}

// SwapFor is a placeholder to be replaced in a request.
type SwapFor struct {
	Secret      string
	Placeholder string
	Places      Places
}

// Message explains the decision in one sentence.
func (d Decision) Message() string {
	if d.Detail != "" {
		return d.Detail
	}
	verb := "denied"
	if d.Allow {
		verb = "allowed"
	}
	if d.Rule != "" {
		return fmt.Sprintf("%s by %s", verb, d.Rule)
	}
	return verb + ", because no rule matches"
}

func refuse(why Reason, format string, args ...any) Decision {
	return Decision{Reason: why, Detail: fmt.Sprintf(format, args...)}
}

// CanResolve reports whether any connection to a name, in canonical form, could
// be allowed. Names for which it is false must not be looked up: even a DNS
// query can carry data out.
func (p *Policy) CanResolve(name string) bool {
	for _, c := range p.limits {
		if !c.CanResolve(name) {
			return false
		}
	}
	if !p.online || name == "" || checkName(name) != nil {
		return false
	}
	var denied []ports // ports that earlier rules deny entirely
	var room [12][]entry
	found := false
	merge(p.index.byName(room[:0], name), func(e entry) bool {
		r := &p.rules[e.rule]
		switch {
		case r.allows():
			found = !covered(e.ports, denied) && (name != sandbox.MachineHost || r.names(name))
		case !r.conditional():
			denied = append(denied, e.ports)
		}
		return !found
	})
	return found || p.fallback == sandbox.Allow && name != sandbox.MachineHost && !covered(ports{1, 65535}, denied)
}

// covered reports whether every port of p is in one of the ranges.
func covered(p ports, ranges []ports) bool {
	for low := int(p.low); low <= int(p.high); {
		next := low
		for _, r := range ranges {
			if int(r.low) <= low && low <= int(r.high) {
				next = max(next, int(r.high)+1)
			}
		}
		if next == low {
			return false
		}
		low = next
	}
	return true
}

// Connect decides whether a connection may be opened. For a name, call it
// before the lookup, without an address, and again for each address found. Only
// an allowed address may be dialled.
func (p *Policy) Connect(f Flow) Decision {
	return p.under(p.connect(f), func(c *Policy) Decision { return c.connect(f) })
}

func (p *Policy) connect(f Flow) Decision {
	f.Addr = f.Addr.Unmap()
	if d, ok := p.reachable(f); !ok {
		return d
	}
	var inspect *rule // the first rule that needs to inspect requests
	var first *rule   // the first rule that may allow some request
	for r := range p.candidates(f) {
		if r.inspects && inspect == nil {
			inspect = r
		}
		if r.allows() && first == nil {
			first = r
		}
		if !r.conditional() {
			return p.finalize(f, r, inspect, first)
		}
	}
	return p.finalize(f, nil, inspect, first)
}

// finalize decides about a connection. r is the last candidate, or nil for the
// profile's default.
func (p *Policy) finalize(f Flow, r, inspect, first *rule) Decision {
	ends := p.fallback
	if r != nil {
		ends = r.rule.Action
	}
	if ends == sandbox.Deny && first == nil {
		return p.denied(r)
	}
	if class := p.class(f); class != Public && first == nil {
		return refuse(BadAddress, "%s is %s, which only a rule can allow", f.Addr, class.words())
	}
	d := Decision{Allow: true, Reason: ByDefault}
	d.Inspect = inspect != nil || p.swapped(f) && (r == nil || r.rule.TLS != sandbox.Passthrough)
	d.HostOnly = !d.Inspect
	if r != nil && r.allows() && inspect == nil {
		d.by(r)
	} else if first != nil {
		d.Reason = ByRule
	}
	return d
}

func (d *Decision) by(r *rule) {
	d.Reason, d.Rule, d.Number = ByRule, r.label(), r.number
	if r.rule.Limits != nil {
		d.Limits = *r.rule.Limits
	}
}

// denied is the refusal by a rule, or by the profile's default if r is nil.
func (p *Policy) denied(r *rule) Decision {
	if r == nil {
		return Decision{Reason: ByDefault}
	}
	d := Decision{}
	d.by(r)
	return d
}

// reachable refuses connections that no rule can allow.
func (p *Policy) reachable(f Flow) (Decision, bool) {
	switch {
	case !p.online:
		return refuse(Offline, "the internet switch of the profile is off"), false
	case f.Port == 0 || f.Name == "" && !f.Addr.IsValid():
		return refuse(BadHost, "the host or the port is missing"), false
	case f.Name != "" && checkName(f.Name) != nil:
		return refuse(BadHost, "%q is not a host name: %v", clip(f.Name), checkName(f.Name)), false
	case f.Name == sandbox.MachineHost && !slices.Contains(p.operator.HostPorts, f.Port):
		return refuse(BadAddress, "port %d of this machine's loopback is not open to sandboxes", f.Port), false
	case !f.Addr.IsValid():
		return Decision{}, true
	}
	for _, own := range p.operator.Own {
		if own.Port() == f.Port && (own.Addr().IsUnspecified() || own.Addr().Unmap() == f.Addr) {
			return refuse(OwnPort, "port %d belongs to the daemon", f.Port), false
		}
	}
	class := p.operator.ClassOf(f.Addr)
	if f.Name == sandbox.MachineHost && f.Addr.IsLoopback() {
		return Decision{}, true
	}
	if class == Public || permits(p.operator.Allow, f.Addr, class) {
		return Decision{}, true
	}
	return refuse(BadAddress, "%s is %s, which the operator of this machine does not allow", f.Addr, class.words()), false
}

func (p *Policy) class(f Flow) Class {
	if !f.Addr.IsValid() {
		return Public // a name, not looked up yet
	}
	return p.operator.ClassOf(f.Addr)
}

func (p *Policy) swapped(f Flow) bool {
	for i := range p.swaps {
		if p.swaps[i].reaches(f) {
			return true
		}
	}
	return false
}

// Hello is a TLS ClientHello.
type Hello struct {
	ServerName string
	Encrypted  bool // it contains an encrypted hello (ECH)
}

// Hello decides whether a TLS hello matches an allowed connection. If its
// server name is missing or encrypted, only a rule about addresses can allow
// it.
func (p *Policy) Hello(f Flow, connected Decision, h Hello) Decision {
	f.Addr = f.Addr.Unmap()
	if !connected.Allow {
		return connected
	}
	if f.Name == "" && !connected.Inspect {
		return p.Inside(f, connected, h)
	}
	if h.ServerName == "" && f.Name != "" {
		return refuse(NoName, "the TLS client names no server; the connection is to %s", f.Name)
	}
	if h.ServerName != "" {
		if host, err := ParseHost(h.ServerName); err != nil || host.Name != f.Name || f.Name == "" && host.Addr != f.Addr {
			return refuse(Disagree, "the TLS client names %q; the connection is to %s", clip(h.ServerName), f.host())
		}
	}
	if h.Encrypted && connected.HostOnly {
		return refuse(NoName, "the TLS client hides the name of the server")
	}
	return connected
}

// Guards reports whether Inside must be called with the TLS hello of an allowed
// connection that is not inspected. That is the case if only a default allows
// the connection and some rules name hosts, because the connection may lead to
// one of those hosts.
func (p *Policy) Guards(f Flow) bool {
	f.Addr = f.Addr.Unmap()
	return p.guards(f) || slices.ContainsFunc(p.limits, func(c *Policy) bool { return c.guards(f) })
}

func (p *Policy) guards(f Flow) bool {
	d := p.connect(f)
	return p.names && d.Allow && d.Reason == ByDefault
}

// Inside decides whether a TLS hello may be sent on an allowed connection whose
// name need not match. If only a default allows the connection, the server name
// must be one that could be connected to without inspection.
func (p *Policy) Inside(f Flow, connected Decision, h Hello) Decision {
	f.Addr = f.Addr.Unmap()
	d := p.under(p.inside(f, h), func(c *Policy) Decision { return c.inside(f, h) })
	if !d.Allow {
		return d
	}
	return connected
}

func (p *Policy) inside(f Flow, h Hello) Decision {
	if !p.guards(f) {
		return p.connect(f)
	}
	if h.Encrypted {
		return refuse(NoName, "the TLS client hides the name of the server")
	}
	host, err := ParseHost(h.ServerName)
	switch {
	case h.ServerName != "" && err != nil:
		return refuse(BadHost, "the TLS client names %q: %v", clip(h.ServerName), err)
	case host.Name == "" || host.Name == f.Name:
		return p.connect(f)
	}
	d := p.connect(Flow{Name: host.Name, Addr: f.Addr, Port: f.Port})
	if d.Allow && d.Inspect {
		return refuse(Disagree, "the TLS client names %q, whose requests are looked into; the connection is to %s", clip(h.ServerName), f.host())
	}
	return d
}

func (f Flow) host() Host { return Host{Name: f.Name, Addr: f.Addr} }

// Request is an HTTP request on an allowed connection with Inspect set.
type Request struct {
	Method    string
	TLS       bool   // it came over TLS
	Host      string // the Host header or :authority, with or without a port
	Path      string // escaped, as sent, without the query
	WebSocket bool   // it asks for an upgrade to WebSocket
}

// Request decides about a request. f must have the real address.
func (p *Policy) Request(f Flow, req Request) Decision {
	return p.under(p.request(f, req), func(c *Policy) Decision { return c.request(f, req) })
}

func (p *Policy) request(f Flow, req Request) Decision {
	f.Addr = f.Addr.Unmap()
	if d, ok := p.reachable(f); !ok {
		return d
	}
	if d, ok := checkRequest(f, req); !ok {
		return d
	}
	path, err := parseRequestPath(req.Path)
	if err != nil {
		return refuse(BadPath, "%v", err)
	}
	for r := range p.candidates(f) {
		if r.matches(req.Method, &path) {
			return p.answer(f, r, req, path.normal)
		}
	}
	if p.fallback == sandbox.Deny {
		return p.denied(nil)
	}
	if class := p.class(f); class != Public {
		return refuse(BadAddress, "%s is %s, which only a rule can allow", f.Addr, class.words())
	}
	return p.allowed(f, Decision{Allow: true, Reason: ByDefault}, req, path.normal)
}

// checkRequest refuses requests that no rule can allow.
func checkRequest(f Flow, req Request) (Decision, bool) {
	if !isToken(req.Method) || req.Method == "CONNECT" || req.Method == "TRACE" {
		return refuse(BadMethod, "the method %q is never allowed", clip(req.Method)), false
	}
	host, port, err := SplitHostPort(req.Host)
	if err != nil {
		return refuse(BadHost, "the Host header is %q: %v", clip(req.Host), err), false
	}
	agrees := host.Name == f.Name
	if f.Name == "" {
		agrees = host.Addr == f.Addr
	}
	if !agrees || port != 0 && port != f.Port {
		return refuse(Disagree, "the Host header is %q; the connection is to %s", clip(req.Host), f.host()), false
	}
	return Decision{}, true
}

func (r *rule) matches(method string, path *requestPath) bool {
	if r.methods != nil && !r.methods[method] {
		return false
	}
	if len(r.paths) == 0 {
		return true
	}
	for _, pat := range r.paths {
		if pat.match(path, !r.allows()) {
			return true
		}
	}
	return false
}

// answer applies a rule that matches a request.
func (p *Policy) answer(f Flow, r *rule, req Request, path string) Decision {
	var d Decision
	d.by(r)
	if !r.allows() {
		return d
	}
	if req.WebSocket && !r.rule.WebSocket {
		return d.but(NoUpgrade, "%s allows no WebSocket", d.Rule)
	}
	if len(r.rule.Inject) > 0 && !p.mayCarry(f, req) {
		return d.but(Plaintext, "%s adds a credential, which would travel in the clear", d.Rule)
	}
	d.Allow, d.Inject, d.Filters, d.WebSocket = true, r.rule.Inject, r.filters, r.rule.WebSocket
	return p.allowed(f, d, req, path)
}

// but turns an allowed decision into a refusal.
func (d Decision) but(why Reason, format string, args ...any) Decision {
	return Decision{Reason: why, Rule: d.Rule, Number: d.Number, Detail: fmt.Sprintf(format, args...)}
}

// allowed completes the decision about an allowed request.
func (p *Policy) allowed(f Flow, d Decision, req Request, path string) Decision {
	d.Path = path
	for i := range p.swaps {
		s := &p.swaps[i]
		if s.reaches(f) && p.mayCarry(f, req) {
			d.Swaps = append(d.Swaps, SwapFor{Secret: s.Secret, Placeholder: s.Placeholder, Places: s.places})
		}
	}
	return d
}

// mayCarry reports whether a credential may be added to a request. Without TLS,
// it may only if the connection is known to lead to the host: not on port 443,
// and not if the profile sets its own DNS servers or proxy.
func (p *Policy) mayCarry(f Flow, req Request) bool {
	return req.TLS || f.Port != 443 && !p.upstream.steered()
}

// Placeholders returns the sandbox's placeholders, each with its secret's name.
// A request that contains one must be refused unless its decision has a Swap
// for it.
func (p *Policy) Placeholders() map[string]string {
	out := make(map[string]string, len(p.swaps))
	for i := range p.swaps {
		out[p.swaps[i].Placeholder] = p.swaps[i].Secret
	}
	return out
}
