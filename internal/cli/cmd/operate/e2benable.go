package operate

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func (a e2bCommands) e2bEnableCmd() *cobra.Command {
	var s operator.E2BSettings
	var domain string
	cmd := &cobra.Command{
		Use:   "enable [HOST:PORT]",
		Short: "Have the running daemon serve E2B's SDKs",
		Long: `Enable has the running daemon serve the API of E2B, at ` + defaultE2B + ` unless an
address is given. No restart is needed. Later starts of the daemon serve it too, unless
their flags say something else. On a loopback address sandboxes are reached as
PORT-ID.` + operator.DefaultE2BDomain + `, with certificates that the daemon signs, and by URLs without
TLS. Another address needs --domain, or a daemon with a certificate (--tls-cert).

Only the owner of the machine can do this.`,
		Example: `  atoll e2b enable
  atoll e2b enable 192.0.2.7:443 --domain box.example`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&domain, "domain", "", "reach sandboxes as PORT-ID.DOMAIN, with TLS (default on a loopback address: "+operator.DefaultE2BDomain+"; empty for no domain)")
	cmd.Flags().BoolVar(&s.Internet, "internet", false, "let sandboxes reach everything that the clients do not deny, as E2B does; otherwise only what they allow")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		s.Listen = defaultE2B
		if len(args) > 0 {
			s.Listen = args[0]
		}
		if cmd.Flags().Changed("domain") {
			s.Domain = &domain
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		place, err := c.Admin().EnableE2B(ctx, s)
		if err == nil {
			a.Notef("atoll: serving clients of E2B on %s; see: atoll e2b env\n", place.Address)
		}
		return err
	})
	return cmd
}

func (a e2bCommands) e2bDisableCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disable",
		Short: "Have the running daemon no longer serve E2B's SDKs",
		Long: `Disable ends what enable, or the flag --e2b of atoll up, began. Requests that do not end
soon are cut off. Sandboxes stay. A daemon that is started with --e2b serves E2B's API
again.`,
		Example: `  atoll e2b disable`,
		Args:    cobra.NoArgs,
	}
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		return c.Admin().DisableE2B(ctx)
	})
	return cmd
}
