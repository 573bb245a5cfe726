package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// ProfileTest is a request to check against a profile. It is not sent.
type ProfileTest struct {
	Method string `json:"method,omitempty" maxLength:"64" doc:"GET if it is left out"`
	URL    string `json:"url" maxLength:"8192" doc:"with the scheme https, http, wss, ws, or tcp for a bare connection" example:"https://api.example.com/v1"`
}

type profileBody struct{ Body sandbox.Profile }

type profileOutput struct{ Body durable.StoredProfile }

type profileName struct {
	Name string `path:"name" maxLength:"63"`
}

// ProfileRef names a version of a profile. It is exported for huma.
type ProfileRef struct {
	Name    string `path:"name" maxLength:"63"`
	Version int64  `query:"version" minimum:"0" doc:"a version of the profile; the newest if it is left out"`
}

type profileApply struct {
	Name      string `path:"name" maxLength:"63"`
	IfVersion int64  `query:"ifVersion" minimum:"0" doc:"fail with the code conflict unless the profile is at this version"`
	Body      sandbox.Profile
}

type profilesOutput struct {
	Body struct {
		Profiles []durable.StoredProfile `json:"profiles" doc:"by name"`
	}
}

type profileTestInput struct {
	Name string `path:"name" maxLength:"63"`
	Body ProfileTest
}

type explanationOutput struct{ Body operator.Explanation }

func (a *API) profiles() {
	const tag = "Profiles"
	create := operation("createProfile", http.MethodPost, "/v1/profiles", tag, "Store an egress profile", ops.ProfileCreate)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *profileBody) (*profileOutput, error) {
		p, err := a.services.Profiles.Create(ctx, in.Body)
		return &profileOutput{p}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listProfiles", http.MethodGet, "/v1/profiles", tag, "List egress profiles", ops.ProfileList),
		func(ctx context.Context, _ *none) (*profilesOutput, error) {
			all, err := a.services.Profiles.List(ctx)
			out := &profilesOutput{}
			out.Body.Profiles = append([]durable.StoredProfile{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getProfile", http.MethodGet, "/v1/profiles/{name}", tag, "Get an egress profile", ops.ProfileGet),
		func(ctx context.Context, in *ProfileRef) (*profileOutput, error) {
			p, err := a.services.Profiles.Get(ctx, in.Name, in.Version)
			return &profileOutput{p}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("applyProfile", http.MethodPut, "/v1/profiles/{name}", tag, "Store a new version of an egress profile and apply it to running sandboxes", ops.ProfileApply),
		func(ctx context.Context, in *profileApply) (*profileOutput, error) {
			if in.Body.Name != "" && in.Body.Name != in.Name {
				return nil, a.problem(ctx, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "profile.apply", Subject: "name", Message: "the name in the profile differs from the name in the URL"})
			}
			in.Body.Name = in.Name
			p, err := a.services.Profiles.Apply(ctx, in.IfVersion, in.Body)
			return &profileOutput{p}, a.problem(ctx, err)
		})
	remove := operation("removeProfile", http.MethodDelete, "/v1/profiles/{name}", tag, "Remove an egress profile that no sandbox uses", ops.ProfileRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *profileName) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Profiles.Remove(ctx, in.Name))
	})
	huma.Register(a.huma, operation("testProfile", http.MethodPost, "/v1/profiles/{name}/test", tag, "Check a request against an egress profile, without sending it", ops.ProfileTest),
		func(ctx context.Context, in *profileTestInput) (*explanationOutput, error) {
			e, err := a.services.Profiles.Test(ctx, in.Name, in.Body.Method, in.Body.URL)
			return &explanationOutput{e}, a.problem(ctx, err)
		})
}
