package superserve_test

import (
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/superserve"
)

func TestSession(t *testing.T) {
	w := serve(t)
	hostedtest.Session(t, superserve.Name, func(dir string) (driver.Provider, error) { return superserve.New(w.options(dir)) })
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestContext(t *testing.T) {
	w := serve(t)
	hostedtest.Context(t, superserve.Name, func(dir string) (driver.Provider, error) { return superserve.New(w.options(dir)) })
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestSaved(t *testing.T) {
	w := serve(t)
	hostedtest.Saved(t, superserve.Name, func(dir string) (driver.Provider, error) { return superserve.New(w.options(dir)) })
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestHandover(t *testing.T) {
	const other = "ss_live_use_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"
	w := serve(t)
	w.AddKey(other, "team-2")
	h := hostedtest.Handover{
		Name: superserve.Name, Records: true, Count: func() int { return len(w.IDs()) },
		Open: func(dir string) (driver.Provider, error) { return superserve.New(w.options(dir)) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.APIKey = other
			return superserve.New(opts)
		},
	}
	h.Run(t)
}
