package runloop

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the service. It implements hosted.Service.
type api struct{ *hosted.Login }

// parseError reads an error of the service.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct{ Code, Message string }
	err := json.Unmarshal(body, &said)
	return said.Code, said.Message, err == nil && said.Message != ""
}

// missing reports that the service itself says that there is no such thing.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Ours && r.Status == http.StatusNotFound
}

// creation is the request for a new sandbox.
type creation struct {
	Name      string            `json:"name"`
	Blueprint string            `json:"blueprint_name,omitempty"`
	Snapshot  string            `json:"snapshot_id,omitempty"`
	Metadata  map[string]string `json:"metadata"`
	Launch    launch            `json:"launch_parameters"`
}

type launch struct {
	KeepAlive int64  `json:"keep_alive_time_seconds"`
	Policy    string `json:"network_policy_id"`
}

// apiSandbox is the service's description of a sandbox.
type apiSandbox struct {
	ID       string            `json:"id"`
	Status   string            `json:"status"`
	Created  int64             `json:"create_time_ms"`
	Snapshot string            `json:"snapshot_id"`
	Metadata map[string]string `json:"metadata"`
	Launch   launch            `json:"launch_parameters"`
}

// The resting states of a sandbox.
const (
	running   = "running"
	suspended = "suspended"
)

// states says what the service's states mean.
var states = hosted.States{
	running: sandbox.Running, "scheduled": sandbox.Running, "queued": sandbox.Running, "provisioning": sandbox.Running, "initializing": sandbox.Running,
	"resuming": sandbox.Running, suspended: sandbox.Paused, "suspending": sandbox.Paused, "failure": sandbox.Failed, "shutdown": sandbox.Gone,
}

// describe converts the service's description of a sandbox.
func (s apiSandbox) describe() hosted.Sandbox {
	return hosted.Marked(hosted.Sandbox{ID: s.ID, Status: s.Status, State: states.Of(s.Status), Created: time.UnixMilli(s.Created)}, s.Metadata)
}

func path(id, rest string) string { return "/v1/devboxes/" + url.PathEscape(id) + rest }

// get returns a sandbox by its ID. One that has ended counts as none.
func (a *api) get(ctx context.Context, id string) (b apiSandbox, err error) {
	err = a.Call(ctx, http.MethodGet, path(id, ""), nil, &b)
	switch {
	case missing(err):
		err = hosted.ErrNone
	case err == nil && b.ID != id:
		err = a.ProtocolError("the service answers for another sandbox")
	case err == nil && states.Of(b.Status) == sandbox.Gone:
		err = hosted.ErrNone
	}
	return b, err
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, id string) (hosted.Sandbox, error) {
	b, err := a.get(ctx, id)
	return b.describe(), err
}

// pages is one page of a list.
type pages struct {
	Items []apiSandbox `json:"devboxes"`
	More  bool         `json:"has_more"`
}

func (a *api) page(ctx context.Context, q url.Values) (p pages, err error) {
	err = a.Call(ctx, http.MethodGet, "/v1/devboxes?"+q.Encode(), nil, &p)
	if err == nil && p.Items == nil {
		err = a.ProtocolError("the service's list is invalid")
	}
	return p, err
}

// List implements hosted.Service. The service filters by no metadata, and lists
// sandboxes that have ended, too.
func (a *api) List(ctx context.Context, _ string, _ sandbox.ID) ([]hosted.Sandbox, error) {
	q := url.Values{"limit": {"1000"}, "include_total_count": {"false"}}
	return hosted.Chained(&a.Client, func(cursor string) (found []hosted.Sandbox, next string, err error) {
		if cursor != "" {
			q.Set("starting_after", cursor)
		}
		p, err := a.page(ctx, q)
		for _, b := range p.Items {
			found, next = append(found, b.describe()), b.ID
		}
		switch {
		case !p.More:
			next = ""
		case next == "":
			err = a.ProtocolError("the service's list is invalid")
		}
		return found, next, err
	})
}

