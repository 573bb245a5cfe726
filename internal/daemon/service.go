package daemon

import (
	"context"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/machine"
	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/control/sessions"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// service shows the control plane to the API.
type service struct {
	*plane.Plane
	*machine.Service
	builds string // where the files of builds are put
	ready  func(context.Context) error
	// version is that of the program.
	version string
	*doctor
	sessions *sessions.Service
}

// holders shows to the API who holds the sandboxes of sessions.
type holders struct{ *sessions.Service }

func (h holders) Route(ctx context.Context, ref string, epoch int64) (sandbox.ID, int64, func(), error) {
	r, err := h.Service.Route(ctx, ref, epoch)
	return r.Sandbox, r.Epoch, r.Done, err
}

func servicesOf(s service) api.Services {
	return api.Services{
		Sandboxes:  s,
		Processes:  s,
		Snapshots:  s.Snapshots,
		Keys:       s.Tenants,
		Profiles:   s.Plane.Profiles,
		Secrets:    s.Plane.Secrets,
		Events:     s.Plane.Events,
		Workspaces: s.Plane.Workspaces,
		Tenants:    s.Tenants,
		Providers:  s.Providers,
		Machine:    s,
		Ports:      s.Exec,
		Templates:  s.Templates,
		Policies:   s.Plane.Policies,
		Sessions:   s.sessions,
		Holders:    holders{s.sessions},
	}
}

func (s service) Create(ctx context.Context, req api.CreateRequest) (sandbox.Sandbox, bool, error) {
	made, err := s.Plane.Create(ctx, plane.CreateRequest{
		Spec: req.Spec, Pull: control.Pull(req.Pull), Platform: req.Platform,
		Idempotency: store.Create{IdempotencyKey: req.IdempotencyKey, Request: req.Raw},
	})
	out := shown(made.Sandbox)
	out.Entrypoint, out.Cmd = made.Image.Entrypoint, made.Image.Cmd
	return out, made.Replayed, err
}

func (s service) Get(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	b, err := s.Plane.Get(ctx, ref)
	return shown(b), err
}

func (s service) List(ctx context.Context, q sandbox.ListQuery) ([]sandbox.Sandbox, string, error) {
	page, next, err := s.Plane.List(ctx, store.Filter{States: q.States, Labels: q.Labels}, store.Page{Cursor: q.Cursor, Limit: q.Limit})
	return each(page, func(s store.Summary) sandbox.Sandbox { return here(s.Sandbox) }), next, err
}

// shown returns what callers are told of a sandbox. A daemon alone has no name.
func shown(b store.Sandbox) sandbox.Sandbox { return here(b.Info()) }

func here(s sandbox.Sandbox) sandbox.Sandbox {
	if s.Node == localNode {
		s.Node = ""
	}
	return s
}

// each applies f to every element.
func each[T, U any](all []T, f func(T) U) []U {
	out := make([]U, len(all))
	for i, v := range all {
		out[i] = f(v)
	}
	return out
}

// box shows a sandbox to the API.
type box struct{ *exec.Handle }

func (b box) Files() api.Files { return b.Sandbox.Files() }

func (s service) Open(ctx context.Context, ref string) (api.Box, error) {
	b, err := s.Exec.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	return box{b}, nil
}

// neededImages keeps images from being removed that somebody will start from.
func (d *Daemon) neededImages(ctx context.Context) ([]image.Pin, error) {
	all, err := d.plane.NeededImages(ctx)
	out := make([]image.Pin, len(all))
	for i, u := range all {
		out[i] = image.Pin(u)
	}
	return out, err
}

func (s service) ImageUses(ctx context.Context) ([]sandbox.ImageUse, error) {
	all, err := s.Plane.ImageUses(ctx)
	out := make([]sandbox.ImageUse, len(all))
	for i, u := range all {
		out[i] = sandbox.ImageUse(u)
	}
	return out, err
}

func (s service) Ready(ctx context.Context) error { return s.ready(ctx) }
