package all

import (
	"os"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/provider/host"
)

// Builtin returns the providers that this program is built with.
func Builtin() *Registry {
	return NewRegistry(
		Entry{
			Name: gvisor.Name, Summary: "a kernel of its own for every sandbox, from this program alone", Open: openGvisor,
		},
		Entry{
			Name: host.Name, Summary: "plain processes of this machine; isolates nothing", Open: openHost,
			Warning: "provider host isolates nothing: commands run with your rights on this machine",
		},
		Entry{
			Name: e2b.Name, Summary: "a service that speaks E2B's API, named by E2B_API_KEY and the like", Open: openE2B,
		},
	)
}

func openGvisor(opts Options) (driver.Provider, error) {
	images, err := opts.Images()
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Options{StateDir: opts.StateDir, Images: images, Attached: opts.Attached, Network: opts.Network, Pool: opts.Pool})
}

func openHost(opts Options) (driver.Provider, error) {
	return host.New(host.Options{Dir: opts.StateDir})
}

func openE2B(opts Options) (driver.Provider, error) {
	return e2b.New(e2b.FromEnvironment(opts.StateDir, os.Getenv))
}
