package policy

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Limits of one rule.
const (
	maxPaths   = 256
	maxMethods = 32
	maxInject  = 20
	maxFilters = 16
)

// compileRule compiles a rule and checks it. Numbers start at 1.
func compileRule(number int, in *sandbox.Rule, secrets map[string][]string) (rule, error) {
	r := rule{number: number, rule: *in}
	r.rule.Inject = slices.Clone(in.Inject)
	if in.Action != sandbox.Allow && in.Action != sandbox.Deny {
		return r, invalid(field(number, "action"), "%q is neither allow nor deny", clip(string(in.Action)))
	}
	for _, step := range []func() error{r.compileHosts, r.compilePaths, r.compileMethods, r.compileTLS, r.compileLimits, r.compileFilters} {
		if err := step(); err != nil {
			return r, err
		}
	}
	r.inspects = r.conditional() || r.filters != nil || len(r.rule.Inject) > 0 || r.rule.WebSocket || r.rule.TLS == sandbox.Terminate
	if err := r.compileInject(secrets); err != nil {
		return r, err
	}
	if r.inspects && r.rule.TLS == sandbox.Passthrough {
		return r, invalid(field(number, "tls"), "TLS that is passed through cannot be inspected: leave out paths, methods, filters, inject and webSocket")
	}
	return r, nil
}

func (r *rule) compileHosts() error {
	hosts := r.rule.Hosts
	switch {
	case len(hosts) == 0:
		return invalid(field(r.number, "hosts"), "no host given; \"*\" stands for every name")
	case len(hosts) > bounds.MaxRuleHosts:
		return invalid(field(r.number, "hosts"), "%d hosts, at most %d", len(hosts), bounds.MaxRuleHosts)
	}
	for _, h := range hosts {
		p, err := parsePattern(h)
		if err != nil {
			return invalid(field(r.number, "hosts"), "%q: %v", clip(h), err)
		}
		r.hosts = append(r.hosts, p)
	}
	return nil
}

func (r *rule) compilePaths() error {
	if len(r.rule.Paths) > maxPaths {
		return invalid(field(r.number, "paths"), "%d paths, at most %d", len(r.rule.Paths), maxPaths)
	}
	for _, s := range r.rule.Paths {
		p, err := parsePath(s)
		if err != nil {
			return invalid(field(r.number, "paths"), "%q: %v", clip(s), err)
		}
		r.paths = append(r.paths, p)
	}
	return nil
}

func (r *rule) compileMethods() error {
	if len(r.rule.Methods) > maxMethods {
		return invalid(field(r.number, "methods"), "%d methods, at most %d", len(r.rule.Methods), maxMethods)
	}
	for _, m := range r.rule.Methods {
		m = strings.ToUpper(m)
		switch {
		case !isToken(m):
			return invalid(field(r.number, "methods"), "%q is not a method", clip(m))
		case m == "CONNECT" || m == "TRACE":
			return invalid(field(r.number, "methods"), "%s is never allowed", m)
		}
		if r.methods == nil {
			r.methods = map[string]bool{}
		}
		r.methods[m] = true
	}
	return nil
}

func (r *rule) compileTLS() error {
	switch r.rule.TLS {
	case "", sandbox.Terminate, sandbox.Passthrough:
		return nil
	}
	return invalid(field(r.number, "tls"), "%q is neither terminate nor passthrough", clip(string(r.rule.TLS)))
}

func (r *rule) compileLimits() error {
	l := r.rule.Limits
	if l == nil {
		return nil
	}
	if min(int64(l.PerMinute), int64(l.Burst), l.RequestBytes, l.ResponseBytes, int64(l.Connections)) < 0 {
		return invalid(field(r.number, "limits"), "a limit is negative")
	}
	if l.Burst > 0 && l.PerMinute == 0 {
		return invalid(field(r.number, "limits"), "burst without perMinute")
	}
	own := *l
	if own.PerMinute > 0 && own.Burst == 0 {
		own.Burst = max(1, own.PerMinute/6)
	}
	r.rule.Limits = &own
	return nil
}

