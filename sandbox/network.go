package sandbox

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox/bounds"
)

// MachineHost is the host name under which a sandbox reaches services that
// listen on the loopback of the daemon's machine. Rules allow it only by
// exactly this name, and only on ports that the owner of the machine opens
// (atoll up --egress-host-ports).
const MachineHost = "host.atoll.internal"

// Network says which hosts a sandbox may reach. At most one of Profile, Inline
// and Egress is set. The zero value: no network.
type Network struct {
	// Profile names a stored profile. Changes of the profile apply to running
	// sandboxes.
	Profile string `json:"profile,omitempty"`
	// Inline is a profile for this sandbox only.
	Inline *Profile `json:"inline,omitempty"`
	// Egress is the short form: a list of allowed hosts, each as in Rule.Hosts.
	// Empty but not nil: a network on which every host is denied.
	Egress []string `json:"egress,omitzero"`
	// Plain are the rules for a provider that enforces egress itself. The control
	// plane sets it; it is not stored.
	Plain *EgressRules `json:"-"`
}

// Asked reports whether the sandbox has a network.
func (n Network) Asked() bool { return n.Profile != "" || n.Inline != nil || n.Egress != nil }

// Local returns the inline profile, or the profile that Egress stands for. It
// returns false if there is no network or the Network names a stored profile.
func (n Network) Local() (Profile, bool) {
	switch {
	case n.Inline != nil:
		return *n.Inline, true
	case n.Egress == nil:
		return Profile{}, false
	}
	p := Profile{Default: Deny}
	if len(n.Egress) > 0 {
		p.Rules = []Rule{{Name: "egress", Action: Allow, Hosts: n.Egress}}
	}
	return p, true
}

// Action is what a rule does.
type Action string

// The actions. The list is append-only.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
)

// Profile is an egress policy: a list of rules and a default. The first rule
// that matches decides. The zero value denies everything.
type Profile struct {
	Name        string `json:"name,omitempty" doc:"unique among the profiles of the tenant; empty for an inline profile"`
	Description string `json:"description,omitempty" maxLength:"1000"`
	// Internet denies everything if it is false, whatever the rules say. Nil means
	// true.
	Internet *bool `json:"internet,omitempty" doc:"false denies everything, whatever the rules say"`
	// Default applies when no rule matches. Empty: Deny. Allow does not include
	// private, reserved and metadata addresses.
	Default Action `json:"default,omitempty" enum:"allow,deny" doc:"what happens when no rule matches; deny if left out"`
	Rules   []Rule `json:"rules,omitempty" doc:"in order: the first that matches decides"`

	// DNSServers resolve names in place of the machine's name servers. Each is an
	// address, with a port if that is not 53. The addresses they return are checked
	// like any others. With DNSServers, credentials are added only to requests over
	// TLS.
	DNSServers []string `json:"dnsServers,omitempty" maxItems:"10" doc:"name servers, as ADDRESS or ADDRESS:PORT; those of the machine if left out"`
	// Proxy is a SOCKS5 proxy for all connections.
	Proxy *UpstreamProxy `json:"proxy,omitempty" doc:"SOCKS5 proxy for all connections"`
}

// Rule allows or denies the connections and requests that it matches. An empty
// field matches everything, but Hosts must not be empty.
type Rule struct {
	// Name is for people and events. Empty: the number of the rule is used.
	Name   string `json:"name,omitempty" maxLength:"100"`
	Action Action `json:"action" enum:"allow,deny"`

	// Hosts are patterns, one of which must match:
	//
	//	api.example.com     that name
	//	*.example.com       every name below it, at any depth, and not itself
	//	*                   every name
	//	192.0.2.0/24        addresses; also one address alone
	//	host.atoll.internal the loopback of the daemon's machine, see MachineHost
	//
	// each with an optional port: ":443", ":8000-8999", ":*" for all. Without
	// one the ports are 80 and 443. An IPv6 pattern with a port is written in
	// brackets: "[2001:db8::/32]:443". A pattern of addresses that allows
	// matches only flows to a bare address; one that denies matches the
	// addresses of names, too.
	Hosts []string `json:"hosts" doc:"name, *.name, *, address or CIDR, each with an optional :port"`

	// Paths are patterns for the normalised path of an HTTP request, without its
	// query. "*" matches any characters within one segment. "**", as a whole
	// segment, matches any number of segments.
	Paths   []string `json:"paths,omitempty" doc:"of HTTP requests; * within a segment, ** for any number of segments"`
	Methods []string `json:"methods,omitempty" doc:"of HTTP requests"`
	// WebSocket allows requests to upgrade to a WebSocket. Its messages are not
	// checked.
	WebSocket bool `json:"webSocket,omitempty" doc:"allowed requests may upgrade to WebSockets"`

	// TLS says whether the gateway terminates TLS. Empty: it terminates TLS for
	// hosts for which a rule needs to see the requests, and passes it through for
	// others.
	TLS TLSMode `json:"tls,omitempty" enum:"terminate,passthrough"`

	Limits  *RuleLimits `json:"limits,omitempty"`
	Inject  []Injection `json:"inject,omitempty" doc:"credentials added to allowed requests after they have left the sandbox"`
	Filters []Filter    `json:"filters,omitempty" doc:"checks of the bodies of allowed requests and their responses"`
}

