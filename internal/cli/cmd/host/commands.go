// Package host has the commands for what is on this machine: images, templates and
// providers.
package host

import (
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/target"
)

// Commands returns the commands for what is on this machine: images, templates and
// providers.
func Commands(env *target.Env) []*cobra.Command {
	return []*cobra.Command{
		imageCommands{env}.imageCmd(),
		templateCommands{env}.templateCmd(),
		providerCommands{env}.providerCmd(),
		providerCommands{env}.doctorCmd(),
		providerCommands{env}.microvmCmd(),
	}
}
