package daemon

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/machine"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/sandboxes/update"
	"github.com/atoll-run/atoll/internal/control/sessions"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

// owned implements api.Machine.
type owned struct {
	d *Daemon
	*machine.Service
	*doctor
	ready  func(context.Context) error
	egress map[string]string // fingerprints of settings
}

// EgressSettings implements api.Machine.
func (o owned) EgressSettings(ctx context.Context) (map[string]string, error) {
	return o.egress, o.MayDiagnose(ctx)
}

func (o owned) Ready(ctx context.Context) error { return o.ready(ctx) }

// processes implements api.Processes.
type processes struct{ *exec.Service }

// holders provides the holders of session sandboxes to the API.
type holders struct{ *sessions.Holders }

func (h holders) Route(ctx context.Context, ref string, epoch int64, follow bool) (api.Routed, error) {
	r, err := h.Holders.Route(ctx, ref, epoch, follow)
	return api.Routed(r), err
}

// apiServices returns the control services for the API.
func (d *Daemon) apiServices() api.Services {
	s := d.services
	return api.Services{
		Sandboxes:      s.Sandboxes.Public(),
		Processes:      processes{s.Exec},
		Snapshots:      s.Snapshots,
		Keys:           s.Tenants,
		Profiles:       s.Profiles,
		Secrets:        s.Secrets,
		Events:         heard{s.Events, d.egress},
		Workspaces:     s.Workspaces,
		Tenants:        s.Tenants,
		Providers:      s.Providers,
		Machine:        owned{d, s.Machine, newDoctor(d), d.ready(d.provider), d.egressPrints},
		Machines:       s.Machines,
		Nodes:          s.Nodes,
		Ports:          s.Exec,
		Streams:        d.view,
		Desktops:       d.desk,
		Recordings:     &d.recordings,
		Code:           d.code,
		Source:         d.source,
		PublishedPorts: published{s.Sandboxes.Updater, s.Ports},
		Templates:      s.Templates,
		Policies:       s.Policies,
		Sessions:       d.sessions.Sessions,
		Holders:        holders{d.sessions.Holders},
		Movers:         d.sessions.Movers,
	}
}

// published provides published ports to the API.
type published struct {
	*update.Updater
	ports *ports.Service
}

func (p published) Published(ctx context.Context) ([]sandbox.Publication, error) {
	return p.ports.List(ctx)
}

// apiSandbox adapts a sandbox to the API.
type apiSandbox struct{ *exec.Handle }

func (s apiSandbox) Files() api.Files { return s.Sandbox.Files() }

func (p processes) Open(ctx context.Context, ref string) (api.Sandbox, error) {
	b, err := p.Service.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	return apiSandbox{b}, nil
}

// neededImages returns images that must not be removed, because sandboxes will
// be started from them.
func (d *Daemon) neededImages(ctx context.Context) ([]image.Pin, error) {
	all, err := d.services.Machine.NeededImages(ctx)
	out := make([]image.Pin, len(all))
	for i, u := range all {
		out[i] = image.Pin(u)
	}
	return out, err
}
