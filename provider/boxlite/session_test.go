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

func TestHandover(t *testing.T) {
	const other = "blk_live_other"
	w := serve(t)
	w.AddKey(other, "other")
	h := hostedtest.Handover{
		Name: boxlite.Name, Count: func() int { return len(w.IDs()) },
		Open: func(dir string) (driver.Provider, error) { return boxlite.New(w.options(dir)) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.APIKey = other
			return boxlite.New(opts)
		},
	}
	h.Run(t)
}
