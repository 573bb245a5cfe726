package durable

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Snapshot is the state of a sandbox at a point in time. See [Spec.Snapshot]
// for how to start from one.
type Snapshot struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Ready  bool   `json:"ready" doc:"false while it is being made"`
	Memory bool   `json:"memory" doc:"it holds processes and their memory too"`
	Size   int64  `json:"size" doc:"bytes"`

	// Saved says that the snapshot is in the blob store. Stored is how many bytes
	// that store grew by. Problem says why it could not be saved.
	Saved     bool   `json:"saved" doc:"it is in the blob store; daemons that share the store can make sandboxes from it"`
	Stored    int64  `json:"stored,omitempty" doc:"bytes that the blob store grew by"`
	Encrypted bool   `json:"encrypted,omitempty" doc:"it is encrypted in the blob store"`
	Problem   string `json:"problem,omitempty" doc:"why it could not be saved"`

	Engine     string            `json:"engine,omitempty" doc:"the engine that wrote it; only the same engine restores memory"`
	Parent     sandbox.ID        `json:"parent" doc:"id of the sandbox it was taken of"`
	ParentName string            `json:"parentName"`
	Image      string            `json:"image"`
	Provider   string            `json:"provider,omitempty"`
	Resources  sandbox.Resources `json:"resources"`
	Labels     map[string]string `json:"labels,omitempty"`
	Created    time.Time         `json:"created"`
	Children   int64             `json:"children" doc:"sandboxes that were made from it and are not gone"`
}

// ProblemKept is the Problem of a snapshot that only its provider can keep.
const ProblemKept = "only the provider has it: its snapshots cannot be stored elsewhere"

// LabelTemplate is the label of a snapshot that holds the memory of a template;
// its value is the template's name.
const LabelTemplate = "template"

// SnapshotRequest asks for a snapshot. The zero value is usable.
type SnapshotRequest struct {
	Name   string            `json:"name,omitempty" maxLength:"63" doc:"unique among your snapshots; its id if it is left out"`
	Memory bool              `json:"memory,omitempty" doc:"processes and their memory too, not only files"`
	Labels map[string]string `json:"labels,omitempty"`
	// Save waits until the snapshot is in the blob store. Without it, the snapshot
	// is saved after the call returns.
	Save bool `json:"save,omitempty" doc:"respond when it is in the blob store; otherwise it is saved after the response"`
}

// ForkRequest asks for copies of a sandbox. The zero value asks for one.
type ForkRequest struct {
	Count  int               `json:"count,omitempty" minimum:"1" maximum:"100" default:"1"`
	Prefix string            `json:"prefix,omitempty" maxLength:"59" doc:"prefix of their names, PREFIX-1 and so on; their ids if it is left out"`
	Labels map[string]string `json:"labels,omitempty" doc:"added to those of the parent"`

	// IdempotencyKey makes a repeated request return the copies that the first one
	// made. Raw is the body of the request.
	IdempotencyKey string `json:"-"`
	Raw            []byte `json:"-"`
}

// Template is a named image that was built from a Dockerfile. The image
// "template:NAME[:TAG]" in a Spec makes a sandbox from it, and
// "template:TENANT/NAME[:TAG]" from a public template of another tenant. Of
// another tenant's template, Name is TENANT/NAME, and only Tag, Image, Size,
// Created, CPUs, Memory and Public are set besides.
type Template struct {
	Name    string    `json:"name"`
	Tag     string    `json:"tag"`
	Image   string    `json:"image" doc:"digest of the image"`
	Base    string    `json:"base" doc:"digest of the image it was built on"`
	Size    int64     `json:"size" doc:"bytes of its files"`
	Steps   int       `json:"steps"`
	Created time.Time `json:"created"`
	Start   string    `json:"start,omitempty" doc:"script that runs in every sandbox made from it"`
	// Snapshot is the id of a snapshot.
	Snapshot string `json:"snapshot,omitempty" doc:"snapshot that its sandboxes are made from, with their memory"`
	// CPUs and Memory are the defaults for sandboxes made from the template. 0: the
	// provider's default.
	CPUs   float64 `json:"cpus,omitempty" doc:"default CPUs of sandboxes made from it"`
	Memory int64   `json:"memory,omitempty" doc:"default memory of sandboxes made from it, in bytes"`
	Build  string  `json:"build,omitempty" doc:"id of the build, for clients of E2B"`
	Public bool    `json:"public,omitempty" doc:"other tenants may use it, as TENANT/NAME"`
}

// Visibility says who may use a template.
type Visibility struct {
	Name   string   `json:"name" doc:"TENANT/NAME, by which other tenants use it while it is public"`
	Tags   []string `json:"tags" doc:"all of its tags"`
	Public bool     `json:"public" doc:"other tenants may use it"`
}

// BuildEvent reports the progress of a template's build.
type BuildEvent struct {
	Time   time.Time `json:"time"`
	Step   int       `json:"step"`  // from 1; 0: the build as a whole
	Steps  int       `json:"steps"` // of the build
	Text   string    `json:"text"`  // the step, or a piece of its output
	Output bool      `json:"output,omitempty"`
	Cached bool      `json:"cached,omitempty"`
}

// StoredProfile is a stored egress profile.
type StoredProfile struct {
	Name    string          `json:"name"`
	Version int64           `json:"version" doc:"raised by every change"`
	Profile sandbox.Profile `json:"profile"`
	Created time.Time       `json:"created"`
	Updated time.Time       `json:"updated"`
	Uses    int             `json:"uses,omitempty" doc:"number of sandboxes that use it; only in a list"`
}
