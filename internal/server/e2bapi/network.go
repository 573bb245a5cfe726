package e2bapi

import (
	"cmp"
	"math"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// network says what a sandbox may reach, and who may reach it.
type network struct {
	AllowPublicTraffic *bool            `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string         `json:"allowOut,omitempty"`
	DenyOut            []string         `json:"denyOut,omitempty"`
	EgressProxy        *egressProxy     `json:"egressProxy,omitempty"`
	MaskRequestHost    string           `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []int            `json:"httpsPorts,omitempty"`
	DNSServers         []string         `json:"dnsServers,omitempty"`
	Rules              map[string][]act `json:"rules,omitempty"`
}

// egressProxy is a SOCKS5 proxy. Its credentials are accepted but never shown.
type egressProxy struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	TLS      *struct {
		Enabled    *bool  `json:"enabled,omitempty"`
		ServerName string `json:"serverName,omitempty"`
		CACert     string `json:"caCert,omitempty"`
	} `json:"tls,omitempty"`
}

// proxy converts the proxy to a sandbox.UpstreamProxy.
func (e *egressProxy) proxy() (*sandbox.UpstreamProxy, error) {
	if e == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	if e.Password != "" && e.Username == "" {
		return nil, invalid("network.egressProxy.password", "needs a user name")
	}
	p := &sandbox.UpstreamProxy{Address: e.Address, Username: e.Username, Password: e.Password}
	if t := e.TLS; t != nil && (t.Enabled == nil || *t.Enabled) {
		p.TLS = &sandbox.ProxyTLS{ServerName: t.ServerName, CA: t.CACert}
	}
	return p, nil
}

// toProxy is the reverse of proxy, without credentials.
func toProxy(p *sandbox.UpstreamProxy) *egressProxy {
	if p == nil {
		return nil
	}
	e := &egressProxy{Address: p.Address, Username: p.Username}
	if p.TLS != nil {
		on := true
		e.TLS = &struct {
			Enabled    *bool  `json:"enabled,omitempty"`
			ServerName string `json:"serverName,omitempty"`
			CACert     string `json:"caCert,omitempty"`
		}{Enabled: &on, ServerName: p.TLS.ServerName}
	}
	return e
}

// servers returns the addresses of name servers. E2B accepts only IPv4.
func (n *network) servers() ([]string, error) {
	for _, s := range n.DNSServers {
		if a, err := netip.ParseAddr(s); err != nil || !a.Is4() {
			return nil, invalid("network.dnsServers", "%.80q is not an IPv4 address", s)
		}
	}
	return n.DNSServers, nil
}

// act describes changes of requests to a domain.
type act struct {
	Transform struct {
		Headers map[string]string `json:"headers"`
	} `json:"transform"`
}

// The names of the rules that represent a network. They identify the rules when
// it is converted back.
const (
	ruleAllow     = "allowOut"
	ruleDeny      = "denyOut"
	ruleServers   = "dnsServers"
	ruleTransform = "transform "
)

// E2B's limits of rules.
const (
	maxDomains     = 10
	maxDomainLen   = 128
	maxHeaders     = 20
	maxHeaderName  = 64
	maxHeaderValue = 2048
	maxHTTPSPorts  = 32
)

// label adds labels for settings of the ports.
func (n *network) label(labels map[string]string) error {
	if n == nil {
		return nil
	}
	if n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic {
		labels[labelPrivate] = "true"
	}
	if n.MaskRequestHost != "" {
		labels[labelHost] = n.MaskRequestHost
	}
	var secured []string
	for _, port := range n.HTTPSPorts {
		if port < 1 || port > math.MaxUint16 || port == envdPort {
			return invalid("network.httpsPorts", "%d is not a port of a program in the sandbox", port)
		}
		if text := strconv.Itoa(port); !slices.Contains(secured, text) {
			secured = append(secured, text)
		}
	}
	if len(secured) > maxHTTPSPorts {
		return invalid("network.httpsPorts", "has more than %d ports", maxHTTPSPorts)
	}
	if len(secured) > 0 {
		labels[labelHTTPS] = strings.Join(secured, ",")
	}
	return nil
}

