package boxlite

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of a server. It implements hosted.Service.
type api struct {
	*hosted.Login
	prefix string // from the options, not from the server

	mu    sync.Mutex
	known *principal
}

// principal is the server's description of the caller.
type principal struct {
	Sub    string `json:"sub"`
	Prefix string `json:"path_prefix"`
}

// usablePrefix matches prefixes that are valid in a path.
var usablePrefix = regexp.MustCompile(`^[A-Za-z0-9_~-][A-Za-z0-9._~-]*(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)

// parseError reads an error of the server.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct {
		Error struct{ Code, Message string }
	}
	err := json.Unmarshal(body, &said)
	return said.Error.Code, said.Error.Message, err == nil && said.Error.Code != ""
}

// missing reports that the server itself says that there is no such thing.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	return r.Status == http.StatusNotFound && r.Code == "not_found"
}

func (a *api) know(who *principal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = who
}

// account returns the account. A server without accounts does not support the
// request.
func (a *api) account(ctx context.Context) (*principal, error) {
	a.mu.Lock()
	who := a.known
	a.mu.Unlock()
	if who != nil {
		return who, nil
	}
	who = &principal{}
	if err := a.Call(ctx, http.MethodGet, "/v1/me", nil, who); err != nil && rest.RefusalOf(err).Status != http.StatusNotFound {
		return nil, err
	}
	who.Prefix = cmp.Or(a.prefix, strings.Trim(who.Prefix, "/"))
	if who.Prefix != "" && !usablePrefix.MatchString(who.Prefix) {
		return nil, a.ProtocolError("the server names no usable prefix of paths")
	}
	a.know(who)
	return who, nil
}

// path returns the path of a resource of the account.
func (a *api) path(ctx context.Context, below string) (string, error) {
	who, err := a.account(ctx)
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix("/v1/"+who.Prefix, "/") + below, nil
}

// call makes a request for a resource of the account.
func (a *api) call(ctx context.Context, method, below string, in, out any) error {
	path, err := a.path(ctx, below)
	if err != nil {
		return err
	}
	return a.Call(ctx, method, path, in, out)
}

// box is the server's description of a box.
type box struct {
	ID         string    `json:"box_id"`
	Name       string    `json:"name"`
	Status     string    `json:"status"`
	Created    time.Time `json:"created_at"`
	CPUs       int64     `json:"cpus"`
	Memory     int64     `json:"memory_mib"`
	AutoStop   int64     `json:"auto_stop"`
	AutoDelete int64     `json:"auto_delete"`
}

// The statuses of a box that Atoll acts on.
const (
	running    = "running"
	configured = "configured" // made, and not started yet
	stopped    = "stopped"
)

// states translates statuses. A stopped box keeps its files and loses its
// processes.
var states = hosted.States{
	running: sandbox.Running, configured: sandbox.Paused, "stopping": sandbox.Paused, stopped: sandbox.Paused, "paused": sandbox.Paused, "failed": sandbox.Failed,
}

// usableID matches ids and names that are valid in a path.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$`)

// box makes a request whose answer is the box with an id or name.
func (a *api) box(ctx context.Context, method, below, want string, in any) (b box, err error) {
	err = a.call(ctx, method, below, in, &b)
	return b, a.check(b, want, err)
}

func (a *api) check(b box, want string, err error) error {
	switch {
	case err != nil:
		return err
	case !usableID.MatchString(b.ID):
		return a.ProtocolError("the server names no box")
	case b.ID != want && b.Name != want:
		return a.ProtocolError("the server answers for another box")
	}
	return nil
}

func (a *api) get(ctx context.Context, id string) (box, error) {
	return a.box(ctx, http.MethodGet, "/boxes/"+id, id, nil)
}

// pageSize is the number of boxes per page.
const pageSize = 1000

type page struct {
	Boxes []box  `json:"boxes"`
	Next  string `json:"next_page_token"`
}

