package modal

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/internal/plainproto"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/provider/internal/rpc"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the control plane. It implements hosted.Service.
type api struct {
	rpc.Client
	login                *hosted.Login
	id, app, environment string // of the token, and names

	fetching sync.Mutex // held while a token is fetched

	mu      sync.Mutex
	token   string // proves the credential for a while
	known   string // ID of the app, if known
	builder string // version of the image builder, if known
}

func newAPI(login *hosted.Login, opts *Options) *api {
	a := &api{login: login, id: opts.TokenID, app: opts.App, environment: opts.Environment}
	a.Client = rpc.Client{RetryAfter: retryAfter, Client: &login.Client}
	a.Fresh, a.Hidden = a.fresh, func() []string { return []string{login.Key.Current(), a.current()} }
	return a
}

// retryAfter reads a detail of an error.
func retryAfter(kind string, detail []byte) int {
	var policy modalapi.RetryPolicy
	if kind != modalapi.RetryPolicyName || (plainproto.Codec{}).Unmarshal(detail, &policy) != nil {
		return 0
	}
	return max(1, int(math.Ceil(float64(policy.RetryAfter))))
}

// current returns the present token.
func (a *api) current() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token
}

// account adds the credential, and what the service wants to know of a client.
// These are the values of the official one for Go.
func (a *api) account(h http.Header) {
	h.Set("X-Modal-Client-Type", "9")
	h.Set("X-Modal-Client-Version", "1.0.0")
	h.Set("X-Modal-Libmodal-Version", "modal-go/0.11.1")
	h.Set("X-Modal-Host", a.Base.Hostname())
	h.Set("X-Modal-Token-Id", a.id)
	h.Set("X-Modal-Token-Secret", a.login.Key.Current())
}

func (a *api) sign(h http.Header) {
	a.account(h)
	h.Set("X-Modal-Auth-Token", a.current())
}

// route is the way to the control plane.
func (a *api) route(sign func(http.Header)) rpc.Route {
	return rpc.Route{URL: strings.TrimSuffix(a.Base.String(), "/") + modalapi.Client, Sign: sign}
}

// fresh ensures that there is a token, which is used until the service refuses it.
func (a *api) fresh(ctx context.Context, refused bool) error {
	if err := a.login.Key.Fresh(ctx, false); err != nil {
		return err
	}
	before := a.current()
	a.fetching.Lock()
	defer a.fetching.Unlock()
	if now := a.current(); now != "" && (!refused || now != before) {
		return nil // perhaps another call was faster
	}
	var got modalapi.AuthToken
	get := func() error {
		return rpc.Call(ctx, &a.Client, a.route(a.account), "AuthTokenGet", &modalapi.Empty{}, &got)
	}
	err := get()
	if rest.RefusalOf(err).Status == http.StatusUnauthorized && a.login.Key.Fresh(ctx, true) == nil {
		err = get()
	}
	if err == nil && got.Token == "" || rpc.Missing(err) { // that is about no sandbox
		err = a.ProtocolError("the service gives no token")
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = got.Token
	return nil
}

// create is the method that is never repeated, because it would make another
// sandbox.
const create = "SandboxCreateV2"

// call calls a method of the control plane.
func call[Req, Res any](ctx context.Context, a *api, method string, in *Req, out *Res) error {
	return a.Insist(ctx, method != create, func() error { return rpc.Call(ctx, &a.Client, a.route(a.sign), method, in, out) })
}

// appID returns the ID of the app. If there is none, it makes one or returns
// hosted.ErrNone.
func (a *api) appID(ctx context.Context, creation int32) (string, error) {
	a.mu.Lock()
	id := a.known
	a.mu.Unlock()
	if id != "" {
		return id, nil
	}
	var app modalapi.App
	err := call(ctx, a, "AppGetOrCreate", &modalapi.AppRequest{Name: a.app, Environment: a.environment, Creation: creation}, &app)
	switch {
	case rpc.Missing(err) && creation == 0:
		return "", hosted.ErrNone
	case err == nil && app.ID == "":
		err = a.ProtocolError("the service names no app")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = app.ID
	return app.ID, err
}

// forget makes the next call look for the app, which may have been stopped.
func (a *api) forget(err error) error {
	if rest.RefusalOf(err).Ours {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.known = ""
	}
	return err
}

// The statuses of a sandbox.
const (
	running = "running"
	ended   = "ended"
)

// states says what they mean.
var states = hosted.States{running: sandbox.Running, ended: sandbox.Gone}

// describe converts the service's description of a sandbox. Tags have few
// characters, so the record has the labels.
func describe(id string, result *modalapi.Result, tags []*modalapi.Tag) hosted.Sandbox {
	status := running
	if result != nil && result.Status != 0 {
		if status = ended; result.Status < 0 || result.Status > modalapi.LastStatus {
			status = "status " + strconv.Itoa(int(result.Status))
		}
	}
	metadata := map[string]string{}
	for _, t := range tags {
		metadata[t.Name] = t.Value
	}
	b := hosted.Marked(hosted.Sandbox{ID: id, Status: status, State: states.Of(status)}, metadata)
	b.Labels = nil
	return b
}

// tags returns the tags of a sandbox with a scope and an ID.
func tags(scope string, id sandbox.ID) (all []*modalapi.Tag) {
	for k, v := range hosted.Wanted(scope, id) {
		all = append(all, &modalapi.Tag{Name: k, Value: v})
	}
	return all
}

// Get implements hosted.Service. One that has ended counts as none.
func (a *api) Get(ctx context.Context, _ sandbox.ID, id string) (b hosted.Sandbox, err error) {
	var now modalapi.Waited
	err = call(ctx, a, "SandboxWaitV2", &modalapi.WaitRequest{ID: id}, &now)
	if b = describe(id, now.Result, nil); err == nil && b.State == sandbox.Gone {
		err = hosted.ErrNone
	}
	if err == nil {
		var got modalapi.TagsGet
		err = call(ctx, a, "SandboxTagsGetV2", &modalapi.SandboxRef{ID: id}, &got)
		b = describe(id, now.Result, got.Tags)
	}
	if rpc.Missing(err) {
		err = hosted.ErrNone
	}
	return b, err
}

// named returns the sandbox that has a name.
func (a *api) named(ctx context.Context, name string) (b hosted.Sandbox, err error) {
	var got modalapi.Named
	err = call(ctx, a, "SandboxGetFromNameV2", &modalapi.NameRequest{Name: name, Environment: a.environment, App: a.app}, &got)
	switch {
	case rpc.Missing(err):
		return b, hosted.ErrNone
	case err != nil:
		return b, err
	}
	return a.Get(ctx, "", got.ID)
}

// maxPages limits a list.
const maxPages = 10_000

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) (ours []hosted.Sandbox, err error) {
	req := modalapi.ListRequest{Tags: tags(scope, id)}
	if req.App, err = a.appID(ctx, 0); err == hosted.ErrNone {
		return nil, nil
	}
	for range maxPages {
		var page modalapi.List
		if err == nil {
			err = a.forget(call(ctx, a, "SandboxListV2", &req, &page))
		}
		if err != nil || len(page.Sandboxes) == 0 {
			return ours, err
		}
		for _, s := range page.Sandboxes {
			var result *modalapi.Result
			if s.Task != nil {
				result = s.Task.Result
			}
			b := describe(s.ID, result, s.Tags)
			b.Created, req.Before = time.UnixMicro(int64(s.Created*1e6)), s.Created
			if ours = append(ours, b); s.Created <= 0 {
				return nil, a.ProtocolError("the service's list is invalid")
			}
		}
	}
	return nil, a.ProtocolError("the service's list has no end")
}

// End implements hosted.Service. It waits until the sandbox has ended.
func (a *api) End(ctx context.Context, id sandbox.ID, sb string) error {
	if _, err := a.Get(ctx, id, sb); err != nil {
		return err
	}
	return hosted.Poll(ctx, func() (bool, error) {
		err := call(ctx, a, "SandboxTerminateV2", &modalapi.SandboxRef{ID: sb}, &modalapi.Empty{})
		if err != nil && !rpc.Missing(err) && sandbox.CodeOf(err) != sandbox.CodeConflict && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			return false, err
		}
		_, looked := a.Get(ctx, id, sb)
		if looked == hosted.ErrNone {
			return true, nil
		}
		return false, looked
	}, func() error { return a.ProtocolError("the service does not end the sandbox") })
}