// securedPorts returns the ports of a sandbox that serve HTTPS.
func securedPorts(s *sandbox.Sandbox) (ports []int) {
	for text := range strings.SplitSeq(s.Labels[labelHTTPS], ",") {
		if n, err := strconv.Atoi(text); err == nil {
			ports = append(ports, n)
		}
	}
	return ports
}

// spec converts the network to a sandbox.Network. internet allows everything
// that is not denied. tokens are the audiences of the sandbox's tokens. A
// sandbox without requested or allowed traffic has no network.
func (n *network) spec(internet bool, tokens map[string]string) (sandbox.Network, error) {
	if n == nil {
		n = &network{}
	}
	if !internet && n.AllowOut == nil && n.DenyOut == nil && n.Rules == nil && n.EgressProxy == nil && n.DNSServers == nil {
		return sandbox.Network{}, nil
	}
	profile, err := n.profile(internet, tokens)
	return sandbox.Network{Inline: &profile}, err
}

// profile orders E2B's unordered rules: allow rules, deny rules, the default. A
// transform does not allow its domain, so it precedes the rule that allows it.
func (n *network) profile(internet bool, tokens map[string]string) (p sandbox.Profile, err error) {
	p.Default = sandbox.Deny
	if p.Proxy, err = n.EgressProxy.proxy(); err != nil {
		return p, err
	}
	if p.DNSServers, err = n.servers(); err != nil {
		return p, err
	}
	allowed, names, err := targets("allowOut", n.AllowOut, true)
	if err != nil {
		return p, err
	}
	denied, _, err := targets("denyOut", n.DenyOut, false)
	if err != nil {
		return p, err
	}
	everything := slices.ContainsFunc(n.DenyOut, isEverything)
	if names && !everything && internet {
		return p, invalid("allowOut", "with a domain in it, denyOut has to have 0.0.0.0/0")
	}
	if internet && !everything {
		p.Default = sandbox.Allow
	}
	transforms, err := n.transforms(tokens)
	if err != nil {
		return p, err
	}
	var open []sandbox.Rule // for domains without a rule
	for _, t := range transforms {
		if covered(n.AllowOut, t.Hosts[0]) {
			p.Rules = append(p.Rules, t)
		} else if p.Default == sandbox.Allow {
			open = append(open, t)
		}
	}
	if len(allowed) > 0 {
		p.Rules = append(p.Rules, sandbox.Rule{Name: ruleAllow, Action: sandbox.Allow, Hosts: allowed, WebSocket: true})
	}
	// As at E2B: all traffic to them, with a name among what is allowed. A sandbox
	// does not reach the machine's loopback, only the gateway does.
	outside := slices.DeleteFunc(slices.Clone(p.DNSServers), func(s string) bool { return strings.HasPrefix(s, "127.") })
	if names && len(outside) > 0 {
		servers, _, err := targets("dnsServers", outside, false)
		if err != nil {
			return p, err
		}
		p.Rules = append(p.Rules, sandbox.Rule{Name: ruleServers, Action: sandbox.Allow, Hosts: servers})
	}
	if len(denied) > 0 {
		p.Rules = append(p.Rules, sandbox.Rule{Name: ruleDeny, Action: sandbox.Deny, Hosts: denied})
	}
	p.Rules = append(p.Rules, open...)
	return p, nil
}

// targets returns patterns for destinations: addresses with all ports, names
// with the ports of HTTP and HTTPS.
func targets(field string, all []string, named bool) (patterns []string, names bool, err error) {
	for _, one := range all {
		switch prefix, ok := address(one); {
		case ok && prefix.Addr().Is4():
			patterns = append(patterns, prefix.String()+":*")
		case ok:
			patterns = append(patterns, "["+prefix.String()+"]:*")
		case !named:
			return nil, false, invalid(field, "%.80q is neither an address nor a CIDR block", one)
		default:
			names = true
			patterns = append(patterns, strings.ToLower(one))
		}
	}
	return patterns, names, nil
}

