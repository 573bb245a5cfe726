package daemon

import (
	"cmp"
	"context"

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

func (s service) CreateProfile(ctx context.Context, p sandbox.Profile) (sandbox.StoredProfile, error) {
	out, err := s.Plane.CreateProfile(ctx, p)
	return shownProfile(out), err
}

func (s service) ApplyProfile(ctx context.Context, ifVersion int64, p sandbox.Profile) (sandbox.StoredProfile, error) {
	out, err := s.Plane.ApplyProfile(ctx, ifVersion, p)
	return shownProfile(out), err
}

func (s service) Profile(ctx context.Context, name string, version int64) (sandbox.StoredProfile, error) {
	out, err := s.Plane.Profile(ctx, name, version)
	return shownProfile(out), err
}

func (s service) Profiles(ctx context.Context) ([]sandbox.StoredProfile, error) {
	all, err := s.Plane.Profiles(ctx)
	return each(all, shownProfile), err
}

func shownProfile(p store.Profile) sandbox.StoredProfile { return p.StoredProfile }

func (s service) TestProfile(ctx context.Context, name string, t api.ProfileTest) (sandbox.Explanation, error) {
	return s.Plane.TestProfile(ctx, name, cmp.Or(t.Method, "GET"), t.URL)
}

func (s service) CreateSecret(ctx context.Context, n api.NewSecret) (sandbox.StoredSecret, error) {
	source, err := secret.ParseSource(n.Source)
	if err != nil {
		return sandbox.StoredSecret{}, err
	}
	out, err := s.Plane.CreateSecret(ctx, plane.NewSecret{
		Name: n.Name, Description: n.Description, Source: source, Hosts: n.Hosts, AllowEnv: n.AllowEnv,
	}, secret.NewValue(n.Bytes()))
	return shownSecret(out), err
}

func (s service) RotateSecret(ctx context.Context, name string, v api.SecretValue) (sandbox.StoredSecret, error) {
	out, err := s.Plane.RotateSecret(ctx, name, secret.NewValue(v.Bytes()))
	return shownSecret(out), err
}

func (s service) Secrets(ctx context.Context) ([]sandbox.StoredSecret, error) {
	all, err := s.Plane.Secrets(ctx)
	return each(all, shownSecret), err
}

func shownSecret(s store.Secret) sandbox.StoredSecret { return s.StoredSecret }
