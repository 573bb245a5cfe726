package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/durable"
)

type newSecretInput struct{ Body durable.NewSecret }

type secretOutput struct{ Body durable.StoredSecret }

type secretsOutput struct {
	Body struct {
		Secrets []durable.StoredSecret `json:"secrets" doc:"by name"`
	}
}

type rotateInput struct {
	Name string `path:"name" maxLength:"63"`
	Body durable.SecretValue
}

type removeSecretInput struct {
	Name  string `path:"name" maxLength:"63"`
	Force bool   `query:"force" doc:"even if sandboxes or profiles use it; they continue without it"`
}

func (a *API) secrets() {
	const tag = "Secrets"
	create := operation("createSecret", http.MethodPost, "/v1/secrets", tag, "Store a secret; no response contains its value", ops.SecretCreate)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *newSecretInput) (*secretOutput, error) {
		s, err := a.services.Secrets.Create(ctx, in.Body)
		return &secretOutput{s}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listSecrets", http.MethodGet, "/v1/secrets", tag, "List secrets, without their values", ops.SecretList),
		func(ctx context.Context, _ *none) (*secretsOutput, error) {
			all, err := a.services.Secrets.List(ctx)
			out := &secretsOutput{}
			out.Body.Secrets = append([]durable.StoredSecret{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("rotateSecret", http.MethodPut, "/v1/secrets/{name}/value", tag, "Give a secret a new value, which is used from the next request on", ops.SecretRotate),
		func(ctx context.Context, in *rotateInput) (*secretOutput, error) {
			s, err := a.services.Secrets.Rotate(ctx, in.Name, in.Body)
			return &secretOutput{s}, a.problem(ctx, err)
		})
	remove := operation("removeSecret", http.MethodDelete, "/v1/secrets/{name}", tag, "Remove a secret", ops.SecretRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *removeSecretInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Secrets.Remove(ctx, in.Name, in.Force))
	})
}
