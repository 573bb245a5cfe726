package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/control/machines"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/provider/selfhosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// openMachines connects the daemon to its self-hosted machines.
func (d *Daemon) openMachines(context.Context) error {
	if d.opts.Machines == nil {
		return nil
	}
	config := *d.opts.Machines
	config.Store, config.Logger = d.store, d.opts.Logger
	h, err := hub.Open(config)
	if err != nil {
		return err
	}
	d.hub = h
	d.onClose(func() error {
		h.Close()
		return nil
	})
	return nil
}

// machineProviders opens the providers of self-hosted machines.
type machineProviders struct{ d *Daemon }

// open opens the provider of a machine. It need not be online.
func (p machineProviders) open(ctx context.Context, name string) (providers.Opened, error) {
	id := strings.TrimPrefix(name, machines.Prefix)
	m, err := p.find(ctx, id)
	if err != nil {
		return providers.Opened{}, err
	}
	own, err := selfhosted.New(selfhosted.Options{
		Dir: filepath.Join(p.d.node.Dir(), selfhosted.Name, id), Machine: id, Name: m.Name, Whole: m.Mode == operator.ModeWholeMachine, Link: p.d.hub,
	})
	if err != nil {
		return providers.Opened{}, err
	}
	p.d.machineMu.Lock()
	defer p.d.machineMu.Unlock()
	if first, ok := p.d.machineOpen[name]; ok { // another caller was faster
		return first, own.Close()
	}
	opened := &providerset.Provider{Provider: own, Name: name, Binding: id}
	result := providers.Opened{Name: name, Binding: id, Engine: p.d.node.Config(opened)}
	p.d.machineOpen[name] = result
	p.d.machineClose = append(p.d.machineClose, own)
	return result, nil
}

func (p machineProviders) find(ctx context.Context, id string) (store.Machine, error) {
	m, err := store.Read(ctx, p.d.store, func(tx *store.Tx) (store.Machine, error) { return tx.Operator().Machine(ctx, id) })
	if err == nil && (p.d.hub == nil || m.Tenant == "") {
		err = &sandbox.Error{Code: sandbox.CodeNotFound}
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Op: "provider.open", Subject: machines.Prefix + id, Message: "there is no such provider", Hint: "see: atoll machine ls"}
	}
	return m, err
}

// Belongs implements providers.Machines.
func (p machineProviders) Belongs(ctx context.Context, name, tenant string) (machine, ok bool) {
	id, is := strings.CutPrefix(name, machines.Prefix)
	if !is {
		return false, false
	}
	m, err := p.find(ctx, id)
	return true, err == nil && m.Tenant == tenant && m.State == operator.MachineActive
}

// Known implements providers.Machines.
func (p machineProviders) Known(ctx context.Context, tenant string) ([]catalog.Provider, error) {
	if p.d.hub == nil {
		return nil, nil
	}
	all, err := store.Read(ctx, p.d.store, func(tx *store.Tx) ([]store.Machine, error) { return tx.Machines().List(ctx, tenant) })
	var out []catalog.Provider
	for i := range all {
		if all[i].State != operator.MachineActive {
			continue
		}
		one := catalog.Provider{Name: machines.Prefix + all[i].ID, Summary: "the machine " + all[i].Name + ", mode " + all[i].Mode}
		if all[i].Mode == operator.ModeWholeMachine {
			one.Warning = "the machine " + all[i].Name + " does not isolate: commands run with all rights of its owner"
		}
		out = append(out, one)
	}
	return out, err
}

// closeAll closes the providers that were opened.
func (p machineProviders) closeAll() error {
	p.d.machineMu.Lock()
	defer p.d.machineMu.Unlock()
	var failed []error
	for _, one := range p.d.machineClose {
		failed = append(failed, one.Close())
	}
	return errors.Join(failed...)
}

var (
	_ selfhosted.Link = (*hub.Hub)(nil)
	_ machines.Link   = (*hub.Hub)(nil)
)