// TLSMode is what the gateway does with TLS.
type TLSMode string

// The TLS modes. With Passthrough, only the host name is checked: the sandbox
// can then reach everything that the host serves, under any other name too.
const (
	Terminate   TLSMode = "terminate"
	Passthrough TLSMode = "passthrough"
)

// RuleLimits are limits of a rule that allows. They are counted per sandbox and
// rule. Zero means no limit.
type RuleLimits struct {
	PerMinute     int   `json:"perMinute,omitempty" minimum:"0" doc:"requests, or connections where requests cannot be seen"`
	Burst         int   `json:"burst,omitempty" minimum:"0" doc:"how many may come at the same time; a sixth of perMinute if left out"`
	RequestBytes  int64 `json:"requestBytes,omitempty" minimum:"0" doc:"sent per request, or per connection"`
	ResponseBytes int64 `json:"responseBytes,omitempty" minimum:"0" doc:"received per request, or per connection"`
	Connections   int   `json:"connections,omitempty" minimum:"0" doc:"open at the same time"`
}

// InjectMode is how a credential is put into a request.
type InjectMode string

// The injection modes. The list is append-only.
const (
	InjectHeader InjectMode = "header" // Name: Format
	InjectBearer InjectMode = "bearer" // Authorization: Bearer VALUE
	InjectBasic  InjectMode = "basic"  // Authorization: Basic USERNAME:VALUE
	InjectQuery  InjectMode = "query"  // ?Name=VALUE
	InjectSigV4  InjectMode = "sigv4"  // the request is signed with VALUE
	InjectParts  InjectMode = "parts"  // Name: Parts, concatenated
)

// Injection adds a stored secret to the requests that a rule allows. A value
// that the client sent in the same header or query parameter is removed first.
type Injection struct {
	Secret string     `json:"secret,omitempty" doc:"name of the secret; left out for parts"`
	Mode   InjectMode `json:"mode" enum:"header,bearer,basic,query,sigv4,parts"`
	Name   string     `json:"name,omitempty" doc:"of the header or query parameter"`
	// Format is the header's value with "{}" in the place of the secret.
	Format   string `json:"format,omitempty" doc:"of the header's value, with {} in place of the secret; {} if left out"`
	Username string `json:"username,omitempty" doc:"for basic"`

	AccessKey    string `json:"accessKey,omitempty" doc:"for sigv4: the id that belongs to the secret key"`
	Region       string `json:"region,omitempty" doc:"for sigv4"`
	Service      string `json:"service,omitempty" doc:"for sigv4"`
	SessionToken string `json:"sessionToken,omitempty" doc:"for sigv4: name of the secret that holds the session token"`

	Parts []InjectPart `json:"parts,omitempty" maxItems:"32" doc:"for parts: texts, secrets and identity tokens that make up the header's value, in order"`
}

// InjectPart is a part of a header's value: a text, a secret or an identity token.
type InjectPart struct {
	Text   string `json:"text,omitempty" maxLength:"4096" doc:"as it is"`
	Secret string `json:"secret,omitempty" doc:"name of the secret whose value goes here"`
	// Audience is the service that the token is for.
	Audience string `json:"audience,omitempty" maxLength:"256" doc:"audience of an identity token of the sandbox that goes here: a short-lived JSON Web Token, signed by the daemon"`
}

// IdentityToken returns the name of the identity token for an audience. It is not a
// valid name of a secret.
func IdentityToken(audience string) string { return "token for " + audience }

