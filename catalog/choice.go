package catalog

import (
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Candidate is a provider that was considered for a Spec.
type Candidate struct {
	Provider string   `json:"provider"`
	Fits     bool     `json:"fits"`
	Reasons  []string `json:"reasons"` // why it does not fit, or its advantages
}

// Choice is the outcome of a selection.
type Choice struct {
	Provider   string      `json:"choice,omitempty"` // empty: none fits
	Candidates []Candidate `json:"candidates"`       // best first
}

// Needs are the capabilities that a sandbox needs from its provider.
type Needs struct {
	Provider  string            `json:"provider,omitempty"` // named by the Spec; empty: any
	Images    bool              `json:"images,omitempty"`   // an OCI image
	Mounts    bool              `json:"mounts,omitempty"`   // directories of this machine
	Egress    enforce.Kind      `json:"egress,omitempty"`   // finest rule that must be enforced
	Pause     sandbox.PauseKind `json:"pause,omitempty"`    // strongest kind needed
	Snapshot  SnapshotKind      `json:"snapshot,omitempty"` // SnapshotMemory: memory; any other: files
	Fork      bool              `json:"fork,omitempty"`
	Ports     bool              `json:"ports,omitempty"`
	Desktop   bool              `json:"desktop,omitempty"`
	User      bool              `json:"user,omitempty"`      // commands run as a given user
	Limits    []string          `json:"limits,omitempty"`    // limits that must be enforced, e.g. "memory"
	Price     PriceClass        `json:"price,omitempty"`     // highest acceptable class
	Isolated  bool              `json:"isolated,omitempty"`  // code inside must not be able to harm the machine
	Isolation sandbox.Isolation `json:"isolation,omitempty"` // weakest acceptable
	OwnFiles  bool              `json:"ownFiles,omitempty"`  // its own root file system
}
