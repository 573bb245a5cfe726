package all

import (
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
)

// Builtin returns the providers that this program is built with.
func Builtin() *Registry {
	return NewRegistry(
		Entry{gvisor.Name, "a kernel of its own for every sandbox, from this program alone", openGvisor},
	)
}

func openGvisor(opts Options) (driver.Provider, error) {
	images, err := opts.Images()
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Options{StateDir: opts.StateDir, Images: images, Attached: opts.Attached})
}
