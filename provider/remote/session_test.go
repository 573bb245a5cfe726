package remote_test

import (
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
)

func TestHandover(t *testing.T) {
	o, stranger := serve(t, daemontest.New(t)), serve(t, daemontest.New(t))
	c := daemontest.Client(t, o.daemon)
	h := hostedtest.Handover{
		Name: remote.Name, Records: true,
		Open:  func(dir string) (driver.Provider, error) { return remote.New(o.options(dir)) },
		Other: func(dir string) (driver.Provider, error) { return remote.New(stranger.options(dir)) },
		Count: func() (n int) {
			for b, err := range c.List(t.Context(), atoll.ListOptions{}) {
				if err != nil {
					t.Error(err)
				}
				if b.State != sandbox.Gone {
					n++
				}
			}
			return n
		},
	}
	h.Run(t)
}
