package islo

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the service's compute API. Its Login is a client of the
// control API.
type api struct {
	*hosted.Login
	rest.Client
	sandboxes hosted.Records
	tokens    *credential.Cached[token]
}

// token is what the service gives for the key. It is not used after a time.
type token struct {
	text  string
	until time.Time
}

func newAPI(login *hosted.Login, compute *url.URL, sandboxes hosted.Records) *api {
	a := &api{Login: login, sandboxes: sandboxes, tokens: credential.NewCached(token{})}
	login.Fresh = a.fresh
	login.Sign = func(h http.Header) { h.Set("Authorization", "Bearer "+a.tokens.Current().text) }
	login.Hidden = func() []string { return []string{a.Key.Current(), a.tokens.Current().text} }
	a.Client = login.Client
	a.Base = compute
	return a
}

// parseError reads an error of either API.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct{ Code, Message string }
	return said.Code, said.Message, json.Unmarshal(body, &said) == nil && said.Code != ""
}

const (
	// early is how long before its end a token is replaced.
	early = time.Minute
	// usual is the lifetime of a token if the service reports none.
	usual = 10 * time.Minute
)

// fresh ensures that there is a token. With refused, the service rejected the
// present one.
func (a *api) fresh(ctx context.Context, refused bool) error {
	before := a.tokens.Current()
	good := func(t token) bool { return time.Now().Before(t.until) && (!refused || t != before) }
	_, err := a.tokens.Get(ctx, good, func(ctx context.Context) (token, error) {
		for stale := ""; ; {
			key, err := a.Key.Get(ctx, stale)
			if err != nil {
				return token{}, err
			}
			t, err := a.exchange(ctx, key)
			if rest.RefusalOf(err).Status != http.StatusUnauthorized || stale != "" {
				return t, err
			}
			stale = key // there may be a new key
			if _, other := a.Key.Get(ctx, stale); other != nil {
				return t, err
			}
		}
	})
	return err
}

// exchange requests a token. It is safe to repeat.
func (a *api) exchange(ctx context.Context, key string) (t token, err error) {
	c := rest.Client{HTTP: a.HTTP, Base: a.Login.Base, ParseError: parseError, Secrets: []string{key}, Sign: func(http.Header) {}}
	var got struct {
		Token  string `json:"session_token"`
		MaxAge *int64 `json:"cookie_max_age"`
	}
	for n := 1; ; n++ {
		err = c.Call(ctx, http.MethodPost, "/auth/token", map[string]string{"access_key": key}, &got)
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable || n == tries {
			break
		}
		if err := rest.Sleep(ctx, fastPoll); err != nil {
			return t, err
		}
	}
	if err == nil && got.Token == "" {
		err = a.ProtocolError("the service gives no token")
	}
	life := usual
	if got.MaxAge != nil {
		life = time.Duration(*got.MaxAge) * time.Second
	}
	return token{got.Token, time.Now().Add(max(life-early, life/2))}, err
}

// missing reports that the service itself says that there is no such sandbox,
// snapshot or profile. A missing file or command does not count.
func missing(err error) bool {
	r := rest.RefusalOf(err)
	switch r.Code {
	case "SANDBOX_NOT_FOUND", "NOT_FOUND", "RESOURCE_NOT_FOUND":
		return r.Status == http.StatusNotFound
	}
	return r.Code == "GONE" && r.Status == http.StatusGone
}

// size is the size of a sandbox.
type size struct {
	CPUs   int64 `json:"vcpus,omitempty"`
	Memory int64 `json:"memory_mb,omitempty"`
	Disk   int64 `json:"disk_gb,omitempty"`
}

// lifecycle contains the service's timeouts for a sandbox, in seconds.
type lifecycle struct {
	DeleteAfter int64  `json:"delete_after,omitempty"`
	AutoResume  string `json:"auto_resume,omitempty"`
}

// apiSandbox is the service's description of a sandbox.
type apiSandbox struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Status    string    `json:"status"`
	Created   time.Time `json:"created_at"`
	Spec      size      `json:"spec"`
	Lifecycle lifecycle `json:"lifecycle"`
}

// creation is the request for a new sandbox. The service does not accept null.
type creation struct {
	Name     string `json:"name"`
	Image    string `json:"image,omitempty"`
	Snapshot string `json:"snapshot_name,omitempty"`
	size
	Profile   string    `json:"gateway_profile,omitempty"`
	Internet  *bool     `json:"internet_enabled,omitempty"`
	Lifecycle lifecycle `json:"lifecycle"`
	Request   string    `json:"request_id"`
}

// sandbox makes a request whose answer is the sandbox with a name.
func (a *api) sandbox(ctx context.Context, method, path, name string, in any) (b apiSandbox, err error) {
	err = a.Call(ctx, method, path, in, &b)
	if err == nil && (b.ID == "" || b.Name != name) {
		err = a.ProtocolError("the service answers for another sandbox")
	}
	return b, err
}

