package sandbox

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of a profile. They bound what one request can make the control plane
// and the gateway hold.
const (
	MaxRules      = 20_000
	MaxRuleHosts  = 256
	MaxSecretRefs = 64
	MaxEgress     = 1024
)

// MachineHost is the name by which a sandbox reaches services that listen on the
// loopback of the daemon's machine. Rules allow it only by exactly this name, and
// only on ports that the owner of the machine opens (atoll up
// --egress-host-ports).
const MachineHost = "host.atoll.internal"

// Network says what of the network a sandbox may reach. At most one of its
// fields is set. The zero value: there is no network at all.
type Network struct {
	// Profile names a stored profile. A change of it reaches the sandbox live.
	Profile string `json:"profile,omitempty"`
	// Inline is a profile of this sandbox alone.
	Inline *Profile `json:"inline,omitempty"`
	// Egress is the plain form: the hosts that are allowed and nothing else,
	// each as in Rule.Hosts. Empty but not nil: a network that leads nowhere.
	Egress []string `json:"egress,omitzero"`
	// Plain is what is left of the rules for a provider that is no gateway. The
	// control plane sets it; it is in no record.
	Plain *EgressRules `json:"-"`
}

// Asked reports whether there is to be a network.
func (n Network) Asked() bool { return n.Profile != "" || n.Inline != nil || n.Egress != nil }

// Local returns the profile that the Network itself spells out, if it does not
// name a stored one: the inline one, or what the shorthand stands for.
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

// Profile is an egress policy: rules in order, of which the first that matches
// decides, and what happens when none does. The zero value denies everything.
type Profile struct {
	Name        string `json:"name,omitempty" doc:"names the profile among those of the tenant; empty for one of a single sandbox"`
	Description string `json:"description,omitempty" maxLength:"1000"`
	// Internet is the master switch: false denies everything, whatever the
	// rules say. Nil means true.
	Internet *bool `json:"internet,omitempty" doc:"false denies everything, whatever the rules say"`
	// Default decides what no rule matches. Empty: Deny. Allow never reaches
	// private, reserved or metadata addresses.
	Default Action `json:"default,omitempty" enum:"allow,deny" doc:"what happens when no rule matches; deny if left out"`
	Rules   []Rule `json:"rules,omitempty" doc:"in order: the first that matches decides"`

	// DNSServers are asked for the addresses of names in place of the machine's,
	// each an address, with a port if that is not 53. Their answers are checked
	// like all others. Credentials are then added only to requests over TLS.
	DNSServers []string `json:"dnsServers,omitempty" maxItems:"10" doc:"asked for the addresses of names: ADDRESS or ADDRESS:PORT; those of the machine if left out"`
	// Proxy is what all connections go through.
	Proxy *UpstreamProxy `json:"proxy,omitempty" doc:"SOCKS5 proxy that all connections go through"`
}

// Rule decides about the flows and requests that it matches. A field that is
// empty matches everything, but Hosts must not be empty.
type Rule struct {
	// Name is for people and events. Empty: the rule is known by its number.
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

	// Paths are patterns of the normalised path of an HTTP request, without
	// its query. "*" stands for any characters within one segment, and "**",
	// alone in a segment, for any number of segments.
	Paths   []string `json:"paths,omitempty" doc:"of HTTP requests; * within a segment, ** for any number of segments"`
	Methods []string `json:"methods,omitempty" doc:"of HTTP requests"`
	// WebSocket lets an allowed request become a WebSocket, about whose
	// contents nothing is decided.
	WebSocket bool `json:"webSocket,omitempty" doc:"allowed requests may become WebSockets"`

	// TLS says what happens to TLS. Empty: it is terminated for hosts where
	// some rule needs to see the request, and passed through for others.
	TLS TLSMode `json:"tls,omitempty" enum:"terminate,passthrough"`

	Limits  *RuleLimits `json:"limits,omitempty"`
	Inject  []Injection `json:"inject,omitempty" doc:"credentials added to allowed requests after they have left the sandbox"`
	Filters []Filter    `json:"filters,omitempty" doc:"of what allowed requests and their answers hold"`
}

// TLSMode is what the gateway does with TLS.
type TLSMode string

// The ways to deal with TLS. What is passed through is decided by the name of
// the host only: the sandbox may then talk to whatever that host serves, under
// whatever name.
const (
	Terminate   TLSMode = "terminate"
	Passthrough TLSMode = "passthrough"
)

// RuleLimits bound what a rule allows. They are counted per sandbox and rule. Zero
// means no limit.
type RuleLimits struct {
	PerMinute     int   `json:"perMinute,omitempty" minimum:"0" doc:"requests, or connections where requests cannot be seen"`
	Burst         int   `json:"burst,omitempty" minimum:"0" doc:"how many may come at once; a sixth of perMinute if left out"`
	RequestBytes  int64 `json:"requestBytes,omitempty" minimum:"0" doc:"sent per request, or per connection"`
	ResponseBytes int64 `json:"responseBytes,omitempty" minimum:"0" doc:"received per request, or per connection"`
	Connections   int   `json:"connections,omitempty" minimum:"0" doc:"open at the same time"`
}

// InjectMode is how a credential is put into a request.
type InjectMode string

