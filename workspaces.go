package atoll

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/viewing"
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
func (c *Client) CreateWorkspace(ctx context.Context, n durable.NewWorkspace) (w durable.Workspace, err error) {
	return w, c.conn.Call(ctx, http.MethodPost, "/v1/workspaces", nil, n, &w)
}

// Workspaces lists the workspaces of the tenant by name.
func (c *Client) Workspaces(ctx context.Context) ([]durable.Workspace, error) {
	var out struct{ Workspaces []durable.Workspace }
	return out.Workspaces, c.conn.Call(ctx, http.MethodGet, "/v1/workspaces", nil, nil, &out)
}

// Workspace describes a workspace.
func (c *Client) Workspace(ctx context.Context, name string) (w durable.Workspace, err error) {
	return w, c.conn.Call(ctx, http.MethodGet, workspacePath(name), nil, nil, &w)
}

// RemoveWorkspace removes a workspace with all its versions. It must not be
// attached to a sandbox.
func (c *Client) RemoveWorkspace(ctx context.Context, name string) error {
	return c.conn.Call(ctx, http.MethodDelete, workspacePath(name), nil, nil, nil)
}

// WorkspaceVersions lists the versions of a workspace, oldest first.
func (c *Client) WorkspaceVersions(ctx context.Context, name string) ([]durable.WorkspaceVersion, error) {
	var out struct{ Versions []durable.WorkspaceVersion }
	return out.Versions, c.conn.Call(ctx, http.MethodGet, workspacePath(name, "versions"), nil, nil, &out)
}

// DiffWorkspace returns the changes between two versions, by path. more says
// that there are more changes than were returned. from 0 is the empty
// workspace; to 0 is the newest version.
func (c *Client) DiffWorkspace(ctx context.Context, name string, from, to int) (changes []durable.WorkspaceChange, more bool, err error) {
	var out struct {
		Changes []durable.WorkspaceChange
		More    bool
	}
	q := url.Values{"from": {strconv.Itoa(from)}, "to": {strconv.Itoa(to)}}
	err = c.conn.Call(ctx, http.MethodGet, workspacePath(name, "diff"), q, nil, &out)
	return out.Changes, out.More, err
}

// PersistWorkspace saves the current content of a workspace as a new version. A
// sandbox may use the workspace meanwhile.
func (c *Client) PersistWorkspace(ctx context.Context, name, note string) (v durable.WorkspaceVersion, err error) {
	return v, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "persist"), nil, map[string]string{"note": note}, &v)
}

// RestoreWorkspace makes a new version with the content of an older one. If a
// sandbox has the workspace attached for writing, it is CodeConflict.
func (c *Client) RestoreWorkspace(ctx context.Context, name string, version int, note string) (v durable.WorkspaceVersion, err error) {
	in := map[string]any{"version": version, "note": note}
	return v, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "restore"), nil, in, &v)
}

// PruneWorkspace removes versions and frees their storage.
func (c *Client) PruneWorkspace(ctx context.Context, name string, keep Keep) (done durable.WorkspacePruned, err error) {
	in := map[string]any{"keepLast": keep.Last, "keepWithinMs": client.Milliseconds(keep.Within)}
	return done, c.conn.Call(ctx, http.MethodPost, workspacePath(name, "prune"), nil, in, &done)
}

// VerifyWorkspace checks that every version can be restored. With deep, it
// reads every byte.
func (c *Client) VerifyWorkspace(ctx context.Context, name string, deep bool) (r durable.WorkspaceReport, err error) {
	q := url.Values{"deep": {strconv.FormatBool(deep)}}
	return r, c.conn.Call(ctx, http.MethodGet, workspacePath(name, "verify"), q, nil, &r)
}

