package sandbox

import (
	"encoding/json"
	"time"
)

// Policies are those of the daemon's machine that hold now.
type Policies struct {
	Source   string    `json:"source,omitempty" doc:"the file or directory; only for the owner of the machine"`
	Digest   string    `json:"digest,omitempty" doc:"of the texts that hold; left out if there are no policies"`
	Loaded   time.Time `json:"loaded,omitzero"`
	Problem  string    `json:"problem,omitempty" doc:"why what is in the files now does not hold; only for the owner of the machine"`
	Policies []Policy  `json:"policies"`
}

// Policy says what sandboxes may be. What is nil is not bounded by it.
type Policy struct {
	Name            string              `json:"name"`
	Description     string              `json:"description,omitempty"`
	Tenants         []string            `json:"tenants,omitempty" doc:"patterns of the tenants that it is about; all if left out"`
	Labels          map[string][]string `json:"labels,omitempty" doc:"patterns of the labels of the sandboxes that it is about; a missing label is empty"`
	CPUs            *float64            `json:"cpus,omitempty"`
	Memory          *int64              `json:"memory,omitempty" doc:"bytes"`
	Disk            *int64              `json:"disk,omitempty" doc:"bytes"`
	PIDs            *int64              `json:"pids,omitempty"`
	Lifetime        *time.Duration      `json:"lifetimeMs,omitempty" doc:"in milliseconds"`
	Images          []string            `json:"images,omitzero"`
	SignedImages    []SignedImage       `json:"signedImages,omitempty" doc:"allowed as well, if signed"`
	Mounts          []string            `json:"mounts,omitzero"`
	Network         *bool               `json:"network,omitempty"`
	Egress          *Profile            `json:"egress,omitempty" doc:"a ceiling over what may be reached"`
	Secrets         []string            `json:"secrets,omitzero"`
	SecretModes     []SecretMode        `json:"secretModes,omitzero"`
	Redact          bool                `json:"redact,omitempty" doc:"values of secrets are taken out of what commands write"`
	OnUnenforceable string              `json:"onUnenforceable,omitempty"`
	File            string              `json:"file"`
	Lines           map[string]int      `json:"lines" doc:"of its fields in the file"`
}

// MarshalJSON writes the lifetime in milliseconds.
func (p Policy) MarshalJSON() ([]byte, error) {
	type plain Policy
	if p.Lifetime != nil {
		scaled := *p.Lifetime
		toMS(&scaled)
		p.Lifetime = &scaled
	}
	return json.Marshal(plain(p))
}

// UnmarshalJSON reads the lifetime in milliseconds.
func (p *Policy) UnmarshalJSON(text []byte) error {
	type plain Policy
	p.Lifetime = nil
	err := json.Unmarshal(text, (*plain)(p))
	if p.Lifetime != nil {
		fromMS(p.Lifetime)
	}
	return err
}

// SignedImage is an image that has to be signed to be allowed.
type SignedImage struct {
	Image    string   `json:"image" doc:"a pattern of names"`
	SignedBy []string `json:"signedBy" doc:"files with public keys, one of which suffices"`
}

// PolicyAnswer is what the policies say about a sandbox that is not made.
type PolicyAnswer struct {
	Allow    bool            `json:"allow"`
	Message  string          `json:"message,omitempty" doc:"why it would be refused"`
	Rule     string          `json:"rule,omitempty" doc:"that would refuse it, as POLICY.FIELD"`
	Findings []PolicyFinding `json:"findings" doc:"what every rule that is about it says"`
	Limits   Resources       `json:"limits" doc:"the lowest that hold for it; zero sets none"`
	Lifetime time.Duration   `json:"lifetimeMs,omitempty" doc:"the longest that it may live, in milliseconds"`
	Ceilings []PolicyCeiling `json:"ceilings" doc:"over what it may reach"`
}

// MarshalJSON writes the lifetime in milliseconds.
func (a PolicyAnswer) MarshalJSON() ([]byte, error) {
	type plain PolicyAnswer
	toMS(&a.Lifetime)
	return json.Marshal(plain(a))
}

// UnmarshalJSON reads the lifetime in milliseconds.
func (a *PolicyAnswer) UnmarshalJSON(text []byte) error {
	type plain PolicyAnswer
	toMS(&a.Lifetime)
	err := json.Unmarshal(text, (*plain)(a))
	fromMS(&a.Lifetime)
	return err
}

// PolicyFinding is what one rule says about a sandbox.
type PolicyFinding struct {
	Rule  string `json:"rule" doc:"POLICY.FIELD"`
	File  string `json:"file"`
	Line  int    `json:"line"`
	OK    bool   `json:"ok"`
	Asked string `json:"asked"`
	Limit string `json:"limit"`
}

// PolicyCeiling is a profile that has to allow as well.
type PolicyCeiling struct {
	Policy  string  `json:"policy"`
	Profile Profile `json:"profile"`
}

// Explanation is what would become of a request under a profile, and why.
type Explanation struct {
	Allow    bool          `json:"allow"`
	Reason   string        `json:"reason"`
	Rule     string        `json:"rule,omitempty" doc:"the rule that decides"`
	Message  string        `json:"message"`
	Resolves bool          `json:"resolves" doc:"whether the name has an address in the sandbox"`
	Inspect  bool          `json:"inspect" doc:"whether TLS is terminated and every request decided"`
	HostOnly bool          `json:"hostOnly" doc:"whether the host alone decides, so that anything behind its name can be reached"`
	Path     string        `json:"path,omitempty" doc:"that is forwarded"`
	Limits   RuleLimits    `json:"limits,omitzero"`
	Inject   []string      `json:"inject,omitempty" doc:"names of the secrets that are added"`
	Operator []string      `json:"operator,omitempty" doc:"what the owner of the machine decides about it"`
	Steps    []ExplainStep `json:"steps" doc:"the rules about the host, in order, up to the one that decides"`
}

// ExplainStep is one rule that was looked at.
type ExplainStep struct {
	Rule    string `json:"rule"`
	Action  Action `json:"action"`
	Matches bool   `json:"matches"`
	Why     string `json:"why,omitempty" doc:"it does not match"`
}
