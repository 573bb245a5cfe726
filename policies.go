package atoll

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Policies are those of the daemon's machine that hold now. Source and Problem
// are told to the owner of the machine only.
type Policies struct {
	Source   string    `json:"source,omitempty"`  // the file or directory
	Digest   string    `json:"digest,omitempty"`  // of the texts that hold; empty: there are no policies
	Loaded   time.Time `json:"loaded,omitzero"`   //
	Problem  string    `json:"problem,omitempty"` // why what is in the files now does not hold
	Policies []Policy  `json:"policies"`
}

// Policy says what sandboxes may be. What is nil is not bounded by it.
type Policy struct {
	Name            string              `json:"name"`
	Description     string              `json:"description,omitempty"`
	Tenants         []string            `json:"tenants,omitempty"` // patterns; nil: all
	Labels          map[string][]string `json:"labels,omitempty"`  // patterns of values; a missing label is empty
	CPUs            *float64            `json:"cpus,omitempty"`
	Memory          *int64              `json:"memory,omitempty"` // bytes
	Disk            *int64              `json:"disk,omitempty"`   // bytes
	PIDs            *int64              `json:"pids,omitempty"`
	LifetimeMS      *int64              `json:"lifetimeMs,omitempty"`
	Images          []string            `json:"images,omitzero"`
	SignedImages    []SignedImage       `json:"signedImages,omitempty"` // allowed as well, if signed
	Mounts          []string            `json:"mounts,omitzero"`
	Network         *bool               `json:"network,omitempty"`
	Egress          *sandbox.Profile    `json:"egress,omitempty"` // a ceiling over what may be reached
	Secrets         []string            `json:"secrets,omitzero"`
	SecretModes     []string            `json:"secretModes,omitzero"`
	Redact          bool                `json:"redact,omitempty"`
	OnUnenforceable string              `json:"onUnenforceable,omitempty"`
	File            string              `json:"file"`
	Lines           map[string]int      `json:"lines"` // of its fields in the file
}

// SignedImage is an image that has to be signed to be allowed.
type SignedImage struct {
	Image    string   `json:"image"`    // a pattern of names
	SignedBy []string `json:"signedBy"` // files with public keys, one of which suffices
}

// PolicyAnswer is what the policies say about a sandbox that is not made.
type PolicyAnswer struct {
	Allow      bool              `json:"allow"`
	Message    string            `json:"message,omitempty"` // why it would be refused
	Rule       string            `json:"rule,omitempty"`    // that would refuse it, as POLICY.FIELD
	Findings   []PolicyFinding   `json:"findings"`          // what every rule that is about it says
	Limits     sandbox.Resources `json:"limits"`            // the lowest that hold for it; zero: none
	LifetimeMS int64             `json:"lifetimeMs,omitempty"`
	Ceilings   []PolicyCeiling   `json:"ceilings"` // over what it may reach
}

// PolicyFinding is what one rule says about a sandbox.
type PolicyFinding struct {
	Rule  string `json:"rule"` // POLICY.FIELD
	File  string `json:"file"`
	Line  int    `json:"line"`
	OK    bool   `json:"ok"`
	Asked string `json:"asked"`
	Limit string `json:"limit"`
}

// PolicyCeiling is a profile that has to allow as well.
type PolicyCeiling struct {
	Policy  string          `json:"policy"`
	Profile sandbox.Profile `json:"profile"`
}

// Policies returns the policies of the machine that are about the caller's
// sandboxes.
func (c *Client) Policies(ctx context.Context) (out Policies, err error) {
	return out, c.call(ctx, http.MethodGet, "/v1/policies", nil, nil, &out)
}

// ReloadPolicies has the daemon read its policies anew: all of them, or, if
// anything is wrong with one of them, none. It is for the owner of the machine.
func (c *Client) ReloadPolicies(ctx context.Context) (out Policies, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/policies/reload", nil, struct{}{}, &out)
}

// ExplainPolicies asks what the policies say about a sandbox, which is not made.
func (c *Client) ExplainPolicies(ctx context.Context, spec sandbox.Spec) (out PolicyAnswer, err error) {
	body, err := createBody(spec, CreateOptions{})
	if err != nil {
		return out, err
	}
	return out, c.call(ctx, http.MethodPost, "/v1/policies/explain", nil, json.RawMessage(body), &out)
}
