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
