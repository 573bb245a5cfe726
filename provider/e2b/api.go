package e2b

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the service's control plane.
type api struct {
	*hosted.Login
	domain     string
	sandboxURL *url.URL // nil: sandboxes are reached by name
}

// apiSandbox is the service's description of a sandbox.
type apiSandbox struct {
	ID       string            `json:"sandboxID"`
	Token    string            `json:"envdAccessToken"`
	Domain   string            `json:"domain"`
	State    string            `json:"state"`
	Started  time.Time         `json:"startedAt"`
	Ends     time.Time         `json:"endAt"`
	Metadata map[string]string `json:"metadata"`
}

// parseError reads an error of the service, which repeats the status.
func parseError(status int, body []byte) (code, message string, ok bool) {
	var said struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	return "", said.Message, json.Unmarshal(body, &said) == nil && said.Code == status
}

// missing reports that the service itself says that there is no such thing.
func missing(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeNotFound }

// statePaused is what the service calls a paused sandbox. It has no other words.
const statePaused = "paused"

// describe converts the service's description of a sandbox.
func (s apiSandbox) describe() hosted.Sandbox {
	d := hosted.Sandbox{ID: s.ID, Status: s.State, State: sandbox.Running, Created: s.Started, Ends: s.Ends, Access: access{s.Token, s.Domain}}
	if s.State == statePaused {
		d.State = sandbox.Paused
	}
	return hosted.Marked(d, s.Metadata)
}

// newSandbox is the request for a new sandbox.
type newSandbox struct {
	Template string            `json:"templateID"`
	Timeout  int64             `json:"timeout"` // seconds
	Metadata map[string]string `json:"metadata"`
	Internet bool              `json:"allow_internet_access"`
	Network  *sandboxNetwork   `json:"network,omitempty"`
}

// sandboxNetwork lists what a sandbox may reach. Allow rules take precedence over
// deny rules.
type sandboxNetwork struct {
	AllowOut []string `json:"allowOut"`
	DenyOut  []string `json:"denyOut"`
}

// usableID matches IDs that are valid in a path.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$`)

func (a *api) create(ctx context.Context, req *newSandbox) (b apiSandbox, err error) {
	err = a.Call(ctx, http.MethodPost, "/v2/sandboxes", req, &b)
	if err == nil && !usableID.MatchString(b.ID) {
		b, err = apiSandbox{}, a.ProtocolError("the service's response contains no sandbox id")
	}
	return b, err
}

func (a *api) get(ctx context.Context, id string) (b apiSandbox, err error) {
	if err = a.Call(ctx, http.MethodGet, "/sandboxes/"+id, nil, &b); missing(err) {
		err = hosted.ErrNone
	}
	return b, err
}

// post changes a sandbox, without an answer.
func (a *api) post(ctx context.Context, id, what string, in any) error {
	return a.Call(ctx, http.MethodPost, "/sandboxes/"+id+"/"+what, in, nil)
}

// timeout is a lifetime from now, in whole seconds.
func timeout(life time.Duration) map[string]int64 {
	return map[string]int64{"timeout": hosted.Seconds(life)}
}

// pageSize is the number of entries per page.
const pageSize = 100

// all returns a whole list.
func all[T any](ctx context.Context, a *api, path string, q url.Values) ([]T, error) {
	q.Set("limit", strconv.Itoa(pageSize))
	return hosted.Chained(&a.Client, func(cursor string) (page []T, next string, err error) {
		if cursor != "" {
			q.Set("nextToken", cursor)
		}
		header, err := a.Ask(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &page)
		return page, header.Get("X-Next-Token"), err
	})
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, sandboxID string) (hosted.Sandbox, error) {
	b, err := a.get(ctx, sandboxID)
	return b.describe(), err
}

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) (found []hosted.Sandbox, err error) {
	inner := url.Values{}
	for k, v := range hosted.Wanted(scope, id) {
		inner.Set(url.QueryEscape(k), url.QueryEscape(v)) // the service unescapes twice
	}
	sandboxes, err := all[apiSandbox](ctx, a, "/v2/sandboxes", url.Values{"state": {"running,paused"}, "metadata": {inner.Encode()}})
	for _, b := range sandboxes {
		found = append(found, b.describe())
	}
	return found, err
}

// End implements hosted.Service.
func (a *api) End(ctx context.Context, _ sandbox.ID, sandboxID string) error {
	if err := a.Remove(ctx, "/sandboxes/"+sandboxID); !missing(err) {
		return err
	}
	return hosted.ErrNone
}
