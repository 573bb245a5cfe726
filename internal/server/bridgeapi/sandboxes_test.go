package bridgeapi

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// tenant is a fake tenant. It records the sandboxes that it is asked to create.
type tenant struct {
	Sandboxes
	templates []durable.Template
	profile   error
	image     bool
	made      sandbox.Spec
}

func (f *tenant) Templates(context.Context) ([]durable.Template, error) { return f.templates, nil }

func (f *tenant) Get(context.Context, string, int64) (durable.StoredProfile, error) {
	return durable.StoredProfile{}, f.profile
}

func (f *tenant) CreateFor(_ context.Context, spec sandbox.Spec, _ time.Duration) (sandbox.Sandbox, error) {
	f.made = spec
	return sandbox.Sandbox{}, spec.Validate()
}

func TestWhatSandboxesAreMadeOf(t *testing.T) {
	t.Parallel()
	missing := &sandbox.Error{Code: sandbox.CodeNotFound}
	for name, c := range map[string]struct {
		has            tenant
		image, profile string
		code           sandbox.Code
	}{
		"nothing":           {tenant{profile: missing}, "host", "", ""},
		"an image":          {tenant{profile: missing, image: true}, "base", "", ""},
		"a template":        {tenant{profile: missing, image: true, templates: []durable.Template{{Name: "bridge", Tag: "latest"}}}, "template:bridge:latest", "", ""},
		"another tag":       {tenant{profile: missing, templates: []durable.Template{{Name: "bridge", Tag: "old"}}}, "host", "", ""},
		"a profile":         {tenant{}, "host", "bridge", ""},
		"an unknown policy": {tenant{profile: &sandbox.Error{Code: sandbox.CodeUnavailable}}, "", "", sandbox.CodeUnavailable},
	} {
		f := &c.has
		h := New(Services{Sandboxes: f, Templates: f, Profiles: f, HasImage: func(context.Context, string) (bool, error) { return f.image, nil }}, Options{})
		err := h.make(t.Context(), &call{tenant: "t", id: "abc"}, nil)
		if sandbox.CodeOf(err) != c.code || f.made.Image != c.image || f.made.Network.Profile != c.profile {
			t.Errorf("%s: %v, image %q, profile %q; want code %q, %q, %q", name, err, f.made.Image, f.made.Network.Profile, c.code, c.image, c.profile)
		}
		if err == nil && (f.made.Name != "bridge-abc" || f.made.Labels[Label] != "abc" || f.made.Workdir != root || !f.made.Lifetime.Wakes || f.made.Lifetime.Idle != defaultIdle) {
			t.Errorf("%s: %+v", name, f.made)
		}
	}
}
