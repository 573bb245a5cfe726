package sandbox

import (
	"encoding/json"
	"time"
)

// Sandbox describes a sandbox that exists or existed.
type Sandbox struct {
	ID       ID     `json:"id"`
	Name     string `json:"name" doc:"unique among your sandboxes that are not gone"`
	State    State  `json:"state" enum:"creating,running,exited,pausing,paused,resuming,stopped,lost,failed,gone"`
	Reason   string `json:"reason,omitempty" doc:"why it is in that state"`
	Image    string `json:"image"`
	Provider string `json:"provider,omitempty"`
	Node     string `json:"node,omitempty" doc:"the daemon that has it, if several share a store"`
	// Resources are the limits that apply, with defaults filled in.
	Resources Resources `json:"resources,omitzero"`
	// Limits are those of Resources that the provider does not enforce.
	Limits  map[string]Enforcement `json:"limits,omitempty" doc:"limits in resources that the provider does not enforce, by name, and why"`
	Labels  map[string]string      `json:"labels,omitempty"`
	Created time.Time              `json:"created"`
	Updated time.Time              `json:"updated,omitzero"`
	Expires time.Time              `json:"expires,omitzero" doc:"when its lifetime ends; left out while that stands still"`
	Exit    *Exit                  `json:"exit,omitempty" doc:"how it ended; how its main command ended, if it has exited"`
	// Bound is set if the sandbox ends with the process that made it.
	Bound bool `json:"bound,omitempty" doc:"it ends with the process that made it"`

	// The following are not in listings.

	Main     *MainCommand    `json:"main,omitempty" doc:"the command that it exists for; not in listings"`
	Ports    []PublishedPort `json:"ports,omitempty" doc:"ports published on the daemon's machine; not in listings"`
	Pause    PauseKind       `json:"pause,omitempty" enum:"memory,disk" doc:"where the state of a paused sandbox is; not in listings"`
	Wakes    bool            `json:"wakes,omitempty" doc:"it resumes when it is used; not in listings"`
	Left     time.Duration   `json:"leftMs,omitempty" doc:"what is left of its lifetime while that stands still, in milliseconds; not in listings"`
	Origin   string          `json:"origin,omitempty" doc:"id of the snapshot it was made from; not in listings"`
	Lifetime Lifetime        `json:"lifetime,omitzero" doc:"what was asked for; not in listings"`

	// Entrypoint and Cmd are what the image wants to run. Only the answer that
	// creates the sandbox has them.
	Entrypoint []string `json:"entrypoint,omitempty" doc:"what the image wants to run; only in the answer that creates the sandbox"`
	Cmd        []string `json:"cmd,omitempty" doc:"arguments of the entrypoint; only in the answer that creates the sandbox"`
}

// MarshalJSON writes the duration in milliseconds.
func (s Sandbox) MarshalJSON() ([]byte, error) {
	type plain Sandbox
	toMS(&s.Left)
	return json.Marshal(plain(s))
}

// UnmarshalJSON reads the duration in milliseconds.
func (s *Sandbox) UnmarshalJSON(text []byte) error {
	type plain Sandbox
	toMS(&s.Left)
	err := json.Unmarshal(text, (*plain)(s))
	fromMS(&s.Left)
	return err
}

// ListQuery selects a page of a list.
type ListQuery struct {
	States []State           // empty: any but gone
	Labels map[string]string // all of them
	Cursor string            // of the page before; empty: the first page
	Limit  int               // 0: the default
}

// Detail is a sandbox with the request that created it.
type Detail struct {
	Sandbox
	// Spec is without the values of its Env.
	Spec Spec
	// Kept says that its state is kept while it does not run.
	Kept bool
}