// Claim implements hosted.Claimer.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	all := tags(metadata[hosted.MetaScope], sandbox.ID(metadata[hosted.MetaID]))
	return call(ctx, a, "SandboxTagsSetV2", &modalapi.TagsSet{Environment: a.environment, ID: b.ID, Tags: all}, &modalapi.Empty{})
}

// Credential implements hosted.Service.
func (a *api) Credential() hosted.Credential { return a.login.Credential() }

// image returns the ID of an image, which the service builds if it does not have
// it. A build may be shared, and stays.
func (a *api) image(ctx context.Context, name string) (string, error) {
	if id, ok := strings.CutPrefix(name, hosted.TemplateScheme); ok {
		return id, nil
	}
	a.mu.Lock()
	builder := a.builder
	a.mu.Unlock()
	if builder == "" {
		var e modalapi.Environment
		if err := call(ctx, a, "EnvironmentGetOrCreate", &modalapi.EnvironmentRequest{Name: a.environment}, &e); err != nil {
			return "", err
		}
		if e.Metadata != nil && e.Metadata.Settings != nil {
			builder = e.Metadata.Settings.Builder
		}
		a.mu.Lock()
		a.builder = builder
		a.mu.Unlock()
	}
	app, err := a.appID(ctx, modalapi.CreateIfMissing)
	var made modalapi.Image
	if err == nil {
		req := modalapi.ImageRequest{Image: &modalapi.Dockerfile{Commands: []string{"FROM " + name}}, App: app, Builder: builder}
		err = a.forget(call(ctx, a, "ImageGetOrCreate", &req, &made))
	}
	if err == nil && (made.Result == nil || made.Result.Status == 0) {
		made.Result, err = a.built(ctx, made.ID)
	}
	if err == nil && made.Result.Status != modalapi.Success {
		err = &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "modal.create", Subject: name, Message: "the service cannot build the image: " + a.Clip(made.Result.Exception),
			Hint: "check its name, and that anyone can fetch it",
		}
	}
	return made.ID, err
}

// built waits until an image is built.
func (a *api) built(ctx context.Context, id string) (result *modalapi.Result, err error) {
	req := modalapi.ImageJoin{ID: id, Timeout: 55}
	for result == nil && err == nil {
		err = a.Insist(ctx, true, func() error {
			return rpc.Stream(ctx, &a.Client, a.route(a.sign), "ImageJoinStreaming", &req, func(m *modalapi.ImageProgress) bool {
				if req.Last = cmp.Or(m.Entry, req.Last); m.Result != nil && m.Result.Status != 0 {
					result = m.Result
				}
				return result == nil
			})
		})
		if result == nil && err == nil {
			err = rest.Sleep(ctx, time.Second)
		}
	}
	return result, err
}
