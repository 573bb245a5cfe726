package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/operator"
)

type newKeyInput struct{ Body operator.NewKey }

type keyOutput struct{ Body operator.Key }

type keysOutput struct {
	Body struct {
		Keys []operator.Key `json:"keys" doc:"oldest first"`
	}
}

type keyInput struct {
	ID string `path:"id" maxLength:"64" doc:"public part of the key"`
}

func (a *API) keys() {
	create := operation("createKey", http.MethodPost, "/v1/keys", "Keys", "Create an API key; it is only in this response", ops.KeyCreate)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *newKeyInput) (*keyOutput, error) {
		k, err := a.services.Keys.CreateKey(ctx, in.Body)
		return &keyOutput{k}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listKeys", http.MethodGet, "/v1/keys", "Keys", "List API keys, including revoked and expired ones", ops.KeyList),
		func(ctx context.Context, _ *none) (*keysOutput, error) {
			all, err := a.services.Keys.Keys(ctx)
			out := &keysOutput{}
			out.Body.Keys = append([]operator.Key{}, all...)
			return out, a.problem(ctx, err)
		})
	revoke := operation("revokeKey", http.MethodDelete, "/v1/keys/{id}", "Keys", "Revoke an API key", ops.KeyRevoke)
	revoke.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, revoke, func(ctx context.Context, in *keyInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Keys.RevokeKey(ctx, in.ID))
	})
}
