package atoll

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Workspace is a durable directory of the tenant. A sandbox sees it at
// sandbox.WorkspaceDir if its Spec asks for it.
type Workspace struct {
	Name      string       `json:"name"`
	Encrypted bool         `json:"encrypted,omitempty"`
	MaxBytes  int64        `json:"maxBytes,omitempty"` // that one version may hold; 0: no limit
	Bucket    string       `json:"bucket,omitempty"`   // that it is; empty: it is none
	Problem   string       `json:"problem,omitempty"`  // what kept the last state from being persisted
	Created   time.Time    `json:"created"`
	Attached  []Attachment `json:"attached"`
	Latest    *Version     `json:"latest,omitempty"` // nil if there is none, and in lists
}

// Attachment says which sandbox has a workspace.
type Attachment struct {
	Sandbox sandbox.ID            `json:"sandbox"`
	Mode    sandbox.WorkspaceMode `json:"mode"`
	Since   time.Time             `json:"since"`
}

// Version is one state of a workspace.
type Version struct {
	Number  int       `json:"number"` // ascending, with gaps
	Created time.Time `json:"created"`
	Note    string    `json:"note,omitempty"`
	Files   int64     `json:"files"`
	Dirs    int64     `json:"dirs"`
	Bytes   int64     `json:"bytes"`             // of contents, holes not counted
	Added   int64     `json:"added"`             // bytes that the store grew by
	Skipped int64     `json:"skipped,omitempty"` // sockets and device nodes, which are not kept
}

// WorkspaceChange is one difference between two versions.
type WorkspaceChange struct {
	Path string `json:"path"` // below the workspace; bytes that are no UTF-8 are replaced
	Kind string `json:"kind"` // added, removed, modified or touched
	Size int64  `json:"size"` // bytes of what is there afterwards
	Dir  bool   `json:"dir,omitempty"`
}

// WorkspaceOptions say what a new workspace is like.
type WorkspaceOptions struct {
	Encrypted bool  `json:"encrypted,omitempty"` // with a key of the daemon
	MaxBytes  int64 `json:"maxBytes,omitempty"`
	// Bucket makes it a bucket of an S3 service, by the name that the owner of
	// the machine gave it. It has no versions.
	Bucket string `json:"bucket,omitempty"`
}

// Keep says which versions a prune keeps: all that one of the rules wants, and
// always the newest. The zero value keeps all.
type Keep struct {
	Last   int
	Within time.Duration
}

// Pruned tells what a prune did.
type Pruned struct {
	Versions []int `json:"versions"` // that are gone
	Freed    int64 `json:"freed"`    // bytes by which the store shrank
}

// WorkspaceReport tells what was verified.
type WorkspaceReport struct {
	Versions int   `json:"versions"`
	Chunks   int   `json:"chunks"`
	Bytes    int64 `json:"bytes"` // of everything that is stored
}

func workspacePath(name string, rest ...string) string {
	p := "/v1/workspaces/" + url.PathEscape(name)
	for _, r := range rest {
		p += "/" + r
	}
	return p
}

// CreateWorkspace makes an empty workspace.
func (c *Client) CreateWorkspace(ctx context.Context, name string, opts WorkspaceOptions) (w Workspace, err error) {
	in := struct {
		Name string `json:"name"`
		WorkspaceOptions
	}{name, opts}
	return w, c.call(ctx, http.MethodPost, "/v1/workspaces", nil, in, &w)
}

// Workspaces lists the workspaces of the tenant by name.
func (c *Client) Workspaces(ctx context.Context) ([]Workspace, error) {
	var out struct{ Workspaces []Workspace }
	return out.Workspaces, c.call(ctx, http.MethodGet, "/v1/workspaces", nil, nil, &out)
}

// Workspace returns what is known of a workspace.
func (c *Client) Workspace(ctx context.Context, name string) (w Workspace, err error) {
	return w, c.call(ctx, http.MethodGet, workspacePath(name), nil, nil, &w)
}

// RemoveWorkspace removes a workspace with all its versions. It must not be
// attached.
func (c *Client) RemoveWorkspace(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, workspacePath(name), nil, nil, nil)
}

// WorkspaceVersions lists the versions of a workspace, oldest first.
func (c *Client) WorkspaceVersions(ctx context.Context, name string) ([]Version, error) {
	var out struct{ Versions []Version }
	return out.Versions, c.call(ctx, http.MethodGet, workspacePath(name, "versions"), nil, nil, &out)
}

// DiffWorkspace returns what changed between two versions, by path, and whether
// there is more than is returned. Version 0 is empty as from, and the newest as
// to.
func (c *Client) DiffWorkspace(ctx context.Context, name string, from, to int) (changes []WorkspaceChange, more bool, err error) {
	var out struct {
		Changes []WorkspaceChange
		More    bool
	}
	q := url.Values{"from": {strconv.Itoa(from)}, "to": {strconv.Itoa(to)}}
	err = c.call(ctx, http.MethodGet, workspacePath(name, "diff"), q, nil, &out)
	return out.Changes, out.More, err
}

// PersistWorkspace makes a version of what a workspace holds by now, while a
// sandbox may be changing it.
func (c *Client) PersistWorkspace(ctx context.Context, name, note string) (v Version, err error) {
	return v, c.call(ctx, http.MethodPost, workspacePath(name, "persist"), nil, map[string]string{"note": note}, &v)
}

// RestoreWorkspace makes an older version the newest. No sandbox may be
// changing the workspace.
func (c *Client) RestoreWorkspace(ctx context.Context, name string, version int, note string) (v Version, err error) {
	in := map[string]any{"version": version, "note": note}
	return v, c.call(ctx, http.MethodPost, workspacePath(name, "restore"), nil, in, &v)
}

// PruneWorkspace forgets versions and frees what they took.
func (c *Client) PruneWorkspace(ctx context.Context, name string, keep Keep) (done Pruned, err error) {
	in := map[string]any{"keepLast": keep.Last, "keepWithinMs": milliseconds(keep.Within)}
	return done, c.call(ctx, http.MethodPost, workspacePath(name, "prune"), nil, in, &done)
}

// VerifyWorkspace makes sure that every version can be restored; if deep is
// set, by reading every byte.
func (c *Client) VerifyWorkspace(ctx context.Context, name string, deep bool) (r WorkspaceReport, err error) {
	q := url.Values{"deep": {strconv.FormatBool(deep)}}
	return r, c.call(ctx, http.MethodGet, workspacePath(name, "verify"), q, nil, &r)
}
