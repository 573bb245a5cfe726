package operate

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

func (a profileCommands) egressCmd() *cobra.Command {
	opts := sandbox.EventQuery{Ops: []string{resource.OpFlow}}
	var follow, asJSON, denied, suggest bool
	cmd := &cobra.Command{
		Use:   "egress SANDBOX",
		Short: "Show what a sandbox sent, and what was denied",
		Long: `Egress shows the gateway's decisions about the traffic of a sandbox: allowed,
denied, limited or failed, the rule that decided, the destination and the number of
bytes. Queries, headers and contents are never shown. Equal decisions within half a
second are one line.

With --suggest it writes rules that would have allowed the denied traffic. To write
a whole profile, see: atoll profile learn. To try a profile without traffic, see:
atoll profile test.`,
		Example: `  atoll egress demo
  atoll egress demo --denied --json`,
		GroupID: resource.GroupDaemon,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "keep showing new ones until interrupted")
	flags.Int64Var(&opts.After, "after", 0, "only events after this one")
	flags.BoolVar(&denied, "denied", false, "only denied traffic")
	flags.BoolVar(&suggest, "suggest", false, "write rules that would have allowed the denied traffic")
	flags.BoolVar(&asJSON, "json", false, "write JSON lines")
	cmd.MarkFlagsMutuallyExclusive("suggest", "follow")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		sb, err := c.Get(ctx, args[0])
		if err != nil {
			return err
		}
		opts.Sandbox = sb.ID()
		if suggest {
			p, err := a.learn(ctx, c, sb.ID(), "", []string{"egress.denied"})
			if err == nil && asJSON {
				return a.PrintJSON(p)
			}
			if err == nil {
				err = a.printYAML(p)
			}
			return err
		}
		if denied {
			opts.Types = []string{"egress.denied"}
		}
		return eachEvent(ctx, c, opts, follow, func(e sandbox.Event) error { return a.showFlow(e, asJSON) })
	})
	return cmd
}

func (a profileCommands) showFlow(e sandbox.Event, asJSON bool) error {
	if asJSON {
		return a.PrintJSONLine(e)
	}
	rule := e.Policy
	if rule == "" {
		rule = "-"
	}
	return a.Printf("%s  %-7s  %-12s  %8d  %s\n", e.Time.UTC().Format(time.RFC3339),
		strings.TrimPrefix(e.Type, "egress."), term.OneLine(rule, 40), e.Bytes, term.OneLine(e.Subject, 300))
}
