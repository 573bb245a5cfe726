package boxlite_test

import (
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

func TestSession(t *testing.T) {
	w := serve(t)
	hostedtest.Session(t, boxlite.Name, func(dir string) (driver.Provider, error) { return boxlite.New(w.options(dir)) })
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d boxes are left", n)
	}
}

func TestContext(t *testing.T) {
	w := serve(t)
	hostedtest.Context(t, boxlite.Name, func(dir string) (driver.Provider, error) { return boxlite.New(w.options(dir)) })
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d boxes are left", n)
	}
}

func TestSaved(t *testing.T) {
	w := serve(t)
	hostedtest.Saved(t, boxlite.Name, func(dir string) (driver.Provider, error) { return boxlite.New(w.options(dir)) })
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d boxes are left", n)
	}
}
