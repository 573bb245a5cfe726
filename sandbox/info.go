package sandbox

import (
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/internal/field"
)

// Sandbox describes a sandbox that exists or existed.
type Sandbox struct {
	ID       ID     `json:"id"`
	Name     string `json:"name" doc:"unique among your sandboxes that are not gone"`
	State    State  `json:"state" enum:"creating,running,exited,pausing,paused,resuming,stopped,lost,failed,gone"`
	Reason   string `json:"reason,omitempty" doc:"why it is in that state"`
	Image    string `json:"image"`
	Provider string `json:"provider,omitempty"`
	// Isolation is what the provider gave it, which may be more than was demanded.
	Isolation Isolation `json:"isolation,omitempty" enum:"none,kernel,hardware" doc:"the wall between it and the machine that runs it; left out if it is not known"`
	Node      string    `json:"node,omitempty" doc:"the daemon that runs it, if several share a store"`
	// Resources are the limits that apply, with defaults filled in.
	Resources Resources `json:"resources,omitzero"`
	// Limits are the limits in Resources that the provider does not enforce.
	Limits  map[string]Enforcement `json:"limits,omitempty" doc:"limits in resources that the provider does not enforce, by name, and why"`
	Labels  map[string]string      `json:"labels,omitempty"`
	Created time.Time              `json:"created"`
	Updated time.Time              `json:"updated,omitzero"`
	Expires time.Time              `json:"expires,omitzero" doc:"when its lifetime ends; left out while it is stopped or paused"`
	Exit    *Exit                  `json:"exit,omitempty" doc:"how it ended; in the state exited, how its main command ended"`
	// Bound says that the sandbox ends with the process that made it.
	Bound bool `json:"bound,omitempty" doc:"it ends with the process that made it"`

	// The following are not in listings.

	Main     *MainCommand    `json:"main,omitempty" doc:"the main command; not in listings"`
	Ports    []PublishedPort `json:"ports,omitempty" doc:"ports published on the daemon's machine; not in listings"`
	Pause    PauseKind       `json:"pause,omitempty" enum:"memory,disk" doc:"where the state of a paused sandbox is; not in listings"`
	Wakes    bool            `json:"wakes,omitempty" doc:"it resumes when it is used; not in listings"`
	Left     time.Duration   `json:"leftMs,omitempty" doc:"rest of its lifetime while it is stopped or paused, in milliseconds; not in listings"`
	Origin   string          `json:"origin,omitempty" doc:"id of the snapshot it was made from; not in listings"`
	Lifetime Lifetime        `json:"lifetime,omitzero" doc:"as requested; listings have the idle policy only"`

	// Entrypoint and Cmd are those of the image. They are set only in the response
	// that creates the sandbox.
	Entrypoint []string `json:"entrypoint,omitempty" doc:"entrypoint of the image; only in the response that creates the sandbox"`
	Cmd        []string `json:"cmd,omitempty" doc:"command of the image; only in the response that creates the sandbox"`
}

// MarshalJSON writes the duration in milliseconds.
func (s Sandbox) MarshalJSON() ([]byte, error) {
	type plain Sandbox
	field.ToMS(&s.Left)
	return json.Marshal(plain(s))
}

// UnmarshalJSON reads the duration in milliseconds.
func (s *Sandbox) UnmarshalJSON(text []byte) error {
	type plain Sandbox
	field.ToMS(&s.Left)
	err := json.Unmarshal(text, (*plain)(s))
	field.FromMS(&s.Left)
	return err
}

// ListQuery selects a page of a list.
type ListQuery struct {
	States []State           // empty: any but gone
	Labels map[string]string // a sandbox must have all of them
	Cursor string            // from the page before; empty: the first page
	Limit  int               // 0: the default
}

// Detail is a sandbox with the request that created it.
type Detail struct {
	Sandbox
	// Spec has no values in its Env.
	Spec Spec
	// Kept says that the state of the sandbox is kept while it does not run.
	Kept bool
}
