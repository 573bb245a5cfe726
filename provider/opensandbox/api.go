package opensandbox

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the server. It implements hosted.Service.
type api struct {
	*hosted.Login
	kept sync.Map // IDs of snapshots that were removed while a sandbox used them
}

// parseError reads an error of the server or of execd.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct{ Code, Message string }
	err := json.Unmarshal(body, &said)
	return said.Code, said.Message, err == nil && said.Code != "" && said.Message != ""
}

// missing reports that the server itself says that there is no such sandbox.
// Codes begin with the name of its runtime.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Ours && r.Status == http.StatusNotFound && strings.HasSuffix(r.Code, "::SANDBOX_NOT_FOUND")
}

// creation is the request for a new sandbox, of an image or a snapshot.
type creation struct {
	Image      *image            `json:"image,omitempty"`
	Snapshot   string            `json:"snapshotId,omitempty"`
	Entrypoint []string          `json:"entrypoint"`
	Timeout    *int64            `json:"timeout,omitempty"` // seconds
	Limits     map[string]string `json:"resourceLimits"`
	Metadata   map[string]string `json:"metadata"`
	Network    *policy           `json:"networkPolicy,omitempty"` // nil: everything is reachable
}

type image struct {
	URI string `json:"uri"`
}

// apiSandbox is the server's description of a sandbox.
type apiSandbox struct {
	ID       string                 `json:"id"`
	Status   struct{ State string } `json:"status"`
	Metadata map[string]string      `json:"metadata"`
	Created  time.Time              `json:"createdAt"`
	Expires  *time.Time             `json:"expiresAt"`
}

// The resting states of a sandbox.
const (
	running = "Running"
	paused  = "Paused"
)

// states says what the server's states mean. A container that ended is still
// there, and has to be removed.
var states = hosted.States{
	running: sandbox.Running, "Pending": sandbox.Running, "Resuming": sandbox.Running, paused: sandbox.Paused, "Pausing": sandbox.Paused,
	"Failed": sandbox.Failed, "Terminated": sandbox.Failed, "Stopping": sandbox.Gone,
}

// describe converts the server's description of a sandbox. Labels are not sent to
// the server, which accepts few characters in them. The end of a lifetime is that
// of Atoll, which may be earlier.
func (s apiSandbox) describe() hosted.Sandbox {
	d := hosted.Marked(hosted.Sandbox{ID: s.ID, Status: s.Status.State, State: states.Of(s.Status.State), Created: s.Created}, s.Metadata)
	d.Labels = nil
	return d
}

// slack is how far a server may be off when it computes the end of a lifetime.
const slack = 30 * time.Second

// lives reports whether the server ends the sandbox after this lifetime.
func (s apiSandbox) lives(life time.Duration) bool {
	return s.Expires != nil && (s.Expires.Sub(s.Created)-life).Abs() <= slack
}

func path(id, rest string) string { return "/v1/sandboxes/" + url.PathEscape(id) + rest }

// show returns a sandbox by its ID.
func (a *api) show(ctx context.Context, id string) (b apiSandbox, err error) {
	err = a.Call(ctx, http.MethodGet, path(id, ""), nil, &b)
	switch {
	case missing(err):
		err = hosted.ErrNone
	case err == nil && b.ID != id:
		err = a.ProtocolError("the server answers for another sandbox")
	}
	return b, err
}

// get is show, but one that is being removed counts as none. While the server
// removes a container, it shows for a moment that it has failed.
func (a *api) get(ctx context.Context, id string) (b apiSandbox, err error) {
	for n := 0; ; n++ {
		b, err = a.show(ctx, id)
		switch state := states.Of(b.Status.State); {
		case err == nil && state == sandbox.Gone:
			return b, hosted.ErrNone
		case err != nil || state != sandbox.Failed || n == 2:
			return b, err
		}
		if err := rest.Sleep(ctx, time.Second); err != nil {
			return b, err
		}
	}
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, id string) (hosted.Sandbox, error) {
	b, err := a.get(ctx, id)
	return b.describe(), err
}

// pages is one page of a list.
type pages struct {
	Items []apiSandbox `json:"items"`
	Pages struct {
		Total int64 `json:"totalItems"`
	} `json:"pagination"`
}

