package eventlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// form is the canonical form of an Event, which is stored, hashed and exported.
// The order of the fields is the order in the JSON. Fields are never removed or
// changed: new ones are added at the end, with omitempty.
type form struct {
	Tenant string    `json:"tenant"`
	Seq    int64     `json:"seq"`  // 1, 2, 3, … within the tenant
	Time   time.Time `json:"time"` // in UTC; it may go back if the clock is set, Seq never does
	Type   Type      `json:"type"`
	Op     string    `json:"op"` // as in engine.Action, e.g. "files.read"
	Actor  Actor     `json:"actor,omitzero"`

	Sandbox sandbox.ID        `json:"sandbox,omitempty"`
	Name    string            `json:"name,omitempty"` // of the sandbox
	Labels  map[string]string `json:"labels,omitempty"`
	Subject string            `json:"subject,omitempty"` // what was accessed: a path, a process, a key
	Policy  string            `json:"policy,omitempty"`  // the policy that decided

	// Ref is the Seq of the attempt that this event records the outcome of.
	Ref  int64        `json:"ref,omitempty"`
	Code sandbox.Code `json:"code,omitempty"` // of the outcome; empty means success

	Program string   `json:"program,omitempty"` // a command's program, without its arguments
	Argc    int      `json:"argc,omitempty"`    // number of arguments
	Args    []string `json:"args,omitempty"`    // only with audit.Options.RecordArgs

	Exit   *int           `json:"exit,omitempty"`   // exit status
	Reason sandbox.Reason `json:"reason,omitempty"` // why the process ended
	Bytes  int64          `json:"bytes,omitempty"`  // number of bytes moved

	DurationMS int64 `json:"durationMs,omitempty"` // duration in milliseconds

	Request string `json:"request,omitempty"` // id of the request that it was done for
	Trace   string `json:"trace,omitempty"`   // id of the trace that request is part of

	Epoch   int64 `json:"epoch,omitempty"`   // of the sandbox of a session
	Viewers int   `json:"viewers,omitempty"` // of a stream

	Cols uint16 `json:"cols,omitempty"` // of a terminal
	Rows uint16 `json:"rows,omitempty"`
	Dir  string `json:"cwd,omitempty"` // where its command began
}

// encode returns the canonical form: JSON without white space and without HTML
// escapes.
func encode(e *Event) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(form{
		Tenant: e.Tenant, Actor: Actor{Key: e.Key, UID: e.UID, Node: e.Node}, DurationMS: e.Duration.Milliseconds(),
		Seq: e.Seq, Time: e.Time, Type: e.Type, Op: e.Op, Sandbox: e.Sandbox, Name: e.Name,
		Labels: e.Labels, Subject: e.Subject, Policy: e.Policy,
		Ref: e.Ref, Code: e.Code, Program: e.Program, Argc: e.Argc, Args: e.Args,
		Exit: e.Exit, Reason: e.Reason, Bytes: e.Bytes, Request: e.Request, Trace: e.Trace, Epoch: e.Epoch, Viewers: e.Viewers,
		Cols: e.Cols, Rows: e.Rows, Dir: e.Dir,
	})
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func decode(r *store.EventRow) (Event, error) {
	var f form
	if err := json.Unmarshal(r.Body, &f); err != nil {
		return Event{}, fmt.Errorf("record %d cannot be read: %w", r.Seq, err)
	}
	return Event{f.Tenant, sandbox.Event{
		Key: f.Actor.Key, UID: f.Actor.UID, Node: f.Actor.Node, Duration: time.Duration(f.DurationMS) * time.Millisecond,
		Seq: f.Seq, Time: f.Time, Type: f.Type, Op: f.Op, Sandbox: f.Sandbox, Name: f.Name,
		Labels: f.Labels, Subject: f.Subject, Policy: f.Policy,
		Ref: f.Ref, Code: f.Code, Program: f.Program, Argc: f.Argc, Args: f.Args,
		Exit: f.Exit, Reason: f.Reason, Bytes: f.Bytes, Request: f.Request, Trace: f.Trace, Epoch: f.Epoch, Viewers: f.Viewers,
		Cols: f.Cols, Rows: f.Rows, Dir: f.Dir,
	}}, nil
}
