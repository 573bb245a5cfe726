package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/sandbox"
)

// SecretValue is the value of a secret on its way in. There is no way out.
type SecretValue struct {
	Value       string `json:"value,omitempty" maxLength:"65536"`
	ValueBase64 []byte `json:"valueBase64,omitempty" doc:"instead of value, when it is not UTF-8"`
}

// Bytes returns the value; whoever gets it clears it.
func (v *SecretValue) Bytes() []byte {
	if len(v.ValueBase64) > 0 {
		return v.ValueBase64
	}
	return []byte(v.Value)
}

// NewSecret asks for a secret to be stored.
type NewSecret struct {
	SecretValue
	Name        string   `json:"name" maxLength:"63"`
	Description string   `json:"description,omitempty" maxLength:"1000"`
	Source      string   `json:"source,omitempty" maxLength:"4096" doc:"where the daemon finds the value instead, env:NAME or file:/PATH; only for the owner of the machine"`
	Hosts       []string `json:"hosts,omitempty" maxItems:"256" doc:"to whom it may be sent, such as api.example.com; if left out, only stored profiles may send it, to whoever they name"`
	AllowEnv    bool     `json:"allowEnv,omitempty" doc:"sandboxes may get the value itself"`
}

type newSecretInput struct{ Body NewSecret }

type secretOutput struct{ Body sandbox.StoredSecret }

type secretsOutput struct {
	Body struct {
		Secrets []sandbox.StoredSecret `json:"secrets" doc:"by name"`
	}
}

type rotateInput struct {
	Name string `path:"name" maxLength:"63"`
	Body SecretValue
}

type removeSecretInput struct {
	Name  string `path:"name" maxLength:"63"`
	Force bool   `query:"force" doc:"even if sandboxes or profiles work with it; they go on without it"`
}

func (a *API) secrets() {
	const tag = "Secrets"
	create := operation("createSecret", http.MethodPost, "/v1/secrets", tag, "Store a secret; its value is never shown again")
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *newSecretInput) (*secretOutput, error) {
		s, err := a.services.Secrets.CreateSecret(ctx, in.Body)
		return &secretOutput{s}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listSecrets", http.MethodGet, "/v1/secrets", tag, "List secrets, without their values"),
		func(ctx context.Context, _ *none) (*secretsOutput, error) {
			all, err := a.services.Secrets.Secrets(ctx)
			out := &secretsOutput{}
			out.Body.Secrets = append([]sandbox.StoredSecret{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("rotateSecret", http.MethodPut, "/v1/secrets/{name}/value", tag, "Give a secret a new value, from the next request on"),
		func(ctx context.Context, in *rotateInput) (*secretOutput, error) {
			s, err := a.services.Secrets.RotateSecret(ctx, in.Name, in.Body)
			return &secretOutput{s}, a.problem(ctx, err)
		})
	remove := operation("removeSecret", http.MethodDelete, "/v1/secrets/{name}", tag, "Remove a secret")
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *removeSecretInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Secrets.RemoveSecret(ctx, in.Name, in.Force))
	})
}
