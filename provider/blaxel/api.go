package blaxel

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the service. It implements hosted.Service.
type api struct{ *hosted.Login }

// version is that of the API whose answers the driver reads.
const version = "2026-09-22"

// parseError reads an error of the service, which has several forms. The code is a
// text in "code", or in "error", which may also be an object.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct {
		Error   json.RawMessage `json:"error"`
		Code    any             `json:"code"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(body, &said) != nil {
		return "", "", false
	}
	if len(said.Error) > 0 && said.Error[0] == '{' {
		return parseError(0, said.Error)
	}
	_ = json.Unmarshal(said.Error, &code)
	if named, text := said.Code.(string); text {
		code = named
	}
	if message = said.Message; message == "" {
		message = code
	}
	return code, message, code != ""
}

// elsewhere are the codes of a 404 that say nothing about a sandbox.
var elsewhere = []string{"ROUTE_NOT_FOUND", "WORKSPACE_NOT_FOUND", unavailable}

// unavailable is the code of a 404 of a sandbox that cannot be reached yet.
const unavailable = "WORKLOAD_UNAVAILABLE"

// missing reports that the service itself says that there is no such sandbox.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Ours && r.Status == http.StatusNotFound && !slices.Contains(elsewhere, r.Code)
}

// apiSandbox is a sandbox, as it is asked for and as the service describes it.
type apiSandbox struct {
	Metadata metadata    `json:"metadata"`
	Spec     sandboxSpec `json:"spec"`
	Status   string      `json:"status,omitempty"`
}

type metadata struct {
	Name    string            `json:"name"` // unique in the workspace
	Labels  map[string]string `json:"labels"`
	Created time.Time         `json:"createdAt,omitzero"`
	URL     string            `json:"url,omitempty"` // of its own API; lists may lack it
}

type sandboxSpec struct {
	Region  string   `json:"region,omitempty"`
	Runtime runtime  `json:"runtime"`
	Network *network `json:"network,omitempty"` // nil: everything is reachable
}

type runtime struct {
	Image  string `json:"image"`
	Memory int64  `json:"memory"` // MB
	TTL    string `json:"ttl,omitempty"`
}

// ttl is a lifetime in the service's words.
func ttl(life time.Duration) string { return strconv.FormatInt(hosted.Seconds(life), 10) + "s" }

// sameTTL reports whether two lifetimes are the same, perhaps in other words.
func sameTTL(a, b string) bool {
	one, errA := time.ParseDuration(a)
	other, errB := time.ParseDuration(b)
	return a == b || errA == nil && errB == nil && one == other
}

// The resting states of a sandbox.
const (
	deployed = "DEPLOYED"
	archived = "ARCHIVED"
)

// states says what the service's states mean. A sandbox on standby is deployed:
// it wakes up by itself, with its processes.
var states = hosted.States{
	deployed: sandbox.Running, "UPLOADING": sandbox.Running, "BUILDING": sandbox.Running, "BUILT": sandbox.Running, "DEPLOYING": sandbox.Running,
	"UNARCHIVING": sandbox.Running, archived: sandbox.Paused, "ARCHIVING": sandbox.Paused, "FAILED": sandbox.Failed, "DEACTIVATING": sandbox.Failed,
	"DEACTIVATED": sandbox.Failed, "DELETING": sandbox.Gone, "TERMINATED": sandbox.Gone,
}

// describe converts the service's description of a sandbox. Labels of a spec are
// not sent to the service. The end of a lifetime is that of Atoll, which may be
// earlier.
func (s apiSandbox) describe() hosted.Sandbox {
	d := hosted.Sandbox{ID: s.Metadata.Name, Status: s.Status, State: states.Of(s.Status), Created: s.Metadata.Created}
	if s.Metadata.URL != "" {
		d.Access = s.Metadata.URL
	}
	d = hosted.Marked(d, s.Metadata.Labels)
	d.Labels = nil
	return d
}

func path(name, rest string) string { return "/sandboxes/" + url.PathEscape(name) + rest }

// get returns a sandbox by its name. One that has ended counts as none.
func (a *api) get(ctx context.Context, name string) (b apiSandbox, err error) {
	err = a.Call(ctx, http.MethodGet, path(name, ""), nil, &b)
	switch {
	case missing(err):
		err = hosted.ErrNone
	case err == nil && b.Metadata.Name != name:
		err = a.ProtocolError("the service answers for another sandbox")
	case err == nil && states.Of(b.Status) == sandbox.Gone:
		err = hosted.ErrNone
	}
	return b, err
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, name string) (hosted.Sandbox, error) {
	b, err := a.get(ctx, name)
	return b.describe(), err
}

// pages is one page of a list.
type pages struct {
	Data []apiSandbox `json:"data"`
	Meta struct {
		More bool   `json:"hasMore"`
		Next string `json:"nextCursor"`
	} `json:"meta"`
}

func (a *api) page(ctx context.Context, cursor string, size int) (p pages, err error) {
	q := url.Values{"limit": {strconv.Itoa(size)}}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	err = a.Call(ctx, http.MethodGet, "/sandboxes?"+q.Encode(), nil, &p)
	if err == nil && p.Data == nil {
		err = a.ProtocolError("the service's list is invalid")
	}
	return p, err
}

// List implements hosted.Service. The service filters by no labels.
func (a *api) List(ctx context.Context, _ string, _ sandbox.ID) ([]hosted.Sandbox, error) {
	return hosted.Chained(&a.Client, func(cursor string) (found []hosted.Sandbox, next string, err error) {
		p, err := a.page(ctx, cursor, 200)
		for _, b := range p.Data {
			found = append(found, b.describe())
		}
		if p.Meta.More && p.Meta.Next == "" {
			err = a.ProtocolError("the service's list is invalid")
		} else if p.Meta.More {
			next = p.Meta.Next
		}
		return found, next, err
	})
}

// End implements hosted.Service. It waits until the service ends the sandbox.
func (a *api) End(ctx context.Context, _ sandbox.ID, name string) error {
	return hosted.Ended(ctx, func() error {
		_, err := a.get(ctx, name)
		return err
	}, func() error {
		err := a.Call(ctx, http.MethodDelete, path(name, ""), nil, nil)
		if missing(err) {
			err = nil
		}
		return err
	}, func() error { return a.ProtocolError("the service does not end the sandbox") })
}

// Claim implements hosted.Claimer. The service takes whole descriptions only.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	var all struct {
		Metadata map[string]any `json:"metadata"`
		Spec     any            `json:"spec"`
	}
	if err := a.Call(ctx, http.MethodGet, path(b.ID, ""), nil, &all); err != nil {
		return err
	}
	if all.Metadata == nil {
		return a.ProtocolError("the service does not show whose the sandbox is")
	}
	all.Metadata["labels"] = metadata
	return a.Call(ctx, http.MethodPut, path(b.ID, ""), all, nil)
}

// network is what a sandbox may reach: names, through the service's proxy. The
// firewall blocks every other way.
type network struct {
	Proxy struct {
		Allowed   []string `json:"allowedDomains,omitempty"`
		Bypass    []string `json:"bypass,omitempty"`           // never asked for
		Forbidden []string `json:"forbiddenDomains,omitempty"` // never asked for
	} `json:"proxy"`
	Firewall struct {
		Rulesets []string `json:"rulesets"`
	} `json:"firewall"`
}

const (
	// lockdown is the ruleset that leaves only the way through the proxy.
	lockdown = "proxy"
	// nowhere is a name that never exists. An empty list allows everything.
	nowhere = "closed.invalid"
)

// networkFor translates what a sandbox may reach. Nil means everything.
func networkFor(asked *sandbox.EgressRules) (n *network, ok bool) {
	if asked != nil && asked.Open {
		return nil, true
	}
	n = new(network)
	n.Firewall.Rulesets = []string{lockdown}
	if asked != nil {
		for _, t := range asked.Allow {
			if t.Host == "" {
				return nil, false
			}
			n.Proxy.Allowed = append(n.Proxy.Allowed, t.Host)
		}
	}
	if len(n.Proxy.Allowed) == 0 {
		n.Proxy.Allowed = []string{nowhere}
	}
	slices.Sort(n.Proxy.Allowed)
	return n, true
}

// same reports whether the service permits no more than was asked for.
func (n *network) same(now *network) bool {
	if n == nil || now == nil {
		return n == nil
	}
	allowed := slices.Clone(now.Proxy.Allowed)
	slices.Sort(allowed)
	return slices.Equal(n.Proxy.Allowed, allowed) && len(now.Proxy.Bypass) == 0 && slices.Contains(now.Firewall.Rulesets, lockdown)
}
