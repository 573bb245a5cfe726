package islo_test

import (
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/islo"
)

func TestHandover(t *testing.T) {
	const other = "ak_other"
	w := serve(t)
	w.AddKey(other, "tenant-2")
	h := hostedtest.Handover{
		Name: islo.Name, Unmarked: true, Count: func() int { return len(w.Names()) + len(w.Profiles()) },
		Open: w.Opener,
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key = credential.New("ISLO_API_KEY", other, "", "")
			return islo.New(opts)
		},
	}
	h.Run(t)
}
