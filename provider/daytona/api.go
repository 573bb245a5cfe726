package daytona

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the service. It implements hosted.Service.
type api struct{ *hosted.Login }

// parseError reads an error of the service.
func parseError(status int, body []byte) (code, message string, ok bool) {
	var said struct {
		Status  int    `json:"statusCode"`
		Code    string `json:"error"`
		Message string `json:"message"`
	}
	err := json.Unmarshal(body, &said)
	return said.Code, said.Message, err == nil && said.Status == status
}

// missing reports that the service itself says that there is no such sandbox.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Ours && r.Status == http.StatusNotFound
}

// creation is the request for a new sandbox.
type creation struct {
	Name      string            `json:"name"`
	Snapshot  string            `json:"snapshot,omitempty"`
	Target    string            `json:"target,omitempty"`
	Labels    map[string]string `json:"labels"`
	AutoStop  *int              `json:"autoStopInterval"`
	AutoPause *int              `json:"autoPauseInterval"`
	TTL       int64             `json:"ttlMinutes,omitempty"`
	networkRules
}

// networkRules are what a sandbox may reach. With a list, nothing else.
type networkRules struct {
	BlockAll bool   `json:"networkBlockAll"`
	Prefixes string `json:"networkAllowList,omitempty"`
	Domains  string `json:"domainAllowList,omitempty"`
}

// apiSandbox is the service's description of a sandbox.
type apiSandbox struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	State   string            `json:"state"`
	Labels  map[string]string `json:"labels"`
	Created time.Time         `json:"createdAt,omitzero"`
	Ends    time.Time         `json:"autoDestroyAt,omitzero"`
	Toolbox string            `json:"toolboxProxyUrl"`
	networkRules
}

// The resting states of a sandbox.
const (
	started  = "started"
	stopped  = "stopped"
	paused   = "paused"
	archived = "archived"
)

// states says what the service's states mean.
var states = hosted.States{
	started: sandbox.Running, "creating": sandbox.Running, "starting": sandbox.Running, "resuming": sandbox.Running, "restoring": sandbox.Running,
	"pulling_snapshot": sandbox.Running, "pending_build": sandbox.Running, "building_snapshot": sandbox.Running, "resizing": sandbox.Running,
	"snapshotting": sandbox.Running, "forking": sandbox.Running,
	stopped: sandbox.Paused, "stopping": sandbox.Paused, paused: sandbox.Paused, "pausing": sandbox.Paused, archived: sandbox.Paused,
	"archiving": sandbox.Paused,
	"error":     sandbox.Failed, "build_failed": sandbox.Failed, "destroyed": sandbox.Gone, "destroying": sandbox.Gone,
}

// names are the names of sandboxes. Labels mark them, too, but are not unique.
const names = hosted.Names("-")

// describe converts the service's description of a sandbox. The record knows its
// end exactly, so that is not taken from the service.
func (s apiSandbox) describe() hosted.Sandbox {
	return hosted.Marked(hosted.Sandbox{ID: s.ID, Status: s.State, State: states.Of(s.State), Created: s.Created, Access: s.Toolbox}, s.Labels)
}

// get returns a sandbox by its ID.
func (a *api) get(ctx context.Context, id string) (b apiSandbox, err error) {
	err = a.Call(ctx, http.MethodGet, "/sandbox/"+url.PathEscape(id), nil, &b)
	switch {
	case missing(err):
		err = hosted.ErrNone
	case err == nil && b.ID != id:
		err = a.ProtocolError("the service answers for another sandbox")
	}
	return b, err
}

// named returns a sandbox by its name.
func (a *api) named(ctx context.Context, name string) (b apiSandbox, err error) {
	err = a.Call(ctx, http.MethodGet, "/sandbox/"+name, nil, &b)
	switch {
	case missing(err) || err == nil && states.Of(b.State) == sandbox.Gone:
		err = hosted.ErrNone
	case err == nil && (b.ID == "" || b.Name != name):
		err = a.ProtocolError("the service answers for another sandbox")
	}
	return b, err
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, id string) (hosted.Sandbox, error) {
	b, err := a.get(ctx, id)
	d := b.describe()
	if err == nil && d.State == sandbox.Gone {
		err = hosted.ErrNone
	}
	return d, err
}

// pages is one page of a list.
type pages struct {
	Items []apiSandbox `json:"items"`
	Next  string       `json:"nextCursor"`
}

func (a *api) page(ctx context.Context, q url.Values) (p pages, err error) {
	err = a.Call(ctx, http.MethodGet, "/sandbox?"+q.Encode(), nil, &p)
	if err == nil && p.Items == nil {
		err = a.ProtocolError("the service's list is invalid")
	}
	return p, err
}

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) ([]hosted.Sandbox, error) {
	labels, err := json.Marshal(hosted.Wanted(scope, id))
	if err != nil {
		return nil, err
	}
	q := url.Values{"labels": {string(labels)}, "limit": {"100"}}
	return hosted.Chained(&a.Client, func(cursor string) (found []hosted.Sandbox, next string, err error) {
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		p, err := a.page(ctx, q)
		for _, b := range p.Items {
			found = append(found, b.describe())
		}
		return found, p.Next, err
	})
}

// End implements hosted.Service. It waits until the sandbox has ended, because
// the service only begins that.
func (a *api) End(ctx context.Context, id sandbox.ID, sandboxID string) error {
	if err := a.Remove(ctx, "/sandbox/"+url.PathEscape(sandboxID)); missing(err) {
		return hosted.ErrNone
	} else if err != nil {
		return err
	}
	return hosted.Poll(ctx, func() (bool, error) {
		b, err := a.get(ctx, sandboxID)
		if err == hosted.ErrNone || err == nil && b.State == "destroyed" {
			return true, nil
		}
		return false, err
	}, func() error { return a.ProtocolError("the service does not end the sandbox") })
}

// Claim implements hosted.Claimer.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	return a.Call(ctx, http.MethodPut, "/sandbox/"+url.PathEscape(b.ID)+"/labels", map[string]any{"labels": metadata}, nil)
}
