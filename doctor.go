package atoll

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
)

// Finding is one thing that was looked at.
type Finding struct {
	Severity string `json:"severity"` // ok, note, warning, or blocker: nothing works until it is mended
	Subject  string `json:"subject"`
	Message  string `json:"message"`        // what is
	Mend     string `json:"mend,omitempty"` // what to do about it
}

// Diagnosis says how a daemon is.
type Diagnosis struct {
	Version  string    `json:"version,omitempty"` // of the program
	Node     string    `json:"node"`
	Healthy  bool      `json:"healthy"` // nothing is broken
	Findings []Finding `json:"findings"`
}

// ImageUse is an image that somebody needs who does not run: a sandbox that
// rests, a snapshot, a template.
type ImageUse struct {
	Image string `json:"image"` // its digest, else its name
	By    string `json:"by"`    // who needs it, for people
}

// ImageUses lists the images of what does not run. It is for the owner of the
// machine.
func (c *Client) ImageUses(ctx context.Context) ([]ImageUse, error) {
	var out struct{ Uses []ImageUse }
	return out.Uses, c.call(ctx, http.MethodGet, "/v1/images/uses", nil, nil, &out)
}

// Providers describes what can make sandboxes in the daemon.
func (c *Client) Providers(ctx context.Context) ([]sandbox.Provider, error) {
	var out struct{ Providers []sandbox.Provider }
	return out.Providers, c.call(ctx, http.MethodGet, "/v1/providers", nil, nil, &out)
}

// Diagnose asks the daemon how it is. It is for the owner of the machine.
func (c *Client) Diagnose(ctx context.Context) (d Diagnosis, err error) {
	return d, c.call(ctx, http.MethodGet, "/v1/doctor", nil, nil, &d)
}
