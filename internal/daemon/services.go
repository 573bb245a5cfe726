package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/machines"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/idtoken"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ownaddr"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/secret/source"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/server/console"
	"github.com/atoll-run/atoll/internal/server/portproxy"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/internal/telemetry"
	"github.com/atoll-run/atoll/sandbox"
)

// openControl opens the control plane with its store, policies and gateway.
func (d *Daemon) openControl(ctx context.Context) error {
	d.gate = admission.New(admission.Config{Memory: d.opts.memory})
	config := services.Config{
		Provider: d.opts.Provider, Shared: d.opts.SharedProviders, Scratch: d.node.Dir(), Builds: d.buildDir(),
		Config:   core.Config{Node: d.member.Node, Store: d.store, Logger: d.opts.Logger, Fault: d.opts.Fault},
		Gate:     d.gate,
		Policies: d.policies(), Sources: &source.Reader{LookupEnv: d.opts.LookupEnv},
		PlainSnapshots: d.opts.PlainSnapshots, SnapshotCache: cmp.Or(d.opts.SnapshotCache, snapshots.DefaultCache), SaveEvery: d.opts.SaveEvery,
		Recordings: &d.recordings,
	}
	for _, open := range []func(context.Context, *services.Config) error{d.openLog, d.openProvider, d.openKeys, d.openShelves} {
		if err := open(ctx, &config); err != nil {
			return err
		}
	}
	operator, err := d.node.Operator()
	if err != nil {
		return err
	}
	config.Operator = policy.Operator{Allow: operator.Private, HostPorts: operator.HostPorts, Own: d.ownPorts(), Proxied: operator.Proxy != ""}
	d.egressPrints = d.node.EgressFingerprints()
	own, err := ownaddr.Open()
	if err != nil {
		return err
	}
	d.onClose(own.Close)
	config.Operator.Machine = own.Own
	d.egress = newEgress(d)
	d.egress.configure()
	config.Gateway = d.egress
	config.MachineProviders = machineProviders{d}
	config.ImageNames, config.ImageName, config.AcceptImage = d.imageNames, image.Name, d.acceptImage
	if d.fleet != nil {
		config.Nodes = nodeProviders{d}
	}
	d.onClose(machineProviders{d}.closeAll)
	if d.opts.Blobs != "" { // otherwise they would be on this machine twice
		config.TemplateImages = templateImages{d}
	}
	d.services = services.New(config)
	d.node.FetchImages(d.services.Snapshots.FetchImage)
	if d.hub != nil {
		d.services.Machines.Connect(d.hub)
	}
	d.onClose(d.services.Close)
	images, err := d.node.Images()
	if err != nil {
		return err
	}
	images.Protect(d.neededImages)
	images.Restrict(image.Restriction{Applies: guard.ForTenant, Permit: config.Operator.Permits})
	if err := d.shareImages(ctx, images); err != nil {
		return err
	}
	// First, so that the policies apply to the links of an earlier daemon.
	if err := d.startEgress(ctx, d.egress); err != nil {
		return err
	}
	err = d.services.Policies.Load(ctx)
	if err != nil && !policies.InForce(err) {
		return err // without policies, everything would be allowed
	}
	d.enforceEgress(ctx)
	return nil
}

// openLog opens the event log, and closes the attempts that an earlier daemon
// left open.
func (d *Daemon) openLog(ctx context.Context, config *services.Config) error {
	anchors := filepath.Join(d.node.Dir(), anchorsName)
	if err := os.MkdirAll(anchors, 0o700); err != nil {
		return err
	}
	seal, err := secretFile(filepath.Join(d.node.Dir(), "audit.key"))
	if err != nil {
		return err
	}
	report := func(ctx context.Context, err error) {
		d.opts.Logger.ErrorContext(ctx, "writing the event log failed", "error", err)
	}
	options := eventlog.Options{
		Anchor: &eventlog.FileAnchor{Dir: anchors}, CutKey: seal, OnError: func(err error) { report(context.Background(), err) },
	}
	if d.otel.Events() {
		options.Sends = d.member.Node
	}
	d.log = eventlog.New(d.store, options)
	d.onClose(d.log.Close)
	config.OTLP = func(w io.Writer, page []eventlog.Record) error { return telemetry.WriteEvents(w, d.opts.Version, page) }
	config.Log, config.Config.Audit = d.log, audit.New(d.log, audit.Options{Node: d.member.Node, OnError: report})
	n, err := config.Config.Audit.CloseAttempts(ctx)
	if n > 0 && err == nil {
		d.opts.Logger.Warn("an earlier daemon ended before it recorded the outcome of some actions", "actions", n)
	}
	return err
}

