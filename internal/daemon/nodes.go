package daemon

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/nodes"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// openFleet asks the node daemons of this daemon for their load.
func (d *Daemon) openFleet(ctx context.Context) error {
	if d.opts.Fleet == nil {
		return nil
	}
	first, err := store.Read(ctx, d.store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, key.DefaultTenant) })
	if err != nil {
		return err
	}
	config := *d.opts.Fleet
	config.Dir, config.Scope = filepath.Join(d.node.Dir(), "nodes"), strings.TrimPrefix(installation(first.Created), "atoll:")
	config.Store, config.Logger, config.Cleared = d.store, d.opts.Logger, d.nodeCleared
	if d.fleet, err = fleet.Open(ctx, config); err != nil {
		return err
	}
	d.onClose(d.fleet.Close)
	return nil
}

// nodeCleared records that the old sandboxes of a node were ended.
func (d *Daemon) nodeCleared(ctx context.Context, name string, ended int) {
	if d.services == nil { // while the daemon starts
		return
	}
	d.opts.Logger.Warn("a node that was given up came back; its old sandboxes were ended", "node", name, "sandboxes", ended)
	fact := audit.Action{Tenant: key.DefaultTenant, Op: ops.NodeRemove, Subject: name}
	d.services.Report(ctx, d.services.Audit.Fact(ctx, fact, eventlog.NodeCleared, nil))
}

// nodeProviders opens the providers of nodes. It implements providers.Nodes.
type nodeProviders struct{ d *Daemon }

func (p nodeProviders) open(name string) (providers.Opened, error) {
	if p.d.fleet == nil {
		return providers.Opened{}, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "provider.open", Subject: name, Message: "there is no such provider", Hint: "name its node with: atoll up --node URL",
		}
	}
	p.d.machineMu.Lock()
	defer p.d.machineMu.Unlock()
	if first, ok := p.d.machineOpen[name]; ok {
		return first, nil
	}
	own, binding, err := p.d.fleet.Provider(strings.TrimPrefix(name, fleet.Prefix))
	if err != nil {
		return providers.Opened{}, err
	}
	opened := &providerset.Provider{Provider: remote.Lender{Provider: own, Images: lentImages(p)}, Name: name, Binding: binding}
	result := providers.Opened{Name: name, Binding: binding, Engine: p.d.node.Config(opened)}
	p.d.machineOpen[name] = result
	p.d.machineClose = append(p.d.machineClose, own)
	return result, nil
}

// Known implements providers.Nodes.
func (p nodeProviders) Known() (all []catalog.Provider) {
	for _, n := range p.d.fleet.Nodes() {
		all = append(all, providerOf(&n))
	}
	return all
}

func providerOf(n *operator.Node) catalog.Provider {
	return catalog.Provider{Name: n.Provider, Summary: "the node " + n.Name + " at " + n.URL, Problem: n.Reason}
}

// Any implements providers.Nodes.
func (p nodeProviders) Any() bool { return p.d.fleet.Any() }

// Find implements providers.Nodes.
func (p nodeProviders) Find(name string) (catalog.Provider, bool) {
	short, is := strings.CutPrefix(name, fleet.Prefix)
	if !is {
		return catalog.Provider{}, false
	}
	n, err := p.d.fleet.Node(short)
	return providerOf(&n), err == nil
}

// Choose implements providers.Nodes.
func (p nodeProviders) Choose(ref string, memory int64, demand sandbox.Isolation) (provider, why string) {
	return p.d.fleet.Choose(lentImages(p).lentAs(ref), memory, demand)
}

// Reload implements providers.Nodes.
func (p nodeProviders) Reload(ctx context.Context) error { return p.d.fleet.Reload(ctx) }

// Candidates implements providers.Nodes.
func (p nodeProviders) Candidates(ref string, memory int64) []catalog.Facts {
	return p.d.fleet.Candidates(lentImages(p).lentAs(ref), memory)
}

// Lends implements providers.Nodes.
func (p nodeProviders) Lends(ctx context.Context, tenant, ref string) bool {
	img, err := lentImages(p).find(ctx, tenant, ref, false)
	return err == nil && img != nil
}

// imageNames lists the names of the images on this machine, and the digests of
// those without a name, such as those that another daemon has sent.
func (d *Daemon) imageNames(ctx context.Context) (names []string, err error) {
	images, err := d.node.Images()
	if err != nil {
		return nil, err
	}
	all, err := images.List(ctx)
	for _, one := range all {
		if names = append(names, one.Names...); len(one.Names) == 0 {
			names = append(names, one.Digest)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

var _ nodes.Fleet = (*fleet.Fleet)(nil)
