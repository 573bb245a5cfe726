package microsandbox

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the service. It implements hosted.Service.
type api struct{ *hosted.Login }

// parseError reads an error of the service, which has one of two forms.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	type details struct{ Code, Message string }
	var said struct {
		details
		Error *details `json:"error"`
	}
	err := json.Unmarshal(body, &said)
	if said.Error != nil {
		said.details = *said.Error
	}
	return said.Code, said.Message, err == nil && said.Code != ""
}

// missing reports that the service itself says that there is no such sandbox.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Ours && r.Status == http.StatusNotFound && r.Code == "sandbox_not_found"
}

// names are the names of sandboxes. The service keeps them unique, and reports
// nothing else that marks a sandbox.
const names = hosted.Names("-")

// apiSandbox is the service's description of a sandbox.
type apiSandbox struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Status    string    `json:"status"`
	Ephemeral bool      `json:"ephemeral"`
	Created   time.Time `json:"created_at"`
	// Spec is what was asked for, as far as the service shows it.
	Spec *struct {
		Network   *network          `json:"network"`
		Lifecycle *lifecycle        `json:"lifecycle"`
		Resources *resources        `json:"resources"`
		Labels    map[string]string `json:"labels"`
	} `json:"spec"`
}

// The resting states of a sandbox.
const (
	created = "created" // and never started
	running = "running"
	stopped = "stopped"
)

// states says what the service's states mean.
var states = hosted.States{
	running: sandbox.Running, "starting": sandbox.Running, created: sandbox.Paused, "stopping": sandbox.Paused, stopped: sandbox.Paused, "failed": sandbox.Failed,
}

// describe converts the service's description of a sandbox. It does not report
// labels.
func (s apiSandbox) describe() hosted.Sandbox {
	d := hosted.Sandbox{ID: s.ID, Status: s.Status, State: states.Of(s.Status), Created: s.Created}
	d.Scope, d.Sandbox, _ = names.Parse(s.Name)
	return d
}

// sandboxes is the path of all sandboxes.
const sandboxes = "/v1/sandboxes"

func at(id, rest string) string { return sandboxes + "/" + url.PathEscape(id) + rest }

// get returns the sandbox at a path. right reports whether it is the one that was
// asked for.
func (a *api) get(ctx context.Context, where string, right func(apiSandbox) bool) (b apiSandbox, err error) {
	err = a.Call(ctx, http.MethodGet, where, nil, &b)
	switch {
	case missing(err):
		err = hosted.ErrNone
	case err == nil && (b.ID == "" || !right(b)):
		err = a.ProtocolError("the service answers for another sandbox")
	}
	return b, err
}

func (a *api) byID(ctx context.Context, id string) (apiSandbox, error) {
	return a.get(ctx, at(id, ""), func(b apiSandbox) bool { return b.ID == id })
}

func (a *api) named(ctx context.Context, name string) (apiSandbox, error) {
	return a.get(ctx, at("by-name", "/"+url.PathEscape(name)), func(b apiSandbox) bool { return b.Name == name })
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, id string) (hosted.Sandbox, error) {
	b, err := a.byID(ctx, id)
	return b.describe(), err
}

// Find implements hosted.Finder.
func (a *api) Find(ctx context.Context, scope string, id sandbox.ID) (hosted.Sandbox, error) {
	b, err := a.named(ctx, names.Of(scope, id))
	return b.describe(), err
}

// pages is one page of a list.
type pages[T any] struct {
	Data []T    `json:"data"`
	Next string `json:"next_cursor"`
}

func page[T any](ctx context.Context, a *api, where, cursor string, size int) (p pages[T], err error) {
	q := url.Values{"limit": {strconv.Itoa(size)}}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	err = a.Call(ctx, http.MethodGet, where+"?"+q.Encode(), nil, &p)
	if err == nil && p.Data == nil {
		err = a.ProtocolError("the service's list is invalid")
	}
	return p, err
}

// listed returns a whole list.
func listed[T any](ctx context.Context, a *api, where string) ([]T, error) {
	return hosted.Chained(&a.Client, func(cursor string) ([]T, string, error) {
		p, err := page[T](ctx, a, where, cursor, 50)
		return p.Data, p.Next, err
	})
}