// openProvider opens the default provider and the image builder.
func (d *Daemon) openProvider(ctx context.Context, config *services.Config) (err error) {
	d.node.KeepReady(d.opts.Pool)
	first, err := d.backend(ctx, d.opts.Provider)
	if err != nil {
		return err
	}
	config.Engine, config.Binding, config.Former, config.Open = first.Engine, first.Binding, first.Former, d.backend
	for _, e := range d.node.Providers().Entries() {
		config.Known = append(config.Known, catalog.Provider{Name: e.Name, Summary: e.Summary, Warning: e.Warning})
	}
	config.Defaults = sandbox.Resources{Memory: defaultMemory, Disk: defaultDisk, PIDs: defaultPIDs}
	d.provider = first.Engine.Provider
	config.Builder, err = d.openTemplates()
	return err
}

// backend opens one of the providers for the control plane.
func (d *Daemon) backend(ctx context.Context, name string) (providers.Opened, error) {
	if strings.HasPrefix(name, machines.Prefix) {
		return machineProviders{d}.open(ctx, name)
	}
	if strings.HasPrefix(name, fleet.Prefix) {
		return nodeProviders{d}.open(name)
	}
	p, err := d.node.Providers().Open(ctx, name)
	if err != nil {
		return providers.Opened{}, err
	}
	return providers.Opened{Name: p.Name, Binding: p.Binding, Former: p.Former, Engine: d.node.Config(p)}, nil
}

// openKeys opens the keys of this machine, and what is encrypted with them.
func (d *Daemon) openKeys(_ context.Context, config *services.Config) error {
	ports, err := secretFile(filepath.Join(d.node.Dir(), "ports.key"))
	if err != nil {
		return err
	}
	config.Passes = key.NewPasses(key.PassKey(ports))
	if config.Sealer, err = secret.OpenSealer(filepath.Join(d.node.Dir(), "secret.key")); err != nil {
		return err
	}
	if d.identity, err = idtoken.Open(filepath.Join(d.node.Dir(), "identity.key"), nil); err != nil {
		return err
	}
	config.Identities = d.identity
	config.Environments, err = snapshotstore.OpenEnvironments(filepath.Join(d.node.Dir(), "environments"), filepath.Join(d.node.Dir(), "seal.key"))
	return err
}

// openShelves opens the stores of snapshots and workspaces.
func (d *Daemon) openShelves(ctx context.Context, config *services.Config) (err error) {
	if config.Workspaces, config.Archive, err = d.openBlobs(ctx); err != nil {
		return err
	}
	d.archive = config.Archive
	config.Buckets, err = d.openBuckets()
	return err
}

// retryAfter returns when a refused request may be retried.
func retryAfter(err error) (time.Duration, bool) {
	if after, ok := admission.RetryAfter(err); ok {
		return after, true
	}
	return quota.RetryAfter(err)
}

// openServer prepares the API and the port proxy.
func (d *Daemon) openServer(context.Context) error {
	if err := d.openView(); err != nil {
		return err
	}
	proxy := portproxy.New(d.services.Exec, portproxy.Options{Domains: d.opts.Hosts, Logger: d.opts.Logger})
	d.server = server.New(server.Config{
		Ports:        proxy,
		Console:      console.New(&d.console),
		Handler:      d.observed(api.New(d.apiServices(), api.Options{RetryAfter: retryAfter, Fence: d.opts.Fence, Logger: d.opts.Logger})),
		Authenticate: d.authenticate, Hosts: d.opts.Hosts, Ready: d.recovered, Logger: d.opts.Logger,
	})
	d.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), d.opts.Drain)
		defer cancel()
		err := d.server.Shutdown(ctx)
		d.work.Wait()
		return errors.Join(err, proxy.Close())
	})
	return nil
}
