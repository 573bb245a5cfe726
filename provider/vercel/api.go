package vercel

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
type api struct {
	*hosted.Login
	team, project string
}

// parseError reads an error of the service.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct {
		Error *struct{ Code, Message string }
	}
	if json.Unmarshal(body, &said) != nil || said.Error == nil || said.Error.Code == "" {
		return "", "", false
	}
	return said.Error.Code, said.Error.Message, true
}

// missing reports that the service itself says that there is no such sandbox.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Ours && r.Status == http.StatusNotFound
}

// query returns the query of a request: the team, the project under the name
// that the request has for it, if any, and more names and values.
func (a *api) query(project string, more ...string) url.Values {
	q := url.Values{"teamId": {a.team}}
	if project != "" {
		q.Set(project, a.project)
	}
	for pair := range slices.Chunk(more, 2) {
		q.Set(pair[0], pair[1])
	}
	return q
}

func (a *api) path(name string, more ...string) string {
	return "/v2/sandboxes/" + url.PathEscape(name) + "?" + a.query("projectId", more...).Encode()
}

// creation is the request for a new sandbox.
type creation struct {
	Project    string            `json:"projectId"`
	Name       string            `json:"name"`
	Image      string            `json:"image,omitempty"`
	Source     *source           `json:"source,omitempty"`
	Region     string            `json:"region,omitempty"`
	Timeout    int64             `json:"timeout"` // of a session, in milliseconds
	Persistent bool              `json:"persistent"`
	Tags       map[string]string `json:"tags"` // at most five
	Policy     *policy           `json:"networkPolicy"`
}

// policy is what a sandbox may reach. The service may answer in other words than
// it was asked.
type policy struct {
	Mode     string                `json:"mode,omitempty"`
	Allow    map[string][]struct{} `json:"allow,omitzero"` // names, with rules of requests
	Subnets  *subnets              `json:"subnets,omitempty"`
	Names    []string              `json:"allowedDomains,omitempty"`
	Prefixes []string              `json:"allowedCIDRs,omitempty"`
}

type subnets struct {
	Allow []string `json:"allow,omitempty"`
}

// allowed returns what a policy permits, sorted.
func (p *policy) allowed() (names, prefixes []string) {
	names = slices.Sorted(maps.Keys(p.Allow))
	names = append(names, p.Names...)
	prefixes = slices.Clone(p.Prefixes)
	if p.Subnets != nil {
		prefixes = append(prefixes, p.Subnets.Allow...)
	}
	slices.Sort(names)
	slices.Sort(prefixes)
	return slices.Compact(names), slices.Compact(prefixes)
}

// apiSandbox is the service's description of a sandbox. Times are milliseconds.
type apiSandbox struct {
	Name       string            `json:"name"`
	Session    string            `json:"currentSessionId"`
	Status     string            `json:"status"`
	Persistent bool              `json:"persistent"`
	Created    int64             `json:"createdAt"`
	Timeout    int64             `json:"timeout"`
	Tags       map[string]string `json:"tags"`
	Policy     *policy           `json:"networkPolicy"`
}

// The resting states of a sandbox.
const (
	running = "running"
	stopped = "stopped"
)

// states says what the service's states mean. The service keeps the files of a
// stopped sandbox.
var states = hosted.States{
	running: sandbox.Running, "pending": sandbox.Running,
	stopped: sandbox.Paused, "stopping": sandbox.Paused, "snapshotting": sandbox.Paused,
	"failed": sandbox.Failed, "aborted": sandbox.Failed,
}

// names are the names of sandboxes. Tags mark them, too, but are not unique.
const names = hosted.Names("-")

// id distinguishes a sandbox from later ones with its name.
func (s apiSandbox) id() string { return s.Name + "@" + strconv.FormatInt(s.Created, 10) }

// nameOf returns the name in an ID.
func nameOf(id string) string {
	name, _, _ := strings.Cut(id, "@")
	return name
}