func (r *rule) compileFilters() (err error) {
	if len(r.rule.Filters) > maxFilters {
		return invalid(field(r.number, "filters"), "%d filters, at most %d", len(r.rule.Filters), maxFilters)
	}
	if len(r.rule.Filters) > 0 && !r.allows() {
		return invalid(field(r.number, "filters"), "a rule that denies filters nothing")
	}
	r.filters, err = compileFilters(r.number, r.rule.Filters)
	return err
}

// compileInject checks the credentials of a rule. They are only sent without
// TLS if the rule names the port: without a port, only 443 is meant.
func (r *rule) compileInject(secrets map[string][]string) error {
	in := r.rule.Inject
	switch {
	case len(in) == 0:
		return nil
	case len(in) > maxInject:
		return invalid(field(r.number, "inject"), "%d credentials, at most %d", len(in), maxInject)
	case !r.allows():
		return invalid(field(r.number, "inject"), "a rule that denies sends no credentials")
	}
	r.hosts = nil
	for _, h := range r.rule.Hosts {
		p, err := sendable(h)
		if err != nil {
			return invalid(field(r.number, "inject"), "%q: %v", clip(h), err)
		}
		r.hosts = append(r.hosts, p)
	}
	for _, i := range in {
		if err := checkInjection(i); err != nil {
			return invalid(field(r.number, "inject"), "%s: %v", clip(cmp.Or(i.Secret, i.Name)), err)
		}
		for _, name := range i.Secrets() {
			if err := within(field(r.number, "inject"), name, r.hosts, secrets); err != nil {
				return err
			}
		}
	}
	return nil
}

// The errors of a host or an injection.
var (
	errEverywhere = errors.New("a secret can only be sent to hosts that are named, not to every host")
	errToNetwork  = errors.New("a secret can only be sent to a single address, not to a network")
	errNoMode     = errors.New("the mode is not one of header, bearer, basic, query, sigv4 and parts")
	errNoHeader   = errors.New("the name is not that of a header that may be set")
	errNoQuery    = errors.New("a query parameter needs a name")
	errFormat     = errors.New("the format has no {} for the value, or contains a control character")
	errUsername   = errors.New("the user name contains a colon or a control character")
	errSigV4      = errors.New("sigv4 needs accessKey, region and service")
	errParts      = errors.New("each of at most 32 parts is one of a text, a secret and an audience, without control characters")
	errOnlyParts  = errors.New("only the mode parts has parts, and it has nothing else")
)

// sendable parses a pattern of hosts to which a secret may be sent.
func sendable(host string) (pattern, error) {
	p, err := parsePattern(host)
	switch {
	case err != nil:
		return p, err
	case p.any:
		return p, errEverywhere
	case p.prefix.IsValid() && !p.prefix.IsSingleIP():
		return p, errToNetwork
	}
	if !p.named {
		p.ports = []ports{{443, 443}}
	}
	return p, nil
}

// unset are headers that may not be injected, because they delimit or route a
// request.
var unset = map[string]bool{
	"host": true, "content-length": true, "transfer-encoding": true, "connection": true, "te": true, "trailer": true,
	"upgrade": true, "proxy-authorization": true, "proxy-connection": true, "keep-alive": true, "expect": true,
}

func checkInjection(i sandbox.Injection) error {
	if i.Mode == sandbox.InjectParts {
		return checkParts(i)
	}
	if len(i.Parts) > 0 {
		return errOnlyParts
	}
	if err := sandbox.ValidateSecretName(i.Secret); err != nil {
		return err
	}
	switch i.Mode {
	case sandbox.InjectHeader:
		if !isToken(i.Name) || unset[strings.ToLower(i.Name)] {
			return errNoHeader
		}
		if i.Format != "" && (!strings.Contains(i.Format, "{}") || hasControl(i.Format)) {
			return errFormat
		}
	case sandbox.InjectBearer:
	case sandbox.InjectBasic:
		if strings.Contains(i.Username, ":") || hasControl(i.Username) {
			return errUsername
		}
	case sandbox.InjectQuery:
		if i.Name == "" || hasControl(i.Name) {
			return errNoQuery
		}
	case sandbox.InjectSigV4:
		if i.AccessKey == "" || i.Region == "" || i.Service == "" || hasControl(i.AccessKey+i.Region+i.Service) {
			return errSigV4
		}
		if i.SessionToken != "" {
			return sandbox.ValidateSecretName(i.SessionToken)
		}
	default:
		return errNoMode
	}
	return nil
}

