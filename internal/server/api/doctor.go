package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

type diagnosisOutput struct{ Body operator.Diagnosis }

type egressSettingsOutput struct {
	Body struct {
		Fingerprints map[string]string `json:"fingerprints"`
	}
}

type e2bInput struct{ Body operator.E2BSettings }

type e2bOutput struct{ Body operator.E2BPlace }

type imageUsesOutput struct {
	Body struct {
		Uses []operator.ImageUse `json:"uses"`
	}
}

type providersOutput struct {
	Body struct {
		Providers []catalog.Provider `json:"providers"`
	}
}

type providerInput struct {
	Name string `path:"name" maxLength:"63"`
}

type providerOutput struct{ Body catalog.Provider }

type needsInput struct{ Body catalog.Needs }

type choiceOutput struct{ Body catalog.Choice }

func (a *API) doctor() {
	huma.Register(a.huma, operation("listProviders", http.MethodGet, "/v1/providers", "Health", "List the providers and their capabilities", ops.ProviderList),
		func(ctx context.Context, _ *none) (*providersOutput, error) {
			all, err := a.services.Providers.Providers(ctx)
			out := &providersOutput{}
			out.Body.Providers = append([]catalog.Provider{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getProvider", http.MethodGet, "/v1/providers/{name}", "Health", "Get a provider", ops.ProviderList),
		func(ctx context.Context, in *providerInput) (*providerOutput, error) {
			all, err := a.services.Providers.Providers(ctx)
			if err != nil {
				return nil, a.problem(ctx, err)
			}
			for _, p := range all {
				if p.Name == in.Name {
					return &providerOutput{p}, nil
				}
			}
			return nil, a.problem(ctx, &sandbox.Error{Code: sandbox.CodeNotFound, Op: "provider.get", Subject: in.Name, Message: "there is no such provider"})
		})
	huma.Register(a.huma, operation("chooseProvider", http.MethodPost, "/v1/providers/choose", "Health", "Choose a provider for the needs of a sandbox", ops.ProviderList),
		func(ctx context.Context, in *needsInput) (*choiceOutput, error) {
			c, err := a.services.Providers.ChooseProvider(ctx, in.Body)
			return &choiceOutput{c}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("imageUses", http.MethodGet, "/v1/images/uses", "State", "List the images that stopped sandboxes, snapshots and templates need; only for the owner of the machine", ops.ImageUses),
		func(ctx context.Context, _ *none) (*imageUsesOutput, error) {
			uses, err := a.services.Machine.ImageUses(ctx)
			out := &imageUsesOutput{}
			out.Body.Uses = append([]operator.ImageUse{}, uses...)
			return out, a.problem(ctx, err)
		})
	a.raw(operation("importImage", http.MethodPut, "/v1/images/{digest}/archive", "State", "Store an image that another daemon sends, under the digest of its content; only for keys of the tenant default", ops.ImageImport),
		nil, "application/x-tar", "", func(_ http.ResponseWriter, r *http.Request) error {
			return a.services.Machine.ImportImage(r.Context(), r.PathValue("digest"), r.Body)
		})
	huma.Register(a.huma, operation("egressSettings", http.MethodGet, "/v1/egress-settings", "Health", "Get fingerprints of the egress settings, by the names of their environment variables; only for the owner of the machine", ops.DaemonDiagnose),
		func(ctx context.Context, _ *none) (*egressSettingsOutput, error) {
			all, err := a.services.Machine.EgressSettings(ctx)
			out := &egressSettingsOutput{}
			out.Body.Fingerprints = all
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("diagnose", http.MethodGet, "/v1/doctor", "Health", "Diagnose the daemon; only for the owner of the machine", ops.DaemonDiagnose),
		func(ctx context.Context, _ *none) (*diagnosisOutput, error) {
			d, err := a.services.Machine.Diagnose(ctx)
			d.Findings = append([]operator.Finding{}, d.Findings...)
			return &diagnosisOutput{d}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("enableE2B", http.MethodPut, "/v1/e2b", "Health", "Serve the E2B API, now and after later starts of the daemon; only for the owner of the machine", ops.DaemonE2B),
		func(ctx context.Context, in *e2bInput) (*e2bOutput, error) {
			place, err := a.services.Machine.EnableE2B(ctx, in.Body)
			return &e2bOutput{place}, a.problem(ctx, err)
		})
	disable := operation("disableE2B", http.MethodDelete, "/v1/e2b", "Health", "Stop serving the E2B API; only for the owner of the machine", ops.DaemonE2B)
	disable.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, disable, func(ctx context.Context, _ *none) (*none, error) {
		return nil, a.problem(ctx, a.services.Machine.DisableE2B(ctx))
	})
}
