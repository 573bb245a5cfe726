package target

import (
	"context"
	"strings"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// AllTenantsFlag registers --all-tenants.
func AllTenantsFlag(flags *pflag.FlagSet, all *bool) {
	flags.BoolVar(all, "all-tenants", false, "of all tenants, as the owner of the machine; names are TENANT/NAME")
}

// TargetOf returns where sandboxes are: those of all tenants of the daemon, or
// as [Env.target]. Without a daemon there are no tenants.
func (e *Env) TargetOf(ctx context.Context, allTenants bool) (Sandboxes, error) {
	if !allTenants {
		return e.Sandboxes(ctx)
	}
	c, err := e.Daemon(ctx)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return e.here(ctx, false)
	}
	tenants, err := Tenants(ctx, e, c)
	return everyTenant{e, tenants}, err
}

// tenantClient is a client that acts in a tenant.
type tenantClient struct {
	Name   string
	Client *atoll.Client
}

// Tenants returns a client for every tenant of a daemon, by name.
func Tenants(ctx context.Context, a *Env, c *atoll.Client) ([]tenantClient, error) {
	if a.Tenant != "" {
		return nil, term.BadFlag("all-tenants", "goes without --tenant")
	}
	known, err := c.Admin().Tenants(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]tenantClient, 0, len(known))
	for _, t := range known {
		all = append(all, tenantClient{t.ID, c.WithTenant(t.ID)})
	}
	return all, nil
}

// everyTenant are the sandboxes of all tenants of a daemon. Their names are
// TENANT/NAME. It creates none.
type everyTenant struct {
	env *Env
	of  []tenantClient
}

// List implements Sandboxes.
func (t everyTenant) List(ctx context.Context) ([]sandbox.Sandbox, error) {
	var all []sandbox.Sandbox
	for _, one := range t.of {
		theirs, err := t.env.SandboxesOf(one.Client).List(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range theirs {
			s.Name = one.Name + "/" + s.Name
			all = append(all, s)
		}
	}
	return all, nil
}

// Find implements Sandboxes, by TENANT/NAME or by id.
func (t everyTenant) Find(ctx context.Context, ref string) (Sandbox, error) {
	tenant, name, named := strings.Cut(ref, "/")
	if !named {
		name = ref
	}
	for _, one := range t.of {
		if named && one.Name != tenant {
			continue
		}
		s, err := one.Client.Get(ctx, name)
		switch {
		case err == nil && (named || string(s.ID()) == name):
			return sandboxOfTenant{RemoteSandbox{s}, one.Name}, nil
		case err != nil && !Missing(err):
			return nil, err
		}
	}
	return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: ref, Message: "no such sandbox", Hint: "name it as TENANT/NAME; see what exists with: atoll ls --all-tenants"}
}

// sandboxOfTenant is a sandbox in a list of the sandboxes of all tenants.
type sandboxOfTenant struct {
	RemoteSandbox
	tenant string
}

// Name implements Sandbox. It begins with the tenant.
func (s sandboxOfTenant) Name() string { return s.tenant + "/" + s.RemoteSandbox.Name() }

func (everyTenant) Warning(context.Context, string) string { return "" }

func (everyTenant) Tidy(context.Context) {}

func (everyTenant) Run(context.Context, engine.RunRequest, func(context.Context, Sandbox, driver.Process) error) (sandbox.Exit, error) {
	return sandbox.Exit{}, oneTenant()
}

func (everyTenant) Start(context.Context, engine.RunRequest) (Sandbox, error) {
	return nil, oneTenant()
}

func oneTenant() error {
	return term.BadFlag("all-tenants", "a sandbox is made in one tenant: give --tenant")
}