// describe converts the service's description of a sandbox. There is room for
// few tags, so the record has the labels.
func (s apiSandbox) describe() hosted.Sandbox {
	d := hosted.Marked(hosted.Sandbox{ID: s.id(), Status: s.Status, State: states.Of(s.Status), Created: time.UnixMilli(s.Created), Access: s.Session}, s.Tags)
	d.Labels = nil
	return d
}

// named returns a sandbox by its name. With resume, it is started if it is
// stopped.
func (a *api) named(ctx context.Context, name string, resume bool) (b apiSandbox, err error) {
	var said struct{ Sandbox, Session *apiSandbox }
	err = a.Call(ctx, http.MethodGet, a.path(name, "resume", strconv.FormatBool(resume)), nil, &said)
	if said.Sandbox != nil {
		b = *said.Sandbox
	}
	if said.Session != nil && b.Status == "" {
		b.Status = said.Session.Status
	}
	switch {
	case missing(err):
		err = hosted.ErrNone
	case err == nil && (b.Name != name || b.Created == 0):
		err = a.ProtocolError("the service answers for another sandbox")
	}
	return b, err
}

// get returns a sandbox by its ID.
func (a *api) get(ctx context.Context, id string) (apiSandbox, error) {
	b, err := a.named(ctx, nameOf(id), false)
	if err == nil && b.id() != id {
		err = hosted.ErrNone // it has ended, and a later one has its name
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
	Items []apiSandbox `json:"sandboxes"`
	Pages struct {
		Next string `json:"next"`
	} `json:"pagination"`
}

func (a *api) page(ctx context.Context, q url.Values) (p pages, err error) {
	err = a.Call(ctx, http.MethodGet, "/v2/sandboxes?"+q.Encode(), nil, &p)
	if err == nil && p.Items == nil {
		err = a.ProtocolError("the service's list is invalid")
	}
	return p, err
}

// List implements hosted.Service. The service filters by one tag.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) ([]hosted.Sandbox, error) {
	q := a.query("project", "limit", "50", "sortBy", "createdAt", "sortOrder", "asc")
	switch {
	case id != "":
		q.Set("tags", hosted.MetaID+":"+string(id))
	case scope != "":
		q.Set("tags", hosted.MetaScope+":"+scope)
	}
	return hosted.Chained(&a.Client, func(cursor string) (found []hosted.Sandbox, next string, err error) {
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		p, err := a.page(ctx, q)
		for _, b := range p.Items {
			found = append(found, b.describe())
		}
		return found, p.Pages.Next, err
	})
}

// End implements hosted.Service. It also removes what the service saved of the
// sandbox by itself, and waits until the sandbox has ended.
func (a *api) End(ctx context.Context, _ sandbox.ID, id string) error {
	if _, err := a.get(ctx, id); err != nil {
		return err
	}
	all, err := a.saves(ctx, id)
	if err != nil {
		return err
	}
	kept := slices.ContainsFunc(all, saved.kept) // the service would remove it, too
	late := func() error { return a.ProtocolError("the service does not end the sandbox") }
	err = hosted.Poll(ctx, func() (bool, error) {
		err := a.Remove(ctx, a.path(nameOf(id), "deleteOrphanSnapshots", strconv.FormatBool(!kept)))
		if changing(err) {
			return false, nil
		}
		return true, err
	}, late)
	if missing(err) {
		return hosted.ErrNone
	} else if err != nil {
		return err
	}
	err = hosted.Poll(ctx, func() (bool, error) {
		_, err := a.get(ctx, id)
		if err == hosted.ErrNone {
			return true, nil
		}
		return false, err
	}, late)
	for _, s := range all {
		if kept && !s.kept() && err == nil {
			if err = a.forget(ctx, s.ID); err == hosted.ErrNone {
				err = nil
			}
		}
	}
	return err
}

// changing reports that the service refuses a request only for a moment.
func changing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Ours && (r.Code == "sandbox_stopping" || r.Code == "sandbox_snapshotting")
}

// Claim implements hosted.Claimer.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	return a.Call(ctx, http.MethodPatch, a.path(nameOf(b.ID)), map[string]any{"tags": metadata}, nil)
}