func (a *api) get(ctx context.Context, name string) (apiSandbox, error) {
	return a.sandbox(ctx, http.MethodGet, "/sandboxes/"+name, name, nil)
}

// pages is one page of a list.
type pages[T any] struct {
	Items []T   `json:"items"`
	Total int64 `json:"total"`
}

// all returns a whole list.
func all[T any](ctx context.Context, a *api, path string, q url.Values) ([]T, error) {
	return hosted.Counted(&a.Client, func(_, have int) (items []T, total int64, err error) {
		var p pages[T]
		q.Set("limit", "100")
		q.Set("offset", strconv.Itoa(have))
		err = a.Call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &p)
		return p.Items, p.Total, err
	})
}

// names are the names of sandboxes and snapshots. The service has no other way
// to mark a sandbox as ours.
const names = hosted.Names("-")

// own returns the service's name for a resource of this directory.
func (a *api) own(id string) (string, error) {
	scope, err := a.sandboxes.Scope()
	return names.Of(scope, sandbox.ID(id)), err
}

// named returns the service's name for a sandbox of ours.
func (a *api) named(id sandbox.ID) (string, error) {
	scope, err := a.sandboxes.ScopeOf(id)
	return names.Of(scope, id), err
}

// describe converts the service's description of a sandbox.
func (s apiSandbox) describe() hosted.Sandbox {
	d := hosted.Sandbox{ID: s.ID, Status: s.Status, State: states.Of(s.Status), Created: s.Created, Access: s.Name}
	d.Scope, d.Sandbox, _ = names.Parse(s.Name)
	return d
}

// Get implements hosted.Service. Sandboxes are looked up by name.
func (a *api) Get(ctx context.Context, id sandbox.ID, _ string) (hosted.Sandbox, error) {
	scope, err := a.sandboxes.ScopeOf(id)
	if err != nil {
		return hosted.Sandbox{}, err
	}
	return a.Find(ctx, scope, id)
}

// Find implements hosted.Finder.
func (a *api) Find(ctx context.Context, scope string, id sandbox.ID) (hosted.Sandbox, error) {
	b, err := a.get(ctx, names.Of(scope, id))
	d := b.describe()
	if missing(err) || err == nil && d.State == sandbox.Gone {
		err = hosted.ErrNone
	}
	return d, err
}

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) (ours []hosted.Sandbox, err error) {
	found, err := all[apiSandbox](ctx, a, "/sandboxes", url.Values{"name_prefix": {names.Of(scope, id)}})
	for _, b := range found {
		ours = append(ours, b.describe())
	}
	return ours, err
}

// End implements hosted.Service. Names are reused, so it does not end a newer
// sandbox with the same name.
func (a *api) End(ctx context.Context, id sandbox.ID, sandboxID string) error {
	b, err := a.Get(ctx, id, sandboxID)
	if err != nil || b.ID != sandboxID {
		return err
	}
	name, err := a.named(id)
	if err != nil {
		return err
	}
	if err := a.Remove(ctx, "/sandboxes/"+name); !missing(err) {
		return err
	}
	return hosted.ErrNone
}

// Clear implements hosted.Clearer: it removes the gateway profile of a sandbox.
func (a *api) Clear(ctx context.Context, id sandbox.ID, once bool) error {
	name, err := a.named(id)
	if err != nil {
		return err
	}
	return a.removeProfile(ctx, name, once)
}

// The statuses of a sandbox that change only on request.
const (
	statusRunning = "running"
	statusPaused  = "paused"
	statusStopped = "stopped"
)

var states = hosted.States{
	statusRunning: sandbox.Running, "starting": sandbox.Running, "creating": sandbox.Running, "pending": sandbox.Running,
	"provisioning": sandbox.Running, "resuming": sandbox.Running,
	statusPaused: sandbox.Paused, "pausing": sandbox.Paused, statusStopped: sandbox.Paused, "stopping": sandbox.Paused,
	"failed": sandbox.Failed, "error": sandbox.Failed, "deleted": sandbox.Gone, "deleting": sandbox.Gone,
}

const (
	fastPoll = 50 * time.Millisecond
	slowPoll = time.Second
	// tries is the number of attempts for a request without an answer.
	tries = 3
)

// Wake implements hosted.Inside. It resumes a paused or stopped sandbox, which
// keeps its name. It never creates another one. A stopped sandbox has its files
// but no processes.
func (in *inside) Wake(ctx context.Context) error {
	return in.p.Move(ctx, in.ID, "", func(now hosted.Sandbox) (bool, error) {
		if now.Status == statusRunning {
			return true, nil
		}
		_, err := in.api.sandbox(ctx, http.MethodPost, in.path("/resume"), in.name, nil)
		return false, err
	})
}