// within reports an error if a secret does not exist or may not be sent to all
// of the hosts.
func within(subject, secret string, to []pattern, secrets map[string][]string) error {
	if secrets == nil {
		return nil
	}
	allowed, ok := secrets[secret]
	if !ok {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: subject, Message: "there is no secret named " + clip(secret),
			Hint: "create it with: atoll secret create " + clip(secret),
		}
	}
	if len(allowed) == 0 {
		return nil
	}
	for _, t := range to {
		if !slices.ContainsFunc(allowed, func(a string) bool {
			p, err := sendable(a)
			return err == nil && p.covers(t)
		}) {
			return invalid(subject, "the secret %s may not be sent to %s", secret, t)
		}
	}
	return nil
}

// CheckSecretHosts reports what is wrong with a list of hosts to which a secret
// may be sent.
func CheckSecretHosts(hosts []string) error {
	if len(hosts) > bounds.MaxRuleHosts {
		return invalid("hosts", "%d hosts, at most %d", len(hosts), bounds.MaxRuleHosts)
	}
	for _, h := range hosts {
		if _, err := sendable(h); err != nil {
			return invalid("hosts", "%q: %v", clip(h), err)
		}
	}
	return nil
}

// covers reports whether p matches everything that q matches.
func (p pattern) covers(q pattern) bool {
	for _, b := range q.ports {
		if !slices.ContainsFunc(p.ports, func(a ports) bool { return a.low <= b.low && b.high <= a.high }) {
			return false
		}
	}
	switch {
	case p.any:
		return !q.prefix.IsValid()
	case p.prefix.IsValid():
		return q.prefix.IsValid() && p.prefix.Bits() <= q.prefix.Bits() && p.prefix.Contains(q.prefix.Addr())
	case p.name != "":
		return p.name == q.name
	case q.name != "":
		return below(q.name, p.suffix)
	}
	return q.suffix != "" && (p.suffix == q.suffix || below(q.suffix, p.suffix))
}

func (p pattern) matchesName(name string) bool {
	switch {
	case name == "" || p.prefix.IsValid():
		return false
	case p.name != "":
		return p.name == name
	case name == sandbox.MachineHost:
		return false // such a pattern must be written out
	case p.any:
		return true
	}
	return below(name, p.suffix)
}

func (p pattern) matchesAddr(a netip.Addr) bool { return p.prefix.IsValid() && p.prefix.Contains(a) }

func (p pattern) hasPort(port uint16) bool {
	return slices.ContainsFunc(p.ports, func(r ports) bool { return r.contain(port) })
}

// String returns the pattern without its ports.
func (p pattern) String() string {
	switch {
	case p.any:
		return "*"
	case p.prefix.IsValid():
		return p.prefix.String()
	case p.name != "":
		return p.name
	}
	return "*." + p.suffix
}

// isToken reports whether s is an HTTP token: a method or the name of a header.
func isToken(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for _, c := range []byte(s) {
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 {
			continue
		}
		return false
	}
	return true
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Limits of a header that is made of parts.
const (
	maxParts    = 32
	maxPartText = 4096
	maxAudience = 256
)

func checkParts(i sandbox.Injection) error {
	if !isToken(i.Name) || unset[strings.ToLower(i.Name)] {
		return errNoHeader
	}
	if i.Secret+i.Format+i.Username+i.AccessKey+i.Region+i.Service+i.SessionToken != "" {
		return errOnlyParts
	}
	if len(i.Parts) == 0 || len(i.Parts) > maxParts {
		return errParts
	}
	for _, p := range i.Parts {
		given := 0
		for _, s := range []string{p.Text, p.Secret, p.Audience} {
			if s != "" {
				given++
			}
		}
		if given != 1 || len(p.Text) > maxPartText || len(p.Audience) > maxAudience || hasControl(p.Text+p.Audience) {
			return errParts
		}
		if p.Secret == "" {
			continue
		}
		if err := sandbox.ValidateSecretName(p.Secret); err != nil {
			return err
		}
	}
	return nil
}