// End implements hosted.Service. It waits until the sandbox has ended.
func (a *api) End(ctx context.Context, _ sandbox.ID, id string) error {
	return hosted.Ended(ctx, func() error {
		_, err := a.get(ctx, id)
		return err
	}, func() error {
		return a.Call(ctx, http.MethodPost, path(id, "/shutdown"), struct{}{}, nil)
	}, func() error { return a.ProtocolError("the service does not end the sandbox") })
}

// Claim implements hosted.Claimer.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	return a.Call(ctx, http.MethodPost, path(b.ID, ""), map[string]any{"metadata": metadata}, nil)
}

// rules are what a sandbox may reach: a network policy of the service.
type rules struct {
	All   bool     `json:"allow_all"`
	Names []string `json:"allowed_hostnames"`
	CIDRs []cidr   `json:"allowed_cidrs"`
	// Other permissions, which are never asked for.
	Sandboxes bool `json:"allow_devbox_to_devbox"`
	Mirrors   bool `json:"allow_runloop_mirrors"`
	Gateway   bool `json:"allow_agent_gateway"`
	MCP       bool `json:"allow_mcp_gateway"`
}

type cidr struct {
	Prefix string `json:"cidr"`
	Ports  []any  `json:"ports,omitempty"`
}

// rulesFor translates what a sandbox may reach. The service knows IPv4 only.
func rulesFor(asked *sandbox.EgressRules) (r rules, ok bool) {
	r = rules{Names: []string{}, CIDRs: []cidr{}}
	if asked == nil {
		return r, true
	}
	if asked.Open {
		return rules{All: true, Names: r.Names, CIDRs: r.CIDRs}, true
	}
	for _, t := range asked.Allow {
		switch {
		case t.Host != "":
			r.Names = append(r.Names, t.Host)
		case t.Prefix.Addr().Is4():
			r.CIDRs = append(r.CIDRs, cidr{Prefix: t.Prefix.String()})
		default:
			return r, false
		}
	}
	slices.Sort(r.Names)
	slices.SortFunc(r.CIDRs, func(a, b cidr) int { return strings.Compare(a.Prefix, b.Prefix) })
	return r, true
}

// same reports whether two policies permit the same.
func (r rules) same(o rules) bool {
	if r.All && o.All {
		return true
	}
	slices.Sort(o.Names)
	slices.SortFunc(o.CIDRs, func(a, b cidr) int { return strings.Compare(a.Prefix, b.Prefix) })
	return r.All == o.All && !o.Sandboxes && !o.Mirrors && !o.Gateway && !o.MCP && slices.Equal(r.Names, o.Names) &&
		slices.EqualFunc(r.CIDRs, o.CIDRs, func(a, b cidr) bool { return a.Prefix == b.Prefix && len(b.Ports) == 0 })
}

// policy returns the ID of a network policy with these rules, which it makes
// only if there is none. The name says what the rules are, so that all sandboxes
// with the same rules share a policy.
func (a *api) policy(ctx context.Context, r rules) (id string, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	name := "atoll-" + hex.EncodeToString(sum[:10])
	look := func() (string, error) {
		var p struct {
			Items []struct {
				ID, Name string
				Egress   rules
			} `json:"network_policies"`
		}
		err := a.Call(ctx, http.MethodGet, "/v1/network-policies?"+url.Values{"name": {name}, "limit": {"1000"}}.Encode(), nil, &p)
		for _, one := range p.Items {
			if err == nil && one.Name == name && one.ID != "" && r.same(one.Egress) {
				return one.ID, nil
			}
		}
		return "", cmp.Or(err, hosted.ErrNone)
	}
	if id, err = look(); err != hosted.ErrNone {
		return id, err
	}
	body := struct {
		Name string `json:"name"`
		rules
	}{name, r}
	err = a.Call(ctx, http.MethodPost, "/v1/network-policies", body, nil)
	if hosted.Refused(err) {
		return "", err
	}
	return hosted.Search(ctx, &a.Client, err, look)
}

// newCommand returns the ID of a command: a UUID with the time.
func newCommand() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // Read never fails.
	now := fmt.Sprintf("%012x", time.Now().UnixMilli())
	b[0], b[2] = b[0]&0x0f|0x70, b[2]&0x3f|0x80
	return fmt.Sprintf("%s-%s-%x-%x-%x", now[:8], now[8:], b[:2], b[2:4], b[4:])
}