// BuildOptions say how a template is built. Only Name is required.
type BuildOptions struct {
	Name    string            // NAME or NAME:TAG; replaces an existing template of that name
	File    string            // path of the Dockerfile in the tar; empty: "Dockerfile"
	Args    map[string]string // build arguments; do not put secrets here
	NoCache bool              // run every step, even if its result is cached
	Egress  []string          // hosts that RUN steps may reach, as in sandbox.Network; nil: no network
	// Start is a script that runs in every sandbox of the template. It is started
	// once, at the end of the build. When the script Ready succeeds, a snapshot
	// with memory is taken. New sandboxes start from that snapshot.
	Start, Ready string
	// Progress is called for each event of the build, from the goroutine of
	// BuildTemplate. It may be nil.
	Progress func(durable.BuildEvent)
}

// BuildTemplate builds a template from a tar of files that contains a
// Dockerfile. Steps that did not change are taken from the cache. If ctx ends
// first, the build stops; only the finished steps stay in the cache.
func (c *Client) BuildTemplate(ctx context.Context, files io.Reader, opts BuildOptions) (durable.Template, error) {
	query := url.Values{"name": {opts.Name}}
	if opts.File != "" {
		query.Set("file", opts.File)
	}
	if opts.NoCache {
		query.Set("noCache", strconv.FormatBool(true))
	}
	for name, script := range map[string]string{"start": opts.Start, "ready": opts.Ready} {
		if script != "" {
			query.Set(name, script)
		}
	}
	for _, host := range opts.Egress {
		query.Add("egress", host)
	}
	for name, value := range opts.Args {
		query.Add("arg", name+"="+value)
	}
	r, err := c.conn.Request(ctx, http.MethodPost, "/v1/templates", query, files)
	if err != nil {
		return durable.Template{}, err
	}
	r.Header.Set("Content-Type", "application/x-tar")
	answer, err := c.conn.Do(r)
	if err != nil {
		return durable.Template{}, err
	}
	defer answer.Body.Close()
	return readBuild(answer.Body, opts.Progress)
}

// readBuild reads the response of a build to its end.
func readBuild(r io.Reader, tell func(durable.BuildEvent)) (durable.Template, error) {
	lines := json.NewDecoder(bufio.NewReader(r))
	for {
		var line struct {
			Event    *durable.BuildEvent
			Template *durable.Template
			Problem  json.RawMessage
		}
		switch err := lines.Decode(&line); {
		case err != nil:
			return durable.Template{}, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "template.build", Message: "the connection to the daemon was lost before the build ended", Cause: err}
		case line.Problem != nil:
			if err := client.ParseProblem(line.Problem); err != nil {
				return durable.Template{}, err
			}
			return durable.Template{}, &sandbox.Error{Code: sandbox.CodeInternal, Op: "template.build", Message: "the build failed"}
		case line.Template != nil:
			return *line.Template, nil
		case line.Event != nil && tell != nil:
			tell(*line.Event)
		}
	}
}

// Templates lists templates by name and tag.
func (c *Client) Templates(ctx context.Context) ([]durable.Template, error) {
	var out struct{ Templates []durable.Template }
	err := c.conn.Call(ctx, http.MethodGet, "/v1/templates", nil, nil, &out)
	return out.Templates, err
}

// Template returns the template called NAME[:TAG], or another tenant's public
// template called TENANT/NAME[:TAG].
func (c *Client) Template(ctx context.Context, ref string) (t durable.Template, err error) {
	return t, c.conn.Call(ctx, http.MethodGet, "/v1/templates/"+url.PathEscape(ref), nil, nil, &t)
}

// TagTemplate gives a template one more name. A template that had this name
// loses it.
func (c *Client) TagTemplate(ctx context.Context, ref, as string) (t durable.Template, err error) {
	return t, c.conn.Call(ctx, http.MethodPost, "/v1/templates/"+url.PathEscape(ref)+"/tag", nil, map[string]string{"as": as}, &t)
}

// RemoveTemplate removes a name of a template. Sandboxes made from it are not
// affected.
func (c *Client) RemoveTemplate(ctx context.Context, ref string) error {
	return c.conn.Call(ctx, http.MethodDelete, "/v1/templates/"+url.PathEscape(ref), nil, nil, nil)
}

