package policy

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

var schemePorts = map[string]uint16{"https": 443, "wss": 443, "http": 80, "ws": 80, "tcp": 0}

// Explain returns what would happen to a request. It makes no network calls, so
// addresses of names are not checked. target is a URL with the scheme https,
// http, wss, ws, or tcp for a plain connection; without a scheme it is https.
func (p *Policy) Explain(method, target string) (operator.Explanation, error) {
	if !strings.Contains(target, "://") {
		target = "https://" + target
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.User != nil {
		return operator.Explanation{}, invalid("url", "%q is not a URL such as https://api.example.com/v1", clip(target))
	}
	port, known := schemePorts[u.Scheme]
	if !known {
		return operator.Explanation{}, invalid("url", "the scheme is not one of https, http, wss, ws and tcp")
	}
	host, named, err := SplitHostPort(u.Host)
	if err != nil {
		return operator.Explanation{}, invalid("url", "%q: %v", clip(u.Host), err)
	}
	if named != 0 {
		port = named
	}
	f := Flow{Name: host.Name, Addr: host.Addr, Port: port}
	d := p.Connect(f)
	e := operator.Explanation{Resolves: f.Name != "" && p.CanResolve(f.Name), Inspect: d.Inspect, HostOnly: d.HostOnly}
	req := Request{
		Method: strings.ToUpper(method), TLS: u.Scheme == "https" || u.Scheme == "wss", Host: u.Host,
		Path: rawPath(u), WebSocket: strings.HasPrefix(u.Scheme, "ws"),
	}
	if d.Allow && d.Inspect {
		if u.Scheme == "tcp" {
			return p.explained(e, f, Decision{Reason: NoName, Detail: "the requests are looked into, so that only HTTP, with TLS or without, gets through"}, nil), nil
		}
		d = p.Request(f, req)
	}
	return p.explained(e, f, d, &req), nil
}

// rawPath returns the path as a client would send it.
func rawPath(u *url.URL) string {
	if path := u.EscapedPath(); path != "" {
		return path
	}
	return "/"
}

func (p *Policy) explained(e operator.Explanation, f Flow, d Decision, req *Request) operator.Explanation {
	e.Allow, e.Reason, e.Rule, e.Message, e.Path, e.Limits = d.Allow, string(d.Reason), d.Rule, d.Message(), d.Path, d.Limits
	for _, i := range d.Inject {
		e.Inject = append(e.Inject, i.Secrets()...)
		for _, part := range i.Parts {
			if part.Audience != "" {
				e.Inject = append(e.Inject, sandbox.IdentityToken(part.Audience))
			}
		}
	}
	e.Steps = p.steps(f, req, d)
	e.Operator = p.operator.about(f, d)
	return e
}

// about returns notes about the operator's settings that affect a flow.
func (o *Operator) about(f Flow, d Decision) (notes []string) {
	class := Public
	if f.Addr.IsValid() {
		class = o.ClassOf(f.Addr)
	}
	switch {
	case class != Public && permits(o.Allow, f.Addr, class):
		notes = append(notes, fmt.Sprintf("%s is %s, which the operator lets rules allow", f.Addr, class.words()))
	case f.Name != "" && f.Name != sandbox.MachineHost && d.Allow && len(o.Allow) > 0:
		notes = append(notes, "the name may have addresses that are not public in: "+prefixes(o.Allow))
	}
	if f.Name == sandbox.MachineHost {
		if len(o.HostPorts) == 0 {
			return append(notes, "the operator opens no port of this machine's loopback")
		}
		return append(notes, "the operator opens these ports of this machine's loopback: "+strings.Trim(fmt.Sprint(o.HostPorts), "[]"))
	}
	if o.Proxied && d.Allow {
		notes = append(notes, "it leaves through the operator's proxy, which looks names up, so that the addresses of names are not checked here")
	}
	return notes
}

func prefixes(all []netip.Prefix) string {
	var names []string
	for _, p := range all {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

// maxSteps limits the length of an explanation.
const maxSteps = 100

// steps lists the rules that apply to a host, up to the one that decided.
func (p *Policy) steps(f Flow, req *Request, d Decision) []operator.ExplainStep {
	steps := []operator.ExplainStep{}
	var path *requestPath
	if req != nil {
		if parsed, err := parseRequestPath(req.Path); err == nil {
			path = &parsed
		}
	}
	if _, ok := p.reachable(f); !ok {
		return steps
	}
	for r := range p.candidates(f) {
		s := operator.ExplainStep{Rule: r.label(), Action: r.rule.Action, Matches: r.number == d.Number}
		if !s.Matches && req != nil && path != nil {
			s.Why = r.mismatch(req.Method, path)
		}
		steps = append(steps, s)
		if s.Matches || len(steps) == maxSteps {
			break
		}
	}
	return steps
}

// mismatch returns why a rule for the host does not match a request.
func (r *rule) mismatch(method string, path *requestPath) string {
	switch {
	case r.matches(method, path):
		return ""
	case r.methods != nil && !r.methods[method]:
		return fmt.Sprintf("the method %s is not one of %s", clip(method), strings.Join(r.rule.Methods, ", "))
	}
	return fmt.Sprintf("the path %s does not match", clip(path.normal))
}
