package sandbox

import (
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/internal/field"
)

// Event is one record of the event log. It never has the value of a secret or
// the output of a command.
type Event struct {
	Seq     int64             `json:"seq" doc:"1, 2, 3, …; the cursor"`
	Time    time.Time         `json:"time"`
	Type    string            `json:"type" example:"sandbox.created"`
	Op      string            `json:"op" doc:"the operation" example:"files.read"`
	Key     string            `json:"key,omitempty" doc:"public part of the caller's API key"`
	UID     *uint32           `json:"uid,omitempty" doc:"user id of the caller on the local socket"`
	Node    string            `json:"node,omitempty" doc:"the daemon that recorded it"`
	Sandbox ID                `json:"sandbox,omitempty"`
	Name    string            `json:"name,omitempty" doc:"of the sandbox"`
	Labels  map[string]string `json:"labels,omitempty" doc:"labels that the sandbox had then"`
	Subject string            `json:"subject,omitempty" doc:"object of the operation, such as a path"`
	Policy  string            `json:"policy,omitempty" doc:"the rule that decided"`
	Ref     int64             `json:"ref,omitempty" doc:"seq of the attempted event that this is the outcome of"`
	Code    Code              `json:"code,omitempty" doc:"of a failure"`
	Program string            `json:"program,omitempty"`
	Argc    int               `json:"argc,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Exit    *int              `json:"exit,omitempty"`
	Reason  Reason            `json:"reason,omitempty"`
	Bytes   int64             `json:"bytes,omitempty"`

	Duration time.Duration `json:"durationMs,omitempty" doc:"how long a command ran, in milliseconds"`

	Request string `json:"request,omitempty" doc:"id of the request"`
	Trace   string `json:"trace,omitempty" doc:"id of the request's trace"`

	Epoch   int64 `json:"epoch,omitempty" doc:"which sandbox of a session, counted from 1"`
	Viewers int   `json:"viewers,omitempty" doc:"of a stream, afterwards"`

	Cols uint16 `json:"cols,omitempty" doc:"of a terminal, when it began"`
	Rows uint16 `json:"rows,omitempty"`
	Dir  string `json:"cwd,omitempty" doc:"where the command of a terminal began, if that was asked for"`
}

// MarshalJSON writes the duration in milliseconds.
func (e Event) MarshalJSON() ([]byte, error) {
	type plain Event
	field.ToMS(&e.Duration)
	return json.Marshal(plain(e))
}

// UnmarshalJSON reads the duration in milliseconds.
func (e *Event) UnmarshalJSON(text []byte) error {
	type plain Event
	field.ToMS(&e.Duration)
	err := json.Unmarshal(text, (*plain)(e))
	field.FromMS(&e.Duration)
	return err
}

// EventQuery selects events. The zero value selects all.
type EventQuery struct {
	After   int64 // only those with a higher Seq
	Page    int   // events per request; zero: the daemon's default
	Sandbox ID
	Types   []string
	Ops     []string
	Since   time.Time // not before; zero: from the first
	Until   time.Time // before; zero: to the last
}
