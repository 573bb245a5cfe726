package superserve

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the control plane. It also has the address of the data
// plane.
type api struct {
	*hosted.Login
	data *url.URL
}

// parseError reads an error of either API: {"error": {"code", "message"}} or
// {"error": "text"}.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct {
		Error json.RawMessage `json:"error"`
	}
	var full struct{ Code, Message string }
	switch {
	case json.Unmarshal(body, &said) != nil || len(said.Error) == 0:
		return "", "", false
	case json.Unmarshal(said.Error, &message) == nil:
		return "", message, true
	case json.Unmarshal(said.Error, &full) == nil:
		return full.Code, full.Message, true
	}
	return "", "", false
}

// missing reports that the service itself says that there is no such thing.
func missing(err error) bool {
	return rest.RefusalOf(err).Status == http.StatusNotFound && rest.RefusalOf(err).Code == "not_found"
}

// network lists what a sandbox may reach. Allow rules win.
type network struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

// apiSandbox is the service's description of a sandbox. Only answers to requests that
// start it contain the token and the hint.
type apiSandbox struct {
	ID         string            `json:"id"`
	Status     string            `json:"status"`
	Created    time.Time         `json:"created_at"`
	Timeout    *int64            `json:"timeout_seconds"`
	AutoDelete *int64            `json:"auto_delete_seconds"`
	Network    *network          `json:"network"`
	Metadata   map[string]string `json:"metadata"`
	Token      string            `json:"access_token"`
	Hint       string            `json:"routing_hint"`
}

// creation is the request for a new sandbox. Unset fields are not sent.
type creation struct {
	Name       string            `json:"name"`
	Template   string            `json:"from_template,omitempty"`
	Snapshot   string            `json:"from_snapshot,omitempty"`
	Timeout    *int64            `json:"timeout_seconds,omitempty"`
	AutoDelete *int64            `json:"auto_delete_seconds,omitempty"`
	Metadata   map[string]string `json:"metadata"`
	Secrets    map[string]string `json:"secrets,omitempty"`
	Network    *network          `json:"network,omitempty"`
	Preview    string            `json:"preview_access"`
}

// sandbox makes a request whose answer is a sandbox, which must have the id if
// one is given.
func (a *api) sandbox(ctx context.Context, method, path, id string, in any) (b apiSandbox, err error) {
	err = a.Call(ctx, method, path, in, &b)
	switch {
	case err != nil:
	case b.ID == "" || strings.ContainsAny(b.ID, "/?#.:@\\%"):
		err = a.ProtocolError("the service's response contains no sandbox id")
	case id != "" && b.ID != id:
		err = a.ProtocolError("the service answers for another sandbox")
	}
	return b, err
}

// patch changes settings of a sandbox; nil is null, which removes one.
func (a *api) patch(ctx context.Context, id string, settings map[string]any) error {
	return a.Call(ctx, http.MethodPatch, "/sandboxes/"+id, settings, nil)
}

func (a *api) get(ctx context.Context, id string) (apiSandbox, error) {
	b, err := a.sandbox(ctx, http.MethodGet, "/sandboxes/"+id, id, nil)
	return b, known(err)
}

// known converts the answer for a missing resource.
func known(err error) error {
	if missing(err) {
		return hosted.ErrNone
	}
	return err
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, id string) (hosted.Sandbox, error) {
	b, err := a.get(ctx, id)
	return b.describe(), err
}

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) (found []hosted.Sandbox, err error) {
	q := url.Values{}
	for k, v := range hosted.Wanted(scope, id) {
		q.Set("metadata."+k, v)
	}
	var all []apiSandbox
	err = a.Call(ctx, http.MethodGet, "/sandboxes?"+q.Encode(), nil, &all)
	for _, b := range all {
		found = append(found, b.describe())
	}
	return found, err
}

// End implements hosted.Service.
func (a *api) End(ctx context.Context, _ sandbox.ID, id string) error {
	return known(a.Remove(ctx, "/sandboxes/"+id))
}

// Claim implements hosted.Claimer.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	return a.patch(ctx, b.ID, map[string]any{"metadata": metadata})
}

// describe converts the service's description of a sandbox.
func (s apiSandbox) describe() hosted.Sandbox {
	d := hosted.Sandbox{ID: s.ID, Status: s.Status, State: states.Of(s.Status), Created: s.Created}
	if s.Token != "" {
		d.Access = access{s.Token, s.Hint}
	}
	return hosted.Marked(d, s.Metadata)
}

// The statuses of a sandbox that change only on request.
const (
	statusActive = "active"
	statusPaused = "paused"
)

var states = hosted.States{
	statusActive: sandbox.Running, "starting": sandbox.Running, "migrating": sandbox.Running, "resuming": sandbox.Running,
	"pausing": sandbox.Paused, statusPaused: sandbox.Paused, "failed": sandbox.Failed, "deleted": sandbox.Gone,
}

// awake makes a sandbox active, by POST activate or resume, and returns its new
// token. With asleep, a paused sandbox is resumed; otherwise it is a conflict.
func (p *Provider) awake(ctx context.Context, id sandbox.ID, sandboxID string, asleep bool) (b apiSandbox, err error) {
	sleeps := &sandbox.Error{Code: sandbox.CodeConflict, Subject: string(id), Message: "the service has paused the sandbox", Hint: "resume it with: atoll resume"}
	err = p.Move(ctx, id, sandboxID, func(now hosted.Sandbox) (done bool, err error) {
		call := "activate"
		if now.Status == statusPaused {
			if call = "resume"; !asleep {
				return true, nil
			}
		}
		b, err = p.api.sandbox(ctx, http.MethodPost, "/sandboxes/"+sandboxID+"/"+call, sandboxID, nil)
		if err == nil && b.Token == "" {
			err = p.ProtocolError("the service gives no token")
		}
		return err == nil, err
	})
	if err == nil && b.Token == "" {
		err = sleeps
	}
	return b, err
}