// The ways to inject. The list is append-only.
const (
	InjectHeader InjectMode = "header" // Name: Format
	InjectBearer InjectMode = "bearer" // Authorization: Bearer VALUE
	InjectBasic  InjectMode = "basic"  // Authorization: Basic USERNAME:VALUE
	InjectQuery  InjectMode = "query"  // ?Name=VALUE
	InjectSigV4  InjectMode = "sigv4"  // the request is signed with VALUE
	InjectParts  InjectMode = "parts"  // Name: Parts, one after the other
)

// Injection adds a stored secret to the requests that a rule allows. What the
// client sent in the same place is removed first.
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

	Parts []InjectPart `json:"parts,omitempty" maxItems:"32" doc:"for parts: what the header's value is made of, in order; any number of them, none included, are secrets"`
}

// InjectPart is a piece of a header's value: either a text or a secret.
type InjectPart struct {
	Text   string `json:"text,omitempty" maxLength:"4096" doc:"as it is"`
	Secret string `json:"secret,omitempty" doc:"name of the secret whose value stands here"`
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

// FilterType is what a filter looks at.
type FilterType string

// The types of filters. The list is append-only.
const (
	FilterRegex       FilterType = "regex"        // a body that matches Pattern is refused
	FilterSize        FilterType = "size"         // a body larger than Bytes is refused
	FilterContentType FilterType = "content_type" // a body of a type not in Types is refused
)

// Direction is which way what a filter looks at travels.
type Direction string

// The directions.
const (
	DirRequest  Direction = "request"
	DirResponse Direction = "response"
	DirBoth     Direction = "both"
)

// Filter refuses requests, or their answers, by what they hold.
type Filter struct {
	Type      FilterType `json:"type" enum:"regex,size,content_type"`
	Direction Direction  `json:"direction,omitempty" enum:"request,response,both" doc:"both if left out"`
	Pattern   string     `json:"pattern,omitempty" maxLength:"4096" doc:"for regex: RE2, searched in the body"`
	Bytes     int64      `json:"bytes,omitempty" minimum:"0" doc:"for size: the most that is allowed; for regex: how much of a body is held to search it, 1 MiB if left out"`
	Types     []string   `json:"types,omitempty" doc:"for content_type: those that are allowed, such as application/json or text/*"`
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

// SecretRef is a sandbox's wish for a stored secret. It never holds a value.
type SecretRef struct {
	Name string `json:"name" doc:"of the stored secret"`
	Env  string `json:"env,omitempty" doc:"variable that holds the placeholder, or the value; the name if left out"`
	// Mode is SecretGateway if it is empty.
	Mode SecretMode `json:"mode,omitempty" enum:"gateway,env"`
	// Hosts are those to whom the gateway sends the value, as in Rule.Hosts
	// without addresses; never more than the secret itself allows.
	Hosts []string `json:"hosts,omitempty" doc:"to whom the value is sent; those of the secret if left out"`
	// In are the places in which a placeholder is replaced: "header",
	// "header:NAME", "basic", "query", "query:NAME" and "body". Empty: header
	// and basic.
	In []string `json:"in,omitempty" doc:"where the placeholder is replaced: header, header:NAME, basic, query, query:NAME, body"`
}

// Variable is the name of the variable in the sandbox's environment.
func (r SecretRef) Variable() string {
	if r.Env != "" {
		return r.Env
	}
	return r.Name
}

// ValidateSecretName reports whether name can name a secret: 1 to 63
// characters of [A-Za-z0-9_-], beginning with a letter.
func ValidateSecretName(name string) error {
	ok := name != "" && len(name) <= MaxNameLen
	for i, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		ok = ok && (letter || i > 0 && (c >= '0' && c <= '9' || c == '_' || c == '-'))
	}
	if !ok {
		return invalid("secret", "%q is not 1 to %d characters of A-Z, a-z, 0-9, _ and -, beginning with a letter", clip(name), MaxNameLen)
	}
	return nil
}

// Validate reports the first thing about the Network that can never work. What
// the rules of a profile say is looked at when it is compiled.
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
	if len(n.Egress) > MaxEgress {
		return invalid("network", "%d hosts, at most %d", len(n.Egress), MaxEgress)
	}
	if n.Inline != nil && len(n.Inline.Rules) > MaxRules {
		return invalid("network", "%d rules, at most %d", len(n.Inline.Rules), MaxRules)
	}
	return nil
}

// validateSecrets reports the first wish for a secret that can never work.
func validateSecrets(refs []SecretRef, env map[string]string) error {
	if len(refs) > MaxSecretRefs {
		return invalid("secrets", "%d secrets, at most %d", len(refs), MaxSecretRefs)
	}
	taken := map[string]bool{}
	for _, r := range refs {
		if err := ValidateSecretName(r.Name); err != nil {
			return err
		}
		v := r.Variable()
		_, given := env[v]
		switch {
		case len(v) > MaxLabelLen || !utf8.ValidString(v) || strings.ContainsAny(v, "=\x00\n"):
			return invalid("secrets", "%q is not a variable name", clip(v))
		case taken[v] || given:
			return invalid("secrets", "the variable %q is set twice", clip(v))
		case r.Mode != "" && r.Mode != SecretGateway && r.Mode != SecretEnv:
			return invalid("secrets", "the mode %q of %s is neither gateway nor env", clip(string(r.Mode)), r.Name)
		case len(r.Hosts) > MaxRuleHosts || len(r.In) > MaxRuleHosts:
			return invalid("secrets", "%s has more than %d hosts or places", r.Name, MaxRuleHosts)
		}
		taken[v] = true
	}
	return nil
}