// List implements hosted.Service. The service filters by no part of a name.
func (a *api) List(ctx context.Context, _ string, _ sandbox.ID) (found []hosted.Sandbox, err error) {
	all, err := listed[apiSandbox](ctx, a, sandboxes)
	for _, b := range all {
		found = append(found, b.describe())
	}
	return found, err
}

// End implements hosted.Service. It stops a sandbox that the service does not
// remove while it runs, and waits until it is removed.
func (a *api) End(ctx context.Context, _ sandbox.ID, id string) error {
	return hosted.Ended(ctx, func() error {
		_, err := a.byID(ctx, id)
		return err
	}, func() error {
		err := a.Call(ctx, http.MethodDelete, at(id, ""), nil, nil)
		switch {
		case missing(err):
			err = nil
		case sandbox.CodeOf(err) == sandbox.CodeConflict:
			_ = a.Call(ctx, http.MethodPost, at(id, "/stop"), struct{}{}, nil) // the next attempt shows the result
		}
		return err
	}, func() error { return a.ProtocolError("the service does not end the sandbox") })
}

// network is what a sandbox may reach. Without a policy, that is the public
// Internet.
type network struct {
	Enabled bool    `json:"enabled"`
	Policy  *policy `json:"policy,omitempty"`
	// Strict allows a name only to connections that say that they are for it. Nil:
	// the service does not show it.
	Strict *bool `json:"strict,omitempty"`
}

// policy has rules. The first one that matches decides.
type policy struct {
	Egress  string `json:"default_egress"`
	Ingress string `json:"default_ingress"`
	Rules   []rule `json:"rules"`
}

type rule struct {
	Direction   string            `json:"direction"`
	Destination map[string]string `json:"destination"`
	Protocols   []string          `json:"protocols"`
	Ports       []ports           `json:"ports"`
	Action      string            `json:"action"`
}

type ports struct {
	Start int `json:"start"`
	End   int `json:"end"`
}

const (
	allow = "allow"
	deny  = "deny"
)

func newRule(action, kind, value string) rule {
	return rule{Direction: "egress", Destination: map[string]string{kind: value}, Protocols: []string{}, Ports: []ports{}, Action: action}
}

// networkFor translates what a sandbox may reach. A suffix of the service matches
// the name itself, too, so a rule for that comes first.
func networkFor(asked *sandbox.EgressRules) network {
	strict := true
	switch {
	case asked != nil && asked.Open:
		return network{Enabled: true, Policy: &policy{Egress: allow, Ingress: allow, Rules: []rule{}}, Strict: &strict}
	case asked == nil || len(asked.Allow) == 0:
		return network{Policy: &policy{Egress: deny, Ingress: deny, Rules: []rule{}}, Strict: &strict}
	}
	var lookups, exact, apex, below []rule
	for _, t := range asked.Allow {
		switch suffix, wild := strings.CutPrefix(t.Host, "*."); {
		case t.Host == "":
			exact = append(exact, newRule(allow, "cidr", t.Prefix.String()))
		case wild:
			apex, below = append(apex, newRule(deny, "domain", suffix)), append(below, newRule(allow, "domain_suffix", suffix))
		default:
			exact = append(exact, newRule(allow, "domain", t.Host))
		}
	}
	for _, protocol := range []string{"udp", "tcp"} { // the service's resolver, which checks names
		one := newRule(allow, "group", "host")
		one.Protocols, one.Ports = []string{protocol}, []ports{{53, 53}}
		lookups = append(lookups, one)
	}
	rules := append(append(append(lookups, exact...), apex...), below...)
	return network{Enabled: true, Policy: &policy{Egress: deny, Ingress: allow, Rules: rules}, Strict: &strict}
}

// same reports whether the service shows the network that was asked for.
func (n network) same(now *network) bool {
	if !n.Enabled {
		return !now.Enabled
	}
	return now.Enabled && (now.Strict == nil || *now.Strict) && now.Policy != nil && now.Policy.Egress == n.Policy.Egress &&
		slices.EqualFunc(n.Policy.Rules, now.Policy.Rules, func(a, b rule) bool {
			return a.Direction == b.Direction && a.Action == b.Action && maps.Equal(a.Destination, b.Destination) &&
				slices.Equal(a.Protocols, b.Protocols) && slices.Equal(a.Ports, b.Ports)
		})
}