func (a *api) page(ctx context.Context, n, size int, metadata map[string]string) (p pages, err error) {
	q, wanted := url.Values{"page": {strconv.Itoa(n)}, "pageSize": {strconv.Itoa(size)}}, url.Values{}
	for k, v := range metadata {
		wanted.Set(k, v)
	}
	if len(wanted) > 0 {
		q.Set("metadata", wanted.Encode())
	}
	err = a.Call(ctx, http.MethodGet, "/v1/sandboxes?"+q.Encode(), nil, &p)
	if err == nil && p.Items == nil {
		err = a.ProtocolError("the server's list is invalid")
	}
	return p, err
}

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) (ours []hosted.Sandbox, err error) {
	all, err := hosted.Counted(&a.Client, func(n, _ int) ([]apiSandbox, int64, error) {
		p, err := a.page(ctx, n, 200, hosted.Wanted(scope, id))
		return p.Items, p.Pages.Total, err
	})
	for _, b := range all {
		ours = append(ours, b.describe())
	}
	return ours, err
}

// End implements hosted.Service. It waits until the server has removed the
// sandbox.
func (a *api) End(ctx context.Context, _ sandbox.ID, id string) error {
	err := hosted.Ended(ctx, func() error {
		_, err := a.show(ctx, id)
		return err
	}, func() error {
		err := a.Call(ctx, http.MethodDelete, path(id, ""), nil, nil)
		if missing(err) {
			err = nil
		}
		return err
	}, func() error { return a.ProtocolError("the server does not end the sandbox") })
	a.kept.Range(func(snapshot, _ any) bool { return a.forget(ctx, snapshot.(string)) == nil })
	return err
}

// forget removes a snapshot. While a sandbox uses it, the server only marks it as
// deleting. Then it is removed when a sandbox ends, or when snapshots are listed.
func (a *api) forget(ctx context.Context, snapshot string) error {
	err := a.Call(ctx, http.MethodDelete, "/v1/snapshots/"+url.PathEscape(snapshot), nil, nil)
	r := rest.RefusalOf(err)
	if r.Ours && r.Code == "SNAPSHOT::DELETE_CONFLICT" {
		a.kept.Store(snapshot, nil)
		return nil
	}
	if err != nil && !(r.Ours && r.Code == "SNAPSHOT::NOT_FOUND") {
		return err
	}
	a.kept.Delete(snapshot)
	return nil
}

// Claim implements hosted.Claimer.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	return a.Call(ctx, http.MethodPatch, path(b.ID, "/metadata"), metadata, nil)
}

// policy is what a sandbox may reach.
type policy struct {
	Default string `json:"defaultAction"`
	Rules   []rule `json:"egress"`
}

type rule struct {
	Action string `json:"action"`
	Target string `json:"target"` // a name, an address or a prefix
}

// policyFor translates what a sandbox may reach. Nil means everything.
func policyFor(asked *sandbox.EgressRules) *policy {
	if asked != nil && asked.Open {
		return nil
	}
	p := &policy{Default: "deny", Rules: []rule{}}
	for _, target := range hosted.Destinations(asked) {
		p.Rules = append(p.Rules, rule{Action: "allow", Target: target})
	}
	return p
}

// same reports whether two policies have the same rules, in any order, and block
// everything else.
func (p policy) same(o policy) bool {
	set := func(p policy) map[rule]bool {
		all := map[rule]bool{}
		for _, r := range p.Rules {
			all[r] = true
		}
		return all
	}
	return p.Default == "deny" && o.Default == "deny" && maps.Equal(set(p), set(o))
}

// strict is the mode in which the server's sidecar checks addresses, too. In
// others, a program that knows an address reaches it.
const strict = "dns+nft"

// enforced returns the rules that the sidecar of a sandbox enforces.
func (a *api) enforced(ctx context.Context, id string) (policy, error) {
	var said struct {
		Mode   string `json:"enforcementMode"`
		Policy policy `json:"policy"`
	}
	err := a.Call(ctx, http.MethodGet, path(id, "/networkpolicy"), nil, &said)
	if err == nil && said.Mode != strict {
		err = &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "opensandbox.create", Subject: "network",
			Message: "the server filters names only, so programs could reach every address they know",
			Hint:    "set mode = \"" + strict + "\" in the section [egress] of the server's configuration",
		}
	}
	return said.Policy, err
}
