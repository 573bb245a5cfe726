// Package all lists the providers that Atoll is built with. A new provider is
// one line here. Nothing is opened before it is asked for by name.
package all

import (
	"context"
	"errors"
	"net/netip"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/proxy"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/blaxel"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/cloudflare"
	"github.com/atoll-run/atoll/provider/daytona"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/provider/islo"
	"github.com/atoll-run/atoll/provider/kubernetes"
	"github.com/atoll-run/atoll/provider/microsandbox"
	"github.com/atoll-run/atoll/provider/microvm"
	"github.com/atoll-run/atoll/provider/modal"
	"github.com/atoll-run/atoll/provider/none"
	"github.com/atoll-run/atoll/provider/opensandbox"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/provider/runloop"
	"github.com/atoll-run/atoll/provider/superserve"
	"github.com/atoll-run/atoll/provider/vercel"
	"github.com/atoll-run/atoll/sandbox"
)

// Builtin returns the providers that this program is built with, the default
// first, as the catalog lists them.
func Builtin() []providerset.Entry {
	known := catalog.Builtin()
	list := make([]providerset.Entry, len(known))
	for i, p := range known {
		list[i] = providerset.Entry{Name: p.Name, Summary: p.Summary, Warning: p.Warning, Open: openers[p.Name]}
		d, ok := catalog.Find(p.Name)
		if !ok {
			continue
		}
		list[i].Isolation = d.Isolation
		list[i].Check = func(env func(string) string) error {
			lookup := func(name string) (string, bool) { return env(name), true }
			return errors.Join(catalog.CheckDescriptor(p.Name, d), catalog.CheckCredentials(d, lookup))
		}
	}
	return list
}

// openers has every provider of the catalog's list.
var openers = map[string]func(providerset.Host) (driver.Provider, error){
	gvisor.Name: openGvisor, host.Name: openHost, microvm.Name: openMicrovm, docker.Name: openDocker,
	cloudflare.Name:   open(cloudflare.FromEnvironment, cloudflare.New),
	boxlite.Name:      open(boxlite.FromEnvironment, boxlite.New),
	superserve.Name:   open(superserve.FromEnvironment, superserve.New),
	islo.Name:         open(islo.FromEnvironment, islo.New),
	e2b.Name:          open(e2b.FromEnvironment, e2b.New),
	daytona.Name:      open(daytona.FromEnvironment, daytona.New),
	vercel.Name:       open(vercel.FromEnvironment, vercel.New),
	runloop.Name:      open(runloop.FromEnvironment, runloop.New),
	opensandbox.Name:  open(opensandbox.FromEnvironment, opensandbox.New),
	blaxel.Name:       open(blaxel.FromEnvironment, blaxel.New),
	modal.Name:        open(modal.FromEnvironment, modal.New),
	microsandbox.Name: open(microsandbox.FromEnvironment, microsandbox.New),
	kubernetes.Name:   openKubernetes, remote.Name: openRemote, none.Name: openNone,
}