func address(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err == nil
}

func isEverything(s string) bool {
	p, ok := address(s)
	return ok && p.Bits() == 0
}

// covered reports whether a domain is allowed.
func covered(allowed []string, domain string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool {
		a = strings.ToLower(a)
		below, wild := strings.CutPrefix(a, "*.")
		return a == domain || a == "*" || wild && strings.HasSuffix(domain, "."+below)
	})
}

var placeholder = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$\{e2b\.(secrets|identity\.tokens|[a-z.]+)\.([^{}]+)\}`)
})

// transforms returns a rule for each domain, the most specific first, because
// only that one counts.
func (n *network) transforms(tokens map[string]string) (rules []sandbox.Rule, err error) {
	if len(n.Rules) > maxDomains {
		return nil, invalid("network.rules", "has more than %d domains", maxDomains)
	}
	for domain, acts := range n.Rules {
		switch {
		case domain == "" || domain == "*" || len(domain) > maxDomainLen:
			return nil, invalid("network.rules", "%.40q is not a domain", domain)
		case len(acts) > 1:
			return nil, invalid("network.rules", "%s has more than one transform", domain)
		case len(acts) == 0 || len(acts[0].Transform.Headers) == 0:
			continue
		}
		domain = strings.ToLower(domain)
		inject, err := injections(acts[0].Transform.Headers, tokens)
		if err != nil {
			return nil, err
		}
		rules = append(rules, sandbox.Rule{Name: ruleTransform + domain, Action: sandbox.Allow, Hosts: []string{domain}, Inject: inject})
	}
	slices.SortFunc(rules, func(a, b sandbox.Rule) int {
		x, y := a.Hosts[0], b.Hosts[0]
		wild := func(s string) int { return strings.Count(s[:1], "*") }
		return cmp.Or(cmp.Compare(wild(x), wild(y)), cmp.Compare(len(y), len(x)), cmp.Compare(x, y))
	})
	return rules, nil
}

// injections converts headers, each with any number of secrets and tokens.
func injections(headers, tokens map[string]string) (all []sandbox.Injection, err error) {
	if len(headers) > maxHeaders {
		return nil, invalid("network.rules", "a transform sets more than %d headers", maxHeaders)
	}
	for name, value := range headers {
		if name == "" || len(name) > maxHeaderName || len(value) > maxHeaderValue {
			return nil, invalid("network.rules", "the header %.64q, or its value, is too long", name)
		}
		one, err := injection(name, value, tokens)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b sandbox.Injection) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// injection converts a header. With one secret it becomes a format, otherwise a
// list of parts.
func injection(name, value string, tokens map[string]string) (sandbox.Injection, error) {
	var parts []sandbox.InjectPart
	text := func(s string) {
		if s != "" {
			parts = append(parts, sandbox.InjectPart{Text: s})
		}
	}
	if value == "" {
		return sandbox.Injection{}, invalid("network.rules", "the header %s has no value", name)
	}
	end, found := 0, placeholder().FindAllStringSubmatchIndex(value, -1)
	for _, at := range found {
		part, err := replaced(value[at[2]:at[3]], value[at[4]:at[5]], tokens)
		if err != nil {
			return sandbox.Injection{}, err
		}
		text(value[end:at[0]])
		parts = append(parts, part)
		end = at[1]
	}
	text(value[end:])
	if len(found) != 1 || strings.Contains(value, "{}") || slices.ContainsFunc(parts, func(p sandbox.InjectPart) bool { return p.Audience != "" }) {
		return sandbox.Injection{Mode: sandbox.InjectParts, Name: name, Parts: parts}, nil
	}
	at := found[0]
	return sandbox.Injection{
		Secret: strings.ToLower(value[at[4]:at[5]]), Mode: sandbox.InjectHeader, Name: name, Format: value[:at[0]] + "{}" + value[at[1]:],
	}, nil
}

// replaced is the value of a placeholder.
func replaced(kind, name string, tokens map[string]string) (sandbox.InjectPart, error) {
	switch kind {
	case "secrets":
		return sandbox.InjectPart{Secret: strings.ToLower(name)}, nil
	case "identity.tokens":
		if tokens[name] == "" {
			return sandbox.InjectPart{}, invalid("network.rules", "the sandbox has no token %.80q: iam.tokens has to name it when the sandbox is created", name)
		}
		return sandbox.InjectPart{Audience: tokens[name]}, nil
	}
	return sandbox.InjectPart{}, unsupported("network.rules: ${e2b." + kind + "." + name + "}")
}

// asked is the reverse of injection.
func asked(i sandbox.Injection, labels map[string]string) string {
	if i.Mode != sandbox.InjectParts {
		return strings.Replace(i.Format, "{}", "${e2b.secrets."+i.Secret+"}", 1)
	}
	value := ""
	for _, p := range i.Parts {
		if value += p.Text; p.Secret != "" {
			value += "${e2b.secrets." + p.Secret + "}"
		}
		if p.Audience != "" {
			value += "${e2b.identity.tokens." + tokenFor(labels, p.Audience) + "}"
		}
	}
	return value
}

// toNetwork converts the network of a sandbox to E2B's format.
func toNetwork(s *sandbox.Detail) *network {
	p := s.Spec.Network.Inline
	if p == nil && s.Labels[labelPrivate] == "" && s.Labels[labelHost] == "" && s.Labels[labelHTTPS] == "" {
		return nil
	}
	public := s.Labels[labelPrivate] == ""
	n := &network{AllowPublicTraffic: &public, MaskRequestHost: s.Labels[labelHost], HTTPSPorts: securedPorts(&s.Sandbox)}
	if p == nil {
		return n
	}
	n.DNSServers, n.EgressProxy = p.DNSServers, toProxy(p.Proxy)
	if p.Default != sandbox.Allow {
		n.DenyOut = []string{"0.0.0.0/0"}
	}
	for _, r := range p.Rules {
		domain, transforms := strings.CutPrefix(r.Name, ruleTransform)
		switch {
		case r.Name == ruleAllow:
			n.AllowOut = append(n.AllowOut, plainTargets(r.Hosts)...)
		case r.Name == ruleDeny:
			n.DenyOut = append(n.DenyOut, slices.DeleteFunc(plainTargets(r.Hosts), isEverything)...)
		case transforms:
			one := act{}
			one.Transform.Headers = map[string]string{}
			for _, i := range r.Inject {
				one.Transform.Headers[i.Name] = asked(i, s.Labels)
			}
			if n.Rules == nil {
				n.Rules = map[string][]act{}
			}
			n.Rules[domain] = []act{one}
		}
	}
	return n
}

// plainTargets is the reverse of targets.
func plainTargets(patterns []string) []string {
	out := make([]string, len(patterns))
	for i, p := range patterns {
		plain, all := strings.CutSuffix(p, ":*")
		if out[i] = p; all {
			out[i] = strings.Trim(plain, "[]")
		}
	}
	return out
}

// setNetwork replaces the network settings of a sandbox. Missing settings are
// cleared.
func (h *sandboxAPI) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		network
		AllowInternetAccess *bool `json:"allow_internet_access"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	if state, _ := stateOf(&s); state == "paused" {
		return noSandbox(publicID(s.ID))
	}
	if req.AllowOut == nil {
		req.AllowOut = []string{} // present, even if empty
	}
	n, err := req.spec(h.internet(req.AllowInternetAccess), audiences(s.Labels))
	if err != nil {
		return err
	}
	if _, err := h.networks.SetNetwork(r.Context(), string(s.ID), n); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// internet reports whether everything that is not denied is allowed: if the
// client does not refuse it and the machine's owner allows it.
func (h *common) internet(asked *bool) bool {
	return h.opts.Internet && (asked == nil || *asked)
}
