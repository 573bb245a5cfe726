package daemon_test

import (
	"context"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// fetching is a provider that fetches images itself and has no default one, as a
// Docker daemon.
type fetching struct{ *fake.Provider }

func (fetching) CheckImage(image string) error {
	if image == "" || image == "host" {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "there is no default image"}
	}
	return nil
}

func (f fetching) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	plain := *spec
	plain.Image = ""
	return f.Provider.Create(ctx, &plain)
}

// RB-97: a session with an image moves to providers that fetch images themselves,
// and to no others; one without an image does not move where one must be named.
// RB-97.
func TestImagesDecideTargets(t *testing.T) {
	entry := func(name string, wrap func(*fake.Provider) driver.Provider) providerset.Entry {
		return providerset.Entry{Name: name, Open: func(providerset.Host) (driver.Provider, error) {
			return wrap(fake.New(fake.Options{Binding: name, Limited: true})), nil
		}}
	}
	plain := func(p *fake.Provider) driver.Provider { return p }
	fetches := func(p *fake.Provider) driver.Provider { return fetching{p} }
	d := daemontest.New(t).Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{entry("one", plain), entry("left", fetches), entry("right", fetches)}
	})
	c := daemontest.Client(t, d)
	why := func(s *atoll.Session, provider string) string {
		t.Helper()
		all, err := s.Targets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range all {
			if target.Provider == provider && !target.Fits {
				return strings.Join(target.Reasons, "; ")
			}
		}
		return ""
	}

	s := openSession(t, c, sandbox.Spec{Provider: "left", Image: "debian:12"}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace; echo kept >/workspace/note")
	if got := why(s, "right"); got != "" {
		t.Errorf("right does not fit: %s", got)
	}
	if got := why(s, "one"); !strings.Contains(got, "runs no images") {
		t.Errorf("one, which has no images, is refused with %q", got)
	}
	mustSwap(t, s, "right")
	if got := runShell(t, s, "cat /workspace/note"); got != "kept" {
		t.Errorf("after the move it has %q", got)
	}

	bare := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "bare"})
	if got := why(bare, "left"); got != "there is no default image" {
		t.Errorf("left, which has no default image, is refused with %q", got)
	}

	choice, err := c.ChooseProvider(t.Context(), catalog.Needs{Images: true})
	if err != nil || choice.Provider != "left" {
		t.Errorf("for an image %q is chosen, %v; want left: %+v", choice.Provider, err, choice.Candidates)
	}
}
