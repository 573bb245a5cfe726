//go:build !linux

package operate

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/target"
)

func (a upCommands) detach(context.Context, *cobra.Command) error {
	return target.ClientOnly("no daemon can run on this machine")
}

func (a upCommands) endDaemon(context.Context, string) error {
	return target.ClientOnly("no daemon can run on this machine")
}
