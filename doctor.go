package atoll

import (
	"context"
	"net/http"
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

// Diagnose asks the daemon how it is. It is for the owner of the machine.
func (c *Client) Diagnose(ctx context.Context) (d Diagnosis, err error) {
	return d, c.call(ctx, http.MethodGet, "/v1/doctor", nil, nil, &d)
}
