package operate

import (
	"context"
	"fmt"
	"strconv"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// nodeCommands are atoll node.
type nodeCommands struct{ *target.Env }

func (a nodeCommands) nodeCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "node", Short: "Make sandboxes on several machines", GroupID: resource.GroupDaemon,
		Long: `Node manages the daemons on which this daemon makes sandboxes, which are named with:
atoll up --node. A sandbox without a provider gets the node that suits it best.`,
		Example: `  atoll node ls`,
	}, a.listCmd(), a.inspectCmd(), a.cordonCmd(), a.uncordonCmd(), a.drainCmd(), a.removeCmd())
}

// complete offers the names of nodes.
func (a nodeCommands) complete(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if c, err := a.MustDaemon(cmd.Context()); err == nil && len(args) == 0 {
		all, _ := c.Admin().Nodes(cmd.Context())
		for _, n := range all {
			names = append(names, n.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a nodeCommands) listCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Short: "List the nodes", Args: cobra.NoArgs, Example: `  atoll node ls`,
	}
	return resource.DaemonList(a.Env, cmd, "NAME URL STATE SANDBOXES FREE IMAGES PROVIDER", func(ctx context.Context, c *atoll.Client, _ []string) ([]operator.Node, error) {
		return c.Admin().Nodes(ctx)
	}, func(n operator.Node) []string {
		free, images := "", ""
		if n.Load != nil {
			free, images = units.BytesSize(float64(n.Load.MemoryFree)), strconv.Itoa(len(n.Load.Images))
		}
		return []string{n.Name, n.URL, string(n.State), strconv.Itoa(n.Placed), free, images, n.Provider}
	})
}

// one makes a command for a node.
func (a nodeCommands) one(cmd *cobra.Command, act func(ctx context.Context, c *atoll.Client, name string) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), a.complete
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		return act(ctx, c, args[0])
	})
	return cmd
}

func (a nodeCommands) inspectCmd() *cobra.Command {
	return a.one(&cobra.Command{
		Use: "inspect NODE", Short: "Ask a node for its load, and describe it as JSON", Example: `  atoll node inspect a`,
	}, func(ctx context.Context, c *atoll.Client, name string) error {
		n, err := c.Admin().Node(ctx, name)
		if err != nil {
			return err
		}
		return a.PrintJSON(n)
	})
}

// change makes a command that changes a node and says how it is then.
func (a nodeCommands) change(cmd *cobra.Command, cordoned bool) *cobra.Command {
	var asJSON bool
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return a.one(cmd, func(ctx context.Context, c *atoll.Client, name string) error {
		n, err := c.Admin().UpdateNode(ctx, name, operator.NodeChange{Cordoned: &cordoned})
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(n)
		}
		return a.Println(string(n.State))
	})
}

func (a nodeCommands) cordonCmd() *cobra.Command {
	return a.change(&cobra.Command{
		Use: "cordon NODE", Short: "Make no new sandboxes on a node", Example: `  atoll node cordon a`,
		Long: `Cordon keeps new sandboxes away from a node. Those that are there go on.`,
	}, true)
}

func (a nodeCommands) uncordonCmd() *cobra.Command {
	return a.change(&cobra.Command{
		Use: "uncordon NODE", Short: "Make sandboxes on a node again", Example: `  atoll node uncordon a`,
		Long: `Uncordon ends a cordon, and takes back a node that was removed.`,
	}, false)
}

func (a nodeCommands) drainCmd() *cobra.Command {
	var force, asJSON bool
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "Move the sessions of a node to others",
		Long: `Drain cordons a node and moves its sessions to other nodes, one by one, with their
workspaces or the files below /workspace. Sandboxes without a session stay where they
are, unless --force is given, which ends them. The exit status is 1 if something stays.`,
		Example: `  atoll node drain a`,
	}
	cmd.Flags().BoolVar(&force, "force", false, "end the sandboxes that belong to no session")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return a.one(cmd, func(ctx context.Context, c *atoll.Client, name string) error {
		d, err := c.Admin().DrainNode(ctx, name, force)
		if err != nil {
			return err
		}
		if asJSON {
			err = a.PrintJSON(d)
		} else {
			rows := [][]string{}
			for _, m := range d.Moved {
				rows = append(rows, []string{"moved", m.Tenant, m.Session, string(m.Receipt.Sandbox), "to " + m.Receipt.Provider})
			}
			for _, e := range d.Ended {
				rows = append(rows, []string{"ended", e.Tenant, e.Name, string(e.Sandbox), e.Reason})
			}
			for _, k := range d.Kept {
				rows = append(rows, []string{"kept", k.Tenant, k.Name, string(k.Sandbox), k.Reason})
			}
			err = a.Table("WHAT TENANT NAME SANDBOX REASON", rows)
		}
		if err == nil && len(d.Kept) > 0 {
			err = &sandbox.Error{
				Code: sandbox.CodeConflict, Op: "node.drain", Subject: name, Message: fmt.Sprintf("sandboxes that are still there: %d", len(d.Kept)),
				Hint: "remove them with atoll rm, or end those without a session with: atoll node drain --force " + name,
			}
		}
		return err
	})
}

func (a nodeCommands) removeCmd() *cobra.Command {
	var lost bool
	cmd := &cobra.Command{
		Use: "rm NODE", Short: "Remove a node",
		Long: `Rm removes a node on which there are no sandboxes; see: atoll node drain. Afterwards,
leave it out when you start the daemon.

With --lost, you say that a node that does not answer never comes back. Its sandboxes
are recorded as gone, and its sessions get new ones elsewhere, with what was saved of
them. If it comes back all the same, its old sandboxes are ended.`,
		Example: `  atoll node rm a
  atoll node rm --lost b`,
	}
	cmd.Flags().BoolVar(&lost, "lost", false, "give up a node that does not answer and never comes back, with its sandboxes")
	return a.one(cmd, func(ctx context.Context, c *atoll.Client, name string) error {
		return c.Admin().RemoveNode(ctx, name, lost)
	})
}