func (a *api) page(ctx context.Context, token string, size int) (all page, err error) {
	q := url.Values{"pageSize": {fmt.Sprint(size)}}
	if token != "" {
		q.Set("pageToken", token)
	}
	err = a.call(ctx, http.MethodGet, "/boxes?"+q.Encode(), nil, &all)
	return all, err
}

// list returns the boxes of the account with our name prefix.
func (a *api) list(ctx context.Context, prefix string) ([]box, error) {
	return hosted.Chained(&a.Client, func(cursor string) (ours []box, next string, err error) {
		p, err := a.page(ctx, cursor, pageSize)
		for _, b := range p.Boxes {
			if strings.HasPrefix(b.Name, prefix) && usableID.MatchString(b.ID) {
				ours = append(ours, b)
			}
		}
		return ours, p.Next, err
	})
}

// named returns the box with a name. It returns hosted.ErrNone if the server
// reports it missing and does not list it.
func (a *api) named(ctx context.Context, name string) (box, error) {
	b, err := a.get(ctx, name)
	if !missing(err) {
		return b, err
	}
	all, err := a.list(ctx, name)
	for _, b := range all {
		if b.Name == name {
			return b, nil
		}
	}
	return box{}, cmp.Or(err, hosted.ErrNone)
}

// names are the names of boxes. The server keeps them unique.
const names = hosted.Names("-box-")

// describe converts the server's description of a box.
func (b box) describe() hosted.Sandbox {
	d := hosted.Sandbox{ID: b.ID, Status: b.Status, State: states.Of(b.Status), Created: b.Created}
	d.Scope, d.Sandbox, _ = names.Parse(b.Name)
	return d
}

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, _ sandbox.ID, boxID string) (hosted.Sandbox, error) {
	b, err := a.get(ctx, boxID)
	if missing(err) {
		err = hosted.ErrNone
	}
	return b.describe(), err
}

// Find implements hosted.Finder.
func (a *api) Find(ctx context.Context, scope string, id sandbox.ID) (hosted.Sandbox, error) {
	return a.Get(ctx, id, names.Of(scope, id))
}

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) (ours []hosted.Sandbox, err error) {
	all, err := a.list(ctx, names.Of(scope, id))
	for _, b := range all {
		ours = append(ours, b.describe())
	}
	return ours, err
}

// End implements hosted.Service, whether a box runs or not.
func (a *api) End(ctx context.Context, _ sandbox.ID, boxID string) error {
	path, err := a.path(ctx, "/boxes/"+boxID+"?force=true")
	if err != nil {
		return err
	}
	if err := a.Remove(ctx, path); !missing(err) {
		return err
	}
	return hosted.ErrNone
}

// Account implements hosted.Accounter.
func (a *api) Account(ctx context.Context) (string, error) {
	who, err := a.account(ctx)
	if err != nil {
		return "", err
	}
	return who.Prefix + "/" + who.Sub, nil
}

// Credential implements hosted.Service.
func (a *api) Credential() hosted.Credential {
	c := hosted.Credential{Name: a.prefix + "\n" + a.Key.Account()}
	if a.Key.Value() != "" {
		c.Key = c.Name
	}
	return c
}

// start starts a box, if it is stopped.
func (p *Provider) start(ctx context.Context, id sandbox.ID, boxID string) error {
	return p.move(ctx, id, boxID, "start", running, nil)
}

// move brings a box into a status.
func (p *Provider) move(ctx context.Context, id sandbox.ID, boxID, verb, want string, in any) error {
	return p.Move(ctx, id, boxID, func(now hosted.Sandbox) (bool, error) {
		if now.Status == want {
			return true, nil
		}
		b, err := p.api.box(ctx, http.MethodPost, "/boxes/"+boxID+"/"+verb, boxID, in)
		return err == nil && b.Status == want, err
	})
}

// awake is the error for a stopped box.
func awake(b hosted.Sandbox) error {
	if b.Status == running {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeConflict, Subject: string(b.Sandbox), Message: "the service has stopped the sandbox", Hint: "resume it with: atoll resume"}
}
