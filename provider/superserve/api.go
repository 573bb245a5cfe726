package superserve

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the control plane.
type api struct {
	rest.Client
	data *url.URL
}

func newAPI(control, data *url.URL, key string, transport http.RoundTripper) *api {
	return &api{data: data, Client: rest.Client{
		HTTP: rest.NewHTTP(transport), Base: control, Secrets: []string{key}, Words: words,
		Sign: func(h http.Header) { h.Set("X-API-Key", key) },
	}}
}

// words reads an error of either plane: {"error": {"code", "message"}} or
// {"error": "text"}.
func words(body []byte) (code, message string, ok bool) {
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

// network is what a sandbox may reach. What is allowed wins.
type network struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

// box is a sandbox as the service tells of it. Only what makes it run tells the
// token and the hint.
type box struct {
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

// creation asks for a sandbox. Nothing of it is sent if it is not set.
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

func (a *api) strange(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: a.Base.Host, Message: message}
}

// sandbox makes a request that is answered with a sandbox: that with the id, if
// it is given.
func (a *api) sandbox(ctx context.Context, method, path, id string, in any) (b box, err error) {
	err = a.Call(ctx, method, path, in, &b)
	switch {
	case err != nil:
	case b.ID == "" || strings.ContainsAny(b.ID, "/?#.:@\\%"):
		err = a.strange("the service names no sandbox")
	case id != "" && b.ID != id:
		err = a.strange("the service answers for another sandbox")
	}
	return b, err
}

func (a *api) create(ctx context.Context, c *creation) (box, error) {
	return a.sandbox(ctx, http.MethodPost, "/sandboxes", "", c)
}

func (a *api) get(ctx context.Context, id string) (box, error) {
	return a.sandbox(ctx, http.MethodGet, "/sandboxes/"+id, id, nil)
}

// patch changes settings of a sandbox; nil is null, which removes one.
func (a *api) patch(ctx context.Context, id string, settings map[string]any) error {
	return a.Call(ctx, http.MethodPatch, "/sandboxes/"+id, settings, nil)
}

func (a *api) list(ctx context.Context, q url.Values) (all []box, err error) {
	err = a.Call(ctx, http.MethodGet, "/sandboxes?"+q.Encode(), nil, &all)
	return all, err
}

// remove ends a sandbox. An answer that there is none is passed on.
func (a *api) remove(ctx context.Context, id string) error { return a.Remove(ctx, "/sandboxes/"+id) }

// The statuses of a sandbox.
const (
	statusStarting  = "starting"
	statusActive    = "active"
	statusPausing   = "pausing"
	statusPaused    = "paused"
	statusResuming  = "resuming"
	statusMigrating = "migrating"
	statusFailed    = "failed"
	statusDeleted   = "deleted"
)

// stateOf translates a status. One that is not known is no state.
func stateOf(status string) sandbox.State {
	switch status {
	case statusActive, statusStarting, statusMigrating, statusResuming:
		return sandbox.Running
	case statusPausing, statusPaused:
		return sandbox.Paused
	case statusFailed:
		return sandbox.Failed
	case statusDeleted:
		return sandbox.Gone
	}
	return sandbox.Lost
}

// usable is the error of a sandbox whose status lets nothing be done with it.
func (a *api) usable(id sandbox.ID, b box) error {
	switch stateOf(b.Status) {
	case sandbox.Gone:
		return guestkit.Gone(id)
	case sandbox.Failed:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: string(id), Message: "the service says that the sandbox has failed", Hint: "remove it, and restore a snapshot if there is one",
		}
	case sandbox.Lost:
		return a.strange("the service says that the sandbox is " + b.Status + ", which this Atoll does not know")
	}
	return nil
}

// How long a status may take to change, and how often it is asked for.
const (
	settling = 2 * time.Minute
	fastPoll = 50 * time.Millisecond
	slowPoll = time.Second
)

// settled waits until a sandbox is active or paused.
func (a *api) settled(ctx context.Context, id sandbox.ID, boxID string) (box, error) {
	start := time.Now()
	for wait := fastPoll; ; wait = min(2*wait, slowPoll) {
		b, err := a.get(ctx, boxID)
		if err == nil {
			err = a.usable(id, b)
		}
		if err != nil || b.Status == statusActive || b.Status == statusPaused {
			return b, err
		}
		if time.Since(start) > settling {
			return b, a.strange("the sandbox is still " + b.Status)
		}
		if err := rest.Sleep(ctx, wait); err != nil {
			return b, err
		}
	}
}

// awake makes a sandbox active, by POST activate or resume, and returns its new
// token. With asleep, one that is paused is resumed; else that is a conflict.
func (a *api) awake(ctx context.Context, id sandbox.ID, boxID string, asleep bool) (box, error) {
	start := time.Now()
	for {
		b, err := a.settled(ctx, id, boxID)
		if err == nil && b.Status == statusPaused && !asleep {
			err = &sandbox.Error{Code: sandbox.CodeConflict, Subject: string(id), Message: "the service has paused the sandbox", Hint: "resume it with: atoll resume"}
		}
		if err != nil {
			return b, err
		}
		call := "activate"
		if b.Status == statusPaused {
			call = "resume"
		}
		b, err = a.sandbox(ctx, http.MethodPost, "/sandboxes/"+boxID+"/"+call, boxID, nil)
		if err == nil && b.Token == "" {
			err = a.strange("the service gives no token")
		}
		// Somebody else was faster, or the pause is not over: what it is now says
		// what to do.
		if sandbox.CodeOf(err) != sandbox.CodeConflict || time.Since(start) > settling {
			return b, err
		}
		if err := rest.Sleep(ctx, fastPoll); err != nil {
			return b, err
		}
	}
}
