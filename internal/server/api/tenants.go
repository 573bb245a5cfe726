package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// TenantRef names a tenant.
type TenantRef struct {
	ID string `path:"id" maxLength:"63" doc:"name of the tenant"`
}

type newTenantInput struct{ Body operator.NewTenant }

type changeTenantInput struct {
	TenantRef
	Body operator.TenantChange
}

type tenantOutput struct{ Body operator.Tenant }

type tenantsOutput struct {
	Body struct {
		Tenants []operator.Tenant `json:"tenants" doc:"by name"`
	}
}

func (a *API) tenants() {
	one := func(ctx context.Context) func(operator.Tenant, error) (*tenantOutput, error) {
		return func(t operator.Tenant, err error) (*tenantOutput, error) {
			if err != nil {
				return nil, a.problem(ctx, err)
			}
			return &tenantOutput{t}, nil
		}
	}
	huma.Register(a.huma, operation("ownTenant", http.MethodGet, "/v1/tenant", "Tenants", "Get your tenant, with its limits and usage", ops.QuotaGet),
		func(ctx context.Context, _ *none) (*tenantOutput, error) {
			return one(ctx)(a.services.Tenants.OwnTenant(ctx))
		})
	huma.Register(a.huma, operation("listTenants", http.MethodGet, "/v1/tenants", "Tenants", "List tenants; only for the owner of the machine", ops.TenantList),
		func(ctx context.Context, _ *none) (*tenantsOutput, error) {
			all, err := a.services.Tenants.Tenants(ctx)
			out := &tenantsOutput{}
			out.Body.Tenants = append([]operator.Tenant{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getTenant", http.MethodGet, "/v1/tenants/{id}", "Tenants", "Get a tenant, with its limits and usage; only for the owner of the machine", ops.TenantGet),
		func(ctx context.Context, in *TenantRef) (*tenantOutput, error) {
			return one(ctx)(a.services.Tenants.Tenant(ctx, in.ID))
		})
	create := operation("createTenant", http.MethodPost, "/v1/tenants", "Tenants", "Create a tenant; only for the owner of the machine", ops.TenantCreate)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *newTenantInput) (*tenantOutput, error) {
		return one(ctx)(a.services.Tenants.CreateTenant(ctx, in.Body))
	})
	huma.Register(a.huma, sometimes(operation("updateTenant", http.MethodPatch, "/v1/tenants/{id}", "Tenants", "Change the limits of a tenant, or disable or enable it; only for the owner of the machine", ops.TenantLimits), ops.TenantDisable),
		func(ctx context.Context, in *changeTenantInput) (*tenantOutput, error) {
			return one(ctx)(a.services.Tenants.UpdateTenant(ctx, in.ID, in.Body))
		})
	a.raw(operation("backupState", http.MethodGet, "/v1/state/backup", "State", "Get a consistent copy of the database; only for the owner of the machine", ops.StateBackup),
		nil, "", "application/vnd.sqlite3", a.backup)
}

func (a *API) backup(w http.ResponseWriter, r *http.Request) error {
	content, err := a.services.Machine.Backup(r.Context())
	if err != nil {
		return err
	}
	defer content.Close()
	w.Header().Set("Content-Type", "application/vnd.sqlite3")
	return finish(w, content)
}
