package operate

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func consoleCmd(a *target.Env) *cobra.Command {
	var s operator.ConsoleSettings
	var stay, asJSON bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open the web console",
		Long: `Console opens the web console in the browser, signed in, and prints the link for where
there is no browser. The link signs in once, within two minutes. A page stays signed in
for 12 hours.

The daemon serves the console at ` + operator.DefaultConsole + `, now and after later starts, or where it
serves clients over TCP already (atoll up --listen). Elsewhere, open /console/ of the
daemon's address and sign in with an API key; see: atoll key create.`,
		Example: `  atoll console
  atoll console --no-browser`,
		Args:    cobra.NoArgs,
		GroupID: resource.GroupDaemon,
	}
	cmd.Flags().StringVar(&s.Listen, "listen", "", "loopback address for the console, HOST:PORT (default "+operator.DefaultConsole+")")
	cmd.Flags().BoolVar(&stay, "no-browser", false, "only print the link")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the link as JSON")
	cmd.RunE = resource.WithDaemon(a, func(ctx context.Context, c *atoll.Client, _ []string) error {
		link, err := c.Admin().OpenConsole(ctx, s)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(link)
		}
		return a.OpenLink(ctx, link.URL, stay)
	})
	return cmd
}
