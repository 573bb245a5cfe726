package durable

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Workspace is a durable directory of a tenant. A [WorkspaceMount] in a Spec
// attaches it to a sandbox.
type Workspace struct {
	ID        string            `json:"id" doc:"assigned by the server; never reused"`
	Name      string            `json:"name"`
	Encrypted bool              `json:"encrypted,omitempty"`
	MaxBytes  int64             `json:"maxBytes,omitempty" doc:"bytes that one version may hold; no limit if it is left out"`
	Bucket    string            `json:"bucket,omitempty" doc:"S3 bucket that holds the workspace, if any"`
	Problem   string            `json:"problem,omitempty" doc:"why the last state could not be persisted; it is kept on the machine"`
	Created   time.Time         `json:"created"`
	Attached  []Attachment      `json:"attached" doc:"the sandboxes that it is attached to"`
	Latest    *WorkspaceVersion `json:"latest,omitempty" doc:"the newest version; not in lists"`
}

// NewWorkspace asks for an empty workspace.
type NewWorkspace struct {
	Name      string `json:"name" minLength:"1" maxLength:"63"`
	Encrypted bool   `json:"encrypted,omitempty" doc:"encrypt what is stored with a key of the daemon"`
	MaxBytes  int64  `json:"maxBytes,omitempty" minimum:"0" doc:"bytes that one version may hold; more cannot be persisted"`
	// Bucket is a bucket of an S3 service that holds the workspace, without
	// versions.
	Bucket string `json:"bucket,omitempty" maxLength:"63" doc:"S3 bucket that holds the workspace, one that the owner of the machine has configured; without versions"`
}

// Attachment is a sandbox that a workspace is attached to.
type Attachment struct {
	Sandbox sandbox.ID            `json:"sandbox" doc:"id of the sandbox"`
	Mode    sandbox.WorkspaceMode `json:"mode" enum:"exclusive,shared,read"`
	Since   time.Time             `json:"since"`
}

// WorkspaceVersion is one state of a workspace.
type WorkspaceVersion struct {
	Number  int       `json:"number"` // ascending, with gaps
	Created time.Time `json:"created"`
	Note    string    `json:"note,omitempty"` // why it was made
	Files   int64     `json:"files"`          // of every kind but directories
	Dirs    int64     `json:"dirs"`
	Bytes   int64     `json:"bytes" doc:"of file contents, without holes"`
	Added   int64     `json:"added" doc:"bytes that the store grew by"`
	Skipped int64     `json:"skipped,omitempty" doc:"sockets and device nodes, which are not kept"`
}

// WorkspaceChange is one difference between two versions.
type WorkspaceChange struct {
	Path string `json:"path" doc:"below the workspace; bytes that are not UTF-8 are replaced"`
	Kind string `json:"kind" enum:"added,removed,modified,touched"`
	Size int64  `json:"size" doc:"size in bytes after the change"`
	Dir  bool   `json:"dir,omitempty"`
}

// WorkspacePruned is the result of a prune.
type WorkspacePruned struct {
	Versions []int `json:"versions"`
	Freed    int64 `json:"freed" doc:"bytes by which the store shrank"`
}

// WorkspaceReport is the result of verifying a workspace.
type WorkspaceReport struct {
	Versions int   `json:"versions"`
	Chunks   int   `json:"chunks"`
	Bytes    int64 `json:"bytes" doc:"of everything that is stored"`
}
