//go:build !linux

package host

import (
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
)

// imageCommands are atoll image.
type imageCommands struct{ *target.Env }

func (a imageCommands) imageCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "image",
		Short: "What the files of sandboxes come from",
		Long: `Images are managed on the machine of the daemon. A sandbox's image is fetched there
when it is made.`,
		GroupID: resource.GroupMachine,
		RunE: func(*cobra.Command, []string) error {
			return target.ClientOnly("images are managed on the daemon's machine")
		},
	}
}
