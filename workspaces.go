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

// Keep says which versions a prune keeps: all that one of the rules wants, and
// always the newest. The zero value keeps all.
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

// Workspace returns what is known of a workspace.
func (c *Client) Workspace(ctx context.Context, name string) (w sandbox.Workspace, err error) {
	return w, c.conn.Call(ctx, http.MethodGet, workspacePath(name), nil, nil, &w)
}

// RemoveWorkspace removes a workspace with all its versions. It must not be
// attached.
func (c *Client) RemoveWorkspace(ctx context.Context, name string) error {
	return c.conn.Call(ctx, http.MethodDelete, workspacePath(name), nil, nil, nil)
}

// WorkspaceVersions lists the versions of a workspace, oldest first.
func (c *Client) WorkspaceVersions(ctx context.Context, name string) ([]sandbox.WorkspaceVersion, error) {
	var out struct{ Versions []sandbox.WorkspaceVersion }
	return out.Versions, c.conn.Call(ctx, http.MethodGet, workspacePath(name, "versions"), nil, nil, &out)
}

// DiffWorkspace returns what changed between two versions, by path, and whether
// there is more than is returned. Version 0 is empty as from, and the newest as
// to.
func (c *Client) DiffWorkspace(ctx context.Context, name string, from, to int) (changes []sandbox.WorkspaceChange, more bool, err error) {
	var out struct {
		Changes []sandbox.WorkspaceChange
		More    bool
	}
	q := url.Values{"from": {strconv.Itoa(from)}, "to": {strconv.Itoa(to)}}
	err = c.conn.Call(ctx, http.MethodGet, workspacePath(name, "diff"), q, nil, &out)
	return out.Changes, out.More, err
}

// PersistWorkspace makes a version of what a workspace holds by now, while a
// sandbox may be changing it.
func (c *Client) PersistWorkspace(ctx context.Context, name, note string) (v sandbox.WorkspaceVersion, err error) {
	return v, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "persist"), nil, map[string]string{"note": note}, &v)
}

// RestoreWorkspace makes an older version the newest. No sandbox may be
// changing the workspace.
func (c *Client) RestoreWorkspace(ctx context.Context, name string, version int, note string) (v sandbox.WorkspaceVersion, err error) {
	in := map[string]any{"version": version, "note": note}
	return v, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "restore"), nil, in, &v)
}

// PruneWorkspace forgets versions and frees what they took.
func (c *Client) PruneWorkspace(ctx context.Context, name string, keep Keep) (done sandbox.WorkspacePruned, err error) {
	in := map[string]any{"keepLast": keep.Last, "keepWithinMs": client.Milliseconds(keep.Within)}
	return done, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "prune"), nil, in, &done)
}

// VerifyWorkspace makes sure that every version can be restored; if deep is
// set, by reading every byte.
func (c *Client) VerifyWorkspace(ctx context.Context, name string, deep bool) (r sandbox.WorkspaceReport, err error) {
	q := url.Values{"deep": {strconv.FormatBool(deep)}}
	return r, c.conn.Call(ctx, http.MethodGet, workspacePath(name, "verify"), q, nil, &r)
}