// open opens a provider whose options have the names of its settings as tags.
func open[O any, P driver.Provider](environment func(dir string, lookup func(string) string) O, open func(O) (P, error)) func(providerset.Host) (driver.Provider, error) {
	return func(h providerset.Host) (driver.Provider, error) {
		opts := environment(h.Dir, h.Env)
		if err := h.Decode(&opts); err != nil {
			return nil, err
		}
		p, err := open(opts)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

func openGvisor(h providerset.Host) (driver.Provider, error) {
	opts := gvisor.FromEnvironment(h.Env)
	o := struct {
		Platform *string `json:"platform"`
	}{&opts.Platform}
	if err := h.Decode(&o); err != nil {
		return nil, err
	}
	images, err := h.Images()
	if err != nil {
		return nil, err
	}
	if kernel.Layered() != nil {
		images.KeepFlat()
	}
	opts.StateDir, opts.SnapshotDir, opts.Images, opts.Attached, opts.Pool = h.Dir, h.Snapshots, images, h.Attached, h.Pool
	if h.Network != nil {
		opts.Network = network{h.Network}
	}
	return gvisor.New(opts)
}

// network is a providerset.Network in the types of package gvisor.
type network struct{ providerset.Network }

func (n network) Connect(ctx context.Context, spec *sandbox.Spec, former gvisor.Known) (*gvisor.Link, error) {
	l, err := n.Network.Connect(ctx, spec, gateway.Known(former))
	return (*gvisor.Link)(l), err
}

func (n network) Known(ctx context.Context, id sandbox.ID) (gvisor.Known, error) {
	k, err := n.Network.Known(ctx, id)
	return gvisor.Known(k), err
}

func openMicrovm(h providerset.Host) (driver.Provider, error) {
	opts := microvm.FromEnvironment(h.Env)
	o := struct {
		Kernel *string `json:"kernel"`
		Image  *string `json:"image"`
		QEMU   *string `json:"qemu"`
	}{&opts.Kernel, &opts.Image, &opts.QEMU}
	if err := h.Decode(&o); err != nil {
		return nil, err
	}
	images, err := h.Images()
	if err != nil {
		return nil, err
	}
	opts.StateDir, opts.SnapshotDir, opts.Images, opts.Attached = h.Dir, h.Snapshots, images, h.Attached
	if h.Network != nil {
		opts.Network = ethernet{h.Network}
	}
	return microvm.New(opts)
}

// ethernet is a providerset.Network in the types of package microvm.
type ethernet struct{ providerset.Network }

func (n ethernet) Connect(ctx context.Context, spec *sandbox.Spec, former microvm.Known) (*microvm.Link, error) {
	l, err := n.ConnectEthernet(ctx, spec, gateway.Known(former))
	return (*microvm.Link)(l), err
}

func (n ethernet) Known(ctx context.Context, id sandbox.ID) (microvm.Known, error) {
	k, err := n.Network.Known(ctx, id)
	return microvm.Known(k), err
}

func openHost(h providerset.Host) (driver.Provider, error) {
	if err := h.Decode(&struct{}{}); err != nil {
		return nil, err
	}
	return host.New(host.Options{Dir: h.Dir})
}

func openKubernetes(h providerset.Host) (driver.Provider, error) {
	opts := kubernetes.FromEnvironment(h.Dir, h.Env)
	o := struct {
		Kubeconfig    *string `json:"kubeconfig"`
		Context       *string `json:"context"`
		Namespace     *string `json:"namespace"`
		Image         *string `json:"image"`
		RuntimeClass  *string `json:"runtimeClass"`
		NetworkPolicy *string `json:"networkPolicy"`
		Kind          *string `json:"kind"`
		Pool          *string `json:"pool"`
		Gateway       *string `json:"gateway"`
		GatewayPods   *string `json:"gatewayPods"`
		Insecure      *bool   `json:"insecure"`
	}{
		&opts.Kubeconfig, &opts.Context, &opts.Namespace, &opts.Image, &opts.RuntimeClass, &opts.NetworkPolicy, &opts.Kind, &opts.Pool,
		&opts.Gateway, &opts.GatewayPods, &opts.Insecure,
	}
	if err := h.Decode(&o); err != nil {
		return nil, err
	}
	if h.Network != nil {
		opts.OpenGateway = overProxy{h.Network}.open
	}
	return kubernetes.New(opts)
}

// overProxy lets the pods of a provider use a providerset.Network as a proxy.
type overProxy struct{ providerset.Network }

func (n overProxy) open(at netip.AddrPort, admit kubernetes.Admit) (kubernetes.Gateway, error) {
	p, err := proxy.Open(proxy.Options{
		Listen: at, Admit: proxy.Admit(admit),
		Link: func(ctx context.Context, id sandbox.ID, known gateway.Known) (*gateway.Link, error) {
			return n.Connect(ctx, &sandbox.Spec{ID: id}, known)
		},
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func openDocker(h providerset.Host) (driver.Provider, error) {
	opts := docker.FromEnvironment(h.Dir, h.Env)
	o := struct {
		Image   *string `json:"image"`
		Network *string `json:"network"`
	}{&opts.Image, &opts.Network}
	if err := h.Decode(&o); err != nil {
		return nil, err
	}
	return docker.New(opts)
}

func openRemote(h providerset.Host) (driver.Provider, error) {
	opts := remote.FromEnvironment(h.Dir, h.Env)
	o := struct {
		Address   *string `json:"address"`
		KeyFile   *string `json:"keyFile"`
		CAFile    *string `json:"caFile"`
		Provider  *string `json:"provider"`
		Secrets   *string `json:"secrets"`
		AllowHTTP *bool   `json:"allowHTTP"`
	}{&opts.Address, &opts.KeyFile, &opts.CAFile, &opts.Provider, &opts.Secrets, &opts.AllowHTTP}
	if err := h.Decode(&o); err != nil {
		return nil, err
	}
	return remote.New(opts)
}

func openNone(h providerset.Host) (driver.Provider, error) {
	if err := h.Decode(&struct{}{}); err != nil {
		return nil, err
	}
	return none.New(), nil
}
