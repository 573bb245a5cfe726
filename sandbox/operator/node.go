package operator

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// NodeState is the state of a node.
type NodeState string

// The states of a node.
const (
	NodeReady       NodeState = "ready"
	NodeUnreachable NodeState = "unreachable" // it does not answer; this says nothing about its sandboxes
	NodeCordoned    NodeState = "cordoned"    // it gets no new sandboxes
	NodeDraining    NodeState = "draining"    // its sessions are being moved
	NodeRemoved     NodeState = "removed"
)

// Node is another daemon on which this one makes sandboxes.
type Node struct {
	Name     string    `json:"name"`
	URL      string    `json:"url"`
	Provider string    `json:"provider" doc:"the provider that makes sandboxes there"`
	State    NodeState `json:"state" enum:"ready,unreachable,cordoned,draining,removed"`
	Reason   string    `json:"reason,omitempty" doc:"why it gets no new sandboxes"`
	// Placed counts the sandboxes that this daemon has there.
	Placed  int       `json:"placed" doc:"sandboxes that this daemon has there"`
	Load    *Load     `json:"load,omitempty" doc:"as it was at the last answer"`
	Seen    time.Time `json:"seen,omitzero" doc:"when it answered last"`
	Removed time.Time `json:"removed,omitzero"`
	// Lost means that it was removed while it did not answer.
	Lost bool `json:"lost,omitempty" doc:"it was removed while it did not answer"`
}

// Load is the free capacity of a daemon. A caller with a key sees the sandboxes and
// images of its tenant only.
type Load struct {
	MemoryTotal    int64    `json:"memoryTotal" doc:"memory of the machine, in bytes"`
	MemoryFree     int64    `json:"memoryFree" doc:"free memory of the machine, in bytes"`
	MemoryReserved int64    `json:"memoryReserved" doc:"memory that the running sandboxes may use, in bytes"`
	Sandboxes      int      `json:"sandboxes" doc:"how many there are"`
	Images         []string `json:"images" doc:"names of the images that are stored there"`
	// Isolation is that of a new sandbox which names no provider.
	Isolation sandbox.Isolation `json:"isolation,omitempty" enum:"none,kernel,hardware" doc:"what isolates a new sandbox there; missing: it is not known"`
}

// NodeChange changes a node. Nil fields stay as they are.
type NodeChange struct {
	Cordoned *bool `json:"cordoned,omitempty" doc:"whether it gets no new sandboxes; false also ends a drain, and takes back a removed node"`
}

// NodeDrain asks for a drain.
type NodeDrain struct {
	Force bool `json:"force,omitempty" doc:"end the sandboxes that belong to no session"`
}

// NodeDrained is the result of a drain.
type NodeDrained struct {
	Node  string        `json:"node"`
	Moved []NodeMoved   `json:"moved" doc:"sessions that were moved"`
	Kept  []NodeSandbox `json:"kept" doc:"sandboxes that are still there"`
	Ended []NodeSandbox `json:"ended" doc:"sandboxes without a session that were ended"`
}

// NodeMoved is a session that a drain moved.
type NodeMoved struct {
	Tenant  string          `json:"tenant"`
	Session string          `json:"session"`
	Receipt durable.Receipt `json:"receipt"`
}

// NodeSandbox is a sandbox on a node.
type NodeSandbox struct {
	Tenant  string     `json:"tenant"`
	Sandbox sandbox.ID `json:"sandbox"`
	Name    string     `json:"name"`
	Session string     `json:"session,omitempty"`
	Reason  string     `json:"reason,omitempty" doc:"why it is still there"`
}
