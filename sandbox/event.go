package sandbox

import (
	"encoding/json"
	"time"
)

// Event is one record of what happened. It holds no value of a secret and no
// output of a command.
type Event struct {
	Seq     int64             `json:"seq" doc:"1, 2, 3, …; the cursor"`
	Time    time.Time         `json:"time"`
	Type    string            `json:"type" example:"sandbox.created"`
	Op      string            `json:"op" doc:"what was done" example:"files.read"`
	Key     string            `json:"key,omitempty" doc:"public part of the API key of who did it"`
	UID     *uint32           `json:"uid,omitempty" doc:"of the local user who did it"`
	Node    string            `json:"node,omitempty" doc:"the daemon that did it"`
	Sandbox ID                `json:"sandbox,omitempty"`
	Name    string            `json:"name,omitempty" doc:"of the sandbox"`
	Labels  map[string]string `json:"labels,omitempty" doc:"those that the sandbox had then"`
	Subject string            `json:"subject,omitempty" doc:"what was touched"`
	Policy  string            `json:"policy,omitempty" doc:"the rule that decided"`
	Ref     int64             `json:"ref,omitempty" doc:"the attempt that this is the outcome of"`
	Code    Code              `json:"code,omitempty" doc:"of a failure"`
	Program string            `json:"program,omitempty"`
	Argc    int               `json:"argc,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Exit    *int              `json:"exit,omitempty"`
	Reason  Reason            `json:"reason,omitempty"`
	Bytes   int64             `json:"bytes,omitempty"`

	Duration time.Duration `json:"durationMs,omitempty" doc:"how long a command ran, in milliseconds"`

	Request string `json:"request,omitempty" doc:"id of the request that it was done for"`
	Trace   string `json:"trace,omitempty" doc:"id of the trace that request is part of"`

	Epoch int64 `json:"epoch,omitempty" doc:"which sandbox of a session, counted from 1"`
}

// MarshalJSON writes the duration in milliseconds.
func (e Event) MarshalJSON() ([]byte, error) {
	type plain Event
	toMS(&e.Duration)
	return json.Marshal(plain(e))
}

// UnmarshalJSON reads the duration in milliseconds.
func (e *Event) UnmarshalJSON(text []byte) error {
	type plain Event
	toMS(&e.Duration)
	err := json.Unmarshal(text, (*plain)(e))
	fromMS(&e.Duration)
	return err
}

// EventQuery selects events. The zero value selects all there are.
type EventQuery struct {
	After   int64 // only those with a higher Seq
	Page    int   // how many to ask for at a time; zero leaves it to the daemon
	Sandbox ID
	Types   []string
	Ops     []string
	Since   time.Time // not before; zero: from the first
	Until   time.Time // before; zero: to the last
}
