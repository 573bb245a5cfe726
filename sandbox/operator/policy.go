package operator

import (
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/internal/field"
	"github.com/atoll-run/atoll/sandbox"
)

// Policies are the policies of the daemon's machine that apply now.
type Policies struct {
	Source   string    `json:"source,omitempty" doc:"the file or directory; only for the owner of the machine"`
	Digest   string    `json:"digest,omitempty" doc:"of the files that apply; left out if there are no policies"`
	Loaded   time.Time `json:"loaded,omitzero"`
	Problem  string    `json:"problem,omitempty" doc:"why the present files are not valid, so that the policies from before still apply; only for the owner of the machine"`
	Policies []Policy  `json:"policies"`
}

// Policy is a set of limits for sandboxes. A nil field sets no limit.
type Policy struct {
	Name            string               `json:"name"`
	Description     string               `json:"description,omitempty"`
	Tenants         []string             `json:"tenants,omitempty" doc:"patterns of the tenants that it applies to; all if left out"`
	Labels          map[string][]string  `json:"labels,omitempty" doc:"patterns of the labels of the sandboxes that it applies to; a missing label is empty"`
	CPUs            *float64             `json:"cpus,omitempty"`
	Memory          *int64               `json:"memory,omitempty" doc:"bytes"`
	Disk            *int64               `json:"disk,omitempty" doc:"bytes"`
	PIDs            *int64               `json:"pids,omitempty"`
	Lifetime        *time.Duration       `json:"lifetimeMs,omitempty" doc:"in milliseconds"`
	Isolation       sandbox.Isolation    `json:"isolation,omitempty" doc:"the weakest isolation that sandboxes may have"`
	Images          []string             `json:"images,omitzero"`
	SignedImages    []SignedImage        `json:"signedImages,omitempty" doc:"allowed as well, if signed"`
	Mounts          []string             `json:"mounts,omitzero"`
	Network         *bool                `json:"network,omitempty"`
	Egress          *sandbox.Profile     `json:"egress,omitempty" doc:"profile that must allow every connection as well"`
	Secrets         []string             `json:"secrets,omitzero"`
	SecretModes     []sandbox.SecretMode `json:"secretModes,omitzero"`
	Redact          bool                 `json:"redact,omitempty" doc:"values of secrets are removed from the output of commands"`
	OnUnenforceable string               `json:"onUnenforceable,omitempty"`
	File            string               `json:"file"`
	Lines           map[string]int       `json:"lines" doc:"line numbers of its fields in the file"`
}

// MarshalJSON writes the lifetime in milliseconds.
func (p Policy) MarshalJSON() ([]byte, error) {
	type plain Policy
	if p.Lifetime != nil {
		scaled := *p.Lifetime
		field.ToMS(&scaled)
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
		field.FromMS(p.Lifetime)
	}
	return err
}

// SignedImage is a pattern of images that must be signed.
type SignedImage struct {
	Image    string   `json:"image" doc:"a pattern of names"`
	SignedBy []string `json:"signedBy" doc:"files with public keys; a signature of one of them is enough"`
}

// PolicyAnswer is the decision of the policies about a Spec. No sandbox is
// made.
type PolicyAnswer struct {
	Allow     bool              `json:"allow"`
	Message   string            `json:"message,omitempty" doc:"why it would be refused"`
	Rule      string            `json:"rule,omitempty" doc:"rule that would refuse it, as POLICY.FIELD"`
	Findings  []PolicyFinding   `json:"findings" doc:"result of every rule that applies to it"`
	Limits    sandbox.Resources `json:"limits" doc:"the lowest limits that apply to it; zero: none"`
	Lifetime  time.Duration     `json:"lifetimeMs,omitempty" doc:"its longest lifetime, in milliseconds"`
	Isolation sandbox.Isolation `json:"isolation,omitempty" doc:"the weakest isolation that it may have; left out if no policy says"`
	Ceilings  []PolicyCeiling   `json:"ceilings" doc:"profiles that must allow its connections as well"`
}

// MarshalJSON writes the lifetime in milliseconds.
func (a PolicyAnswer) MarshalJSON() ([]byte, error) {
	type plain PolicyAnswer
	field.ToMS(&a.Lifetime)
	return json.Marshal(plain(a))
}

// UnmarshalJSON reads the lifetime in milliseconds.
func (a *PolicyAnswer) UnmarshalJSON(text []byte) error {
	type plain PolicyAnswer
	field.ToMS(&a.Lifetime)
	err := json.Unmarshal(text, (*plain)(a))
	field.FromMS(&a.Lifetime)
	return err
}

// PolicyFinding is the result of one policy rule for a Spec.
type PolicyFinding struct {
	Rule  string `json:"rule" doc:"POLICY.FIELD"`
	File  string `json:"file"`
	Line  int    `json:"line"`
	OK    bool   `json:"ok"`
	Asked string `json:"asked"`
	Limit string `json:"limit"`
}

// PolicyCeiling is a profile of a policy, which must allow every connection as
// well.
type PolicyCeiling struct {
	Policy  string          `json:"policy"`
	Profile sandbox.Profile `json:"profile"`
}

// Explanation says whether a profile would allow a request, and why.
type Explanation struct {
	Allow    bool               `json:"allow"`
	Reason   string             `json:"reason"`
	Rule     string             `json:"rule,omitempty" doc:"the rule that decides"`
	Message  string             `json:"message"`
	Resolves bool               `json:"resolves" doc:"whether the name has an address in the sandbox"`
	Inspect  bool               `json:"inspect" doc:"whether TLS is terminated and every request is checked"`
	HostOnly bool               `json:"hostOnly" doc:"whether only the host name is checked, so that everything the host serves can be reached"`
	Path     string             `json:"path,omitempty" doc:"the path that is forwarded"`
	Limits   sandbox.RuleLimits `json:"limits,omitzero"`
	Inject   []string           `json:"inject,omitempty" doc:"names of the secrets that are added"`
	Operator []string           `json:"operator,omitempty" doc:"what the policies of the machine decide"`
	Steps    []ExplainStep      `json:"steps" doc:"the rules for the host, in order, up to the one that decides"`
}

// ExplainStep is one rule that was evaluated.
type ExplainStep struct {
	Rule    string         `json:"rule"`
	Action  sandbox.Action `json:"action"`
	Matches bool           `json:"matches"`
	Why     string         `json:"why,omitempty" doc:"why it does not match"`
}
