package atoll

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

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
	Progress func(sandbox.BuildEvent)
}

// BuildTemplate builds a template from a tar of files that contains a
// Dockerfile. Steps that did not change are taken from the cache. If ctx ends
// first, the build stops; only the finished steps stay in the cache.
func (c *Client) BuildTemplate(ctx context.Context, files io.Reader, opts BuildOptions) (sandbox.Template, error) {
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
		return sandbox.Template{}, err
	}
	r.Header.Set("Content-Type", "application/x-tar")
	answer, err := c.conn.Do(r)
	if err != nil {
		return sandbox.Template{}, err
	}
	defer answer.Body.Close()
	return readBuild(answer.Body, opts.Progress)
}

// readBuild reads the response of a build to its end.
func readBuild(r io.Reader, tell func(sandbox.BuildEvent)) (sandbox.Template, error) {
	lines := json.NewDecoder(bufio.NewReader(r))
	for {
		var line struct {
			Event    *sandbox.BuildEvent
			Template *sandbox.Template
			Problem  json.RawMessage
		}
		switch err := lines.Decode(&line); {
		case err != nil:
			return sandbox.Template{}, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "template.build", Message: "the connection to the daemon was lost before the build ended", Cause: err}
		case line.Problem != nil:
			if err := client.ParseProblem(line.Problem); err != nil {
				return sandbox.Template{}, err
			}
			return sandbox.Template{}, &sandbox.Error{Code: sandbox.CodeInternal, Op: "template.build", Message: "the build failed"}
		case line.Template != nil:
			return *line.Template, nil
		case line.Event != nil && tell != nil:
			tell(*line.Event)
		}
	}
}

// Templates lists templates by name and tag.
func (c *Client) Templates(ctx context.Context) ([]sandbox.Template, error) {
	var out struct{ Templates []sandbox.Template }
	err := c.conn.Call(ctx, http.MethodGet, "/v1/templates", nil, nil, &out)
	return out.Templates, err
}

// Template returns the template called NAME[:TAG], or another tenant's public
// template called TENANT/NAME[:TAG].
func (c *Client) Template(ctx context.Context, ref string) (t sandbox.Template, err error) {
	return t, c.conn.Call(ctx, http.MethodGet, "/v1/templates/"+url.PathEscape(ref), nil, nil, &t)
}

// TagTemplate gives a template one more name. A template that had this name
// loses it.
func (c *Client) TagTemplate(ctx context.Context, ref, as string) (t sandbox.Template, err error) {
	return t, c.conn.Call(ctx, http.MethodPost, "/v1/templates/"+url.PathEscape(ref)+"/tag", nil, map[string]string{"as": as}, &t)
}

// RemoveTemplate removes a name of a template. Sandboxes made from it are not
// affected.
func (c *Client) RemoveTemplate(ctx context.Context, ref string) error {
	return c.conn.Call(ctx, http.MethodDelete, "/v1/templates/"+url.PathEscape(ref), nil, nil, nil)
}

// PublishTemplate lets other tenants use all tags of a template, as
// TENANT/NAME[:TAG]. It needs an admin key.
func (c *Client) PublishTemplate(ctx context.Context, name string) (sandbox.Visibility, error) {
	return c.setPublic(ctx, name, true)
}

// UnpublishTemplate ends PublishTemplate. Sandboxes that other tenants have made
// from the template are not affected.
func (c *Client) UnpublishTemplate(ctx context.Context, name string) (sandbox.Visibility, error) {
	return c.setPublic(ctx, name, false)
}

func (c *Client) setPublic(ctx context.Context, name string, public bool) (v sandbox.Visibility, err error) {
	return v, c.conn.Call(ctx, http.MethodPut, "/v1/templates/"+url.PathEscape(name)+"/public", nil, map[string]bool{"public": public}, &v)
}

// PruneTemplates removes entries of the build cache that no build has used for
// the given time. Templates stay. It returns the number of bytes freed.
func (c *Client) PruneTemplates(ctx context.Context, unused time.Duration) (freed int64, err error) {
	var out struct{ Freed int64 }
	err = c.conn.Call(ctx, http.MethodPost, "/v1/templates:prune", nil, map[string]int64{"unusedMs": client.Milliseconds(unused)}, &out)
	return out.Freed, err
}