// Audiences returns the audiences of the identity tokens that the rules of a profile
// add to requests, sorted.
func (p Profile) Audiences() []string {
	var all []string
	for _, r := range p.Rules {
		for _, i := range r.Inject {
			for _, part := range i.Parts {
				if part.Audience != "" {
					all = append(all, part.Audience)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Secrets returns the names of all secrets that the rules of a profile add to
// requests, sorted.
func (p Profile) Secrets() []string {
	var names []string
	for _, r := range p.Rules {
		for _, i := range r.Inject {
			names = append(names, i.Secrets()...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Secrets returns the names of all secrets that an injection sends.
func (i Injection) Secrets() []string {
	var names []string
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	add(i.Secret)
	add(i.SessionToken)
	for _, p := range i.Parts {
		add(p.Secret)
	}
	return names
}

// FilterType is what a filter checks.
type FilterType string

// The types of filters. The list is append-only.
const (
	FilterRegex       FilterType = "regex"        // a body that matches Pattern is refused
	FilterSize        FilterType = "size"         // a body larger than Bytes is refused
	FilterContentType FilterType = "content_type" // a body of a type not in Types is refused
)

// Direction says whether a filter checks requests or responses.
type Direction string

// The directions.
const (
	DirRequest  Direction = "request"
	DirResponse Direction = "response"
	DirBoth     Direction = "both"
)

// Filter refuses requests or responses by their body.
type Filter struct {
	Type      FilterType `json:"type" enum:"regex,size,content_type"`
	Direction Direction  `json:"direction,omitempty" enum:"request,response,both" doc:"both if left out"`
	Pattern   string     `json:"pattern,omitempty" maxLength:"4096" doc:"for regex: RE2, searched in the body"`
	Bytes     int64      `json:"bytes,omitempty" minimum:"0" doc:"for size: the maximum; for regex: how much of a body is buffered and searched, 1 MiB if left out"`
	Types     []string   `json:"types,omitempty" doc:"for content_type: the allowed types, such as application/json or text/*"`
}

// SecretMode is how a sandbox gets a secret.
type SecretMode string

// The ways to get a secret. The list is append-only.
const (
	// SecretGateway gives the sandbox a placeholder, which the gateway
	// replaces in requests to the hosts of the SecretRef.
	SecretGateway SecretMode = "gateway"
	// SecretEnv gives the sandbox the value itself.
	SecretEnv SecretMode = "env"
)

// SecretRef is a reference to a stored secret. It never holds a value.
type SecretRef struct {
	Name string `json:"name" doc:"of the stored secret"`
	Env  string `json:"env,omitempty" doc:"environment variable for the placeholder or the value; the name if left out"`
	// Mode is SecretGateway if it is empty.
	Mode SecretMode `json:"mode,omitempty" enum:"gateway,env"`
	// Hosts are the hosts to which the gateway sends the value, as in Rule.Hosts
	// without addresses. The value is never sent to a host that the secret itself
	// does not allow.
	Hosts []string `json:"hosts,omitempty" doc:"hosts that the value is sent to; those of the secret if left out"`
	// In are the places in which a placeholder is replaced: "header",
	// "header:NAME", "basic", "query", "query:NAME" and "body". Empty: header
	// and basic.
	In []string `json:"in,omitempty" doc:"where the placeholder is replaced: header, header:NAME, basic, query, query:NAME, body"`
}

// Variable returns the name of the environment variable.
func (r SecretRef) Variable() string {
	if r.Env != "" {
		return r.Env
	}
	return r.Name
}

// ValidateSecretName reports whether name can name a secret: 1 to 63
// characters of [A-Za-z0-9_-], beginning with a letter.
func ValidateSecretName(name string) error {
	ok := name != "" && len(name) <= bounds.MaxNameLen
	for i, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		ok = ok && (letter || i > 0 && (c >= '0' && c <= '9' || c == '_' || c == '-'))
	}
	if !ok {
		return invalid("secret", "%q is not 1 to %d characters of A-Z, a-z, 0-9, _ and -, beginning with a letter", clip(name), bounds.MaxNameLen)
	}
	return nil
}

// Validate returns an *Error with CodeInvalid if the Network is not valid. The
// rules of a profile are checked when it is compiled.
func (n Network) Validate() error {
	forms := 0
	for _, set := range []bool{n.Profile != "", n.Inline != nil, n.Egress != nil} {
		if set {
			forms++
		}
	}
	if forms > 1 {
		return invalid("network", "more than one of profile, inline and egress is given")
	}
	if n.Profile != "" && !isName(n.Profile) {
		return invalid("network", "%q is not the name of a profile", clip(n.Profile))
	}
	if len(n.Egress) > bounds.MaxEgress {
		return invalid("network", "%d hosts, at most %d", len(n.Egress), bounds.MaxEgress)
	}
	if n.Inline != nil && len(n.Inline.Rules) > bounds.MaxRules {
		return invalid("network", "%d rules, at most %d", len(n.Inline.Rules), bounds.MaxRules)
	}
	return nil
}

// validateSecrets returns an error for the first reference that is not valid.
func validateSecrets(refs []SecretRef, env map[string]string) error {
	if len(refs) > bounds.MaxSecretRefs {
		return invalid("secrets", "%d secrets, at most %d", len(refs), bounds.MaxSecretRefs)
	}
	taken := map[string]bool{}
	for _, r := range refs {
		if err := ValidateSecretName(r.Name); err != nil {
			return err
		}
		v := r.Variable()
		_, given := env[v]
		switch {
		case len(v) > bounds.MaxLabelLen || !utf8.ValidString(v) || strings.ContainsAny(v, "=\x00\n"):
			return invalid("secrets", "%q is not a variable name", clip(v))
		case taken[v] || given:
			return invalid("secrets", "the variable %q is set twice", clip(v))
		case r.Mode != "" && r.Mode != SecretGateway && r.Mode != SecretEnv:
			return invalid("secrets", "the mode %q of %s is neither gateway nor env", clip(string(r.Mode)), r.Name)
		case len(r.Hosts) > bounds.MaxRuleHosts || len(r.In) > bounds.MaxRuleHosts:
			return invalid("secrets", "%s has more than %d hosts or places", r.Name, bounds.MaxRuleHosts)
		}
		taken[v] = true
	}
	return nil
}