// PublishTemplate lets other tenants use all tags of a template, as
// TENANT/NAME[:TAG]. It needs an admin key.
func (c *Client) PublishTemplate(ctx context.Context, name string) (durable.Visibility, error) {
	return c.setPublic(ctx, name, true)
}

// UnpublishTemplate ends PublishTemplate. Sandboxes that other tenants have made
// from the template are not affected.
func (c *Client) UnpublishTemplate(ctx context.Context, name string) (durable.Visibility, error) {
	return c.setPublic(ctx, name, false)
}

func (c *Client) setPublic(ctx context.Context, name string, public bool) (v durable.Visibility, err error) {
	return v, c.conn.Call(ctx, http.MethodPut, "/v1/templates/"+url.PathEscape(name)+"/public", nil, map[string]bool{"public": public}, &v)
}

// PruneTemplates removes entries of the build cache that no build has used for
// the given time. Templates stay. It returns the number of bytes freed.
func (c *Client) PruneTemplates(ctx context.Context, unused time.Duration) (freed int64, err error) {
	var out struct{ Freed int64 }
	err = c.conn.Call(ctx, http.MethodPost, "/v1/templates:prune", nil, map[string]int64{"unusedMs": client.Milliseconds(unused)}, &out)
	return out.Freed, err
}

// Record starts a recording of a terminal or of the desktop of the sandbox. It
// goes on without the caller, until it is stopped, the command in the terminal
// ends, or a limit is reached. While it runs, the sandbox is in use.
func (s *Sandbox) Record(ctx context.Context, n viewing.NewRecording) (r viewing.Recording, err error) {
	return r, s.client.conn.Call(ctx, http.MethodPost, s.path("/recordings"), nil, n, &r)
}

func recordingPath(id, rest string) string { return "/v1/recordings/" + url.PathEscape(id) + rest }

// Recordings yields the recordings that match, newest first, and requests them
// page by page. It ends with the first error.
func (c *Client) Recordings(ctx context.Context, q viewing.RecordingQuery) iter.Seq2[viewing.Recording, error] {
	return func(yield func(viewing.Recording, error) bool) {
		query := url.Values{}
		for name, value := range map[string]string{"sandbox": q.Sandbox, "session": q.Session, "cursor": q.Cursor} {
			if value != "" {
				query.Set(name, value)
			}
		}
		if q.Limit > 0 {
			query.Set("limit", strconv.Itoa(q.Limit))
		}
		for {
			var page struct {
				Recordings []viewing.Recording
				Next       string
			}
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/recordings", query, nil, &page); err != nil {
				yield(viewing.Recording{}, err)
				return
			}
			for _, r := range page.Recordings {
				if !yield(r, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}

// Recording returns a recording.
func (c *Client) Recording(ctx context.Context, id string) (r viewing.Recording, err error) {
	return r, c.conn.Call(ctx, http.MethodGet, recordingPath(id, ""), nil, nil, &r)
}

// StopRecording ends a recording, and waits until it is stored. It succeeds if
// the recording has ended already.
func (c *Client) StopRecording(ctx context.Context, id string) (r viewing.Recording, err error) {
	return r, c.conn.Call(ctx, http.MethodPost, recordingPath(id, "/stop"), nil, nil, &r)
}

// FetchRecording opens the file of a recording: of a terminal, an asciicast of
// version 2, and of a desktop, an MP4 file. Of a recording that runs, it has what was recorded until now. The caller closes
// the reader.
func (c *Client) FetchRecording(ctx context.Context, id string) (io.ReadCloser, error) {
	r, err := c.conn.Request(ctx, http.MethodGet, recordingPath(id, "/content"), nil, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.conn.Do(r)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// RemoveRecording removes a recording. One that runs ends.
func (c *Client) RemoveRecording(ctx context.Context, id string) error {
	return c.conn.Call(ctx, http.MethodDelete, recordingPath(id, ""), nil, nil, nil)
}
