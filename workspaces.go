package atoll

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// Keep says which versions [Client.PruneWorkspace] keeps: the last Last
// versions, and those made within the time Within. The newest is always kept.
// The zero value keeps all.
type Keep struct {
	Last   int
	Within time.Duration
}

func workspacePath(name string, rest ...string) string {
	p := "/v1/workspaces/" + url.PathEscape(name)
	for _, r := range rest {
		p += "/" + r
	}
	return p
}

// CreateWorkspace makes an empty workspace.
func (c *Client) CreateWorkspace(ctx context.Context, n sandbox.NewWorkspace) (w sandbox.Workspace, err error) {
	return w, c.conn.Call(ctx, http.MethodPost, "/v1/workspaces", nil, n, &w)
}

// Workspaces lists the workspaces of the tenant by name.
func (c *Client) Workspaces(ctx context.Context) ([]sandbox.Workspace, error) {
	var out struct{ Workspaces []sandbox.Workspace }
	return out.Workspaces, c.conn.Call(ctx, http.MethodGet, "/v1/workspaces", nil, nil, &out)
}

// Workspace describes a workspace.
func (c *Client) Workspace(ctx context.Context, name string) (w sandbox.Workspace, err error) {
	return w, c.conn.Call(ctx, http.MethodGet, workspacePath(name), nil, nil, &w)
}

// RemoveWorkspace removes a workspace with all its versions. It must not be
// attached to a sandbox.
func (c *Client) RemoveWorkspace(ctx context.Context, name string) error {
	return c.conn.Call(ctx, http.MethodDelete, workspacePath(name), nil, nil, nil)
}

// WorkspaceVersions lists the versions of a workspace, oldest first.
func (c *Client) WorkspaceVersions(ctx context.Context, name string) ([]sandbox.WorkspaceVersion, error) {
	var out struct{ Versions []sandbox.WorkspaceVersion }
	return out.Versions, c.conn.Call(ctx, http.MethodGet, workspacePath(name, "versions"), nil, nil, &out)
}

// DiffWorkspace returns the changes between two versions, by path. more says
// that there are more changes than were returned. from 0 is the empty
// workspace; to 0 is the newest version.
func (c *Client) DiffWorkspace(ctx context.Context, name string, from, to int) (changes []sandbox.WorkspaceChange, more bool, err error) {
	var out struct {
		Changes []sandbox.WorkspaceChange
		More    bool
	}
	q := url.Values{"from": {strconv.Itoa(from)}, "to": {strconv.Itoa(to)}}
	err = c.conn.Call(ctx, http.MethodGet, workspacePath(name, "diff"), q, nil, &out)
	return out.Changes, out.More, err
}

// PersistWorkspace saves the current content of a workspace as a new version. A
// sandbox may use the workspace meanwhile.
func (c *Client) PersistWorkspace(ctx context.Context, name, note string) (v sandbox.WorkspaceVersion, err error) {
	return v, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "persist"), nil, map[string]string{"note": note}, &v)
}

// RestoreWorkspace makes a new version with the content of an older one. If a
// sandbox has the workspace attached for writing, it is CodeConflict.
func (c *Client) RestoreWorkspace(ctx context.Context, name string, version int, note string) (v sandbox.WorkspaceVersion, err error) {
	in := map[string]any{"version": version, "note": note}
	return v, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "restore"), nil, in, &v)
}

// PruneWorkspace removes versions and frees their storage.
func (c *Client) PruneWorkspace(ctx context.Context, name string, keep Keep) (done sandbox.WorkspacePruned, err error) {
	in := map[string]any{"keepLast": keep.Last, "keepWithinMs": client.Milliseconds(keep.Within)}
	return done, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "prune"), nil, in, &done)
}

// VerifyWorkspace checks that every version can be restored. With deep, it
// reads every byte.
func (c *Client) VerifyWorkspace(ctx context.Context, name string, deep bool) (r sandbox.WorkspaceReport, err error) {
	q := url.Values{"deep": {strconv.FormatBool(deep)}}
	return r, c.conn.Call(ctx, http.MethodGet, workspacePath(name, "verify"), q, nil, &r)
}
