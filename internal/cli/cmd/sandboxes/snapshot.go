package sandboxes

import (
	"context"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// snapshotCommands are atoll snapshot.
type snapshotCommands struct{ *target.Env }

func (a snapshotCommands) snapshotCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "snapshot", Short: "Make, list and remove snapshots of sandboxes", GroupID: resource.GroupSandbox,
		Example: `  atoll snapshot create demo --name before
  atoll run -d --name again --snapshot before`,
	}, a.snapshotCreateCmd(), a.snapshotListCmd(), a.snapshotInspectCmd(), a.snapshotRemoveCmd(), a.snapshotPruneCmd())
}

func (a snapshotCommands) snapshotCreateCmd() *cobra.Command {
	var opts durable.SnapshotRequest
	var labelList []string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "create [flags] SANDBOX", Short: "Save the state of a sandbox, which keeps running", Args: cobra.ExactArgs(1),
		Long: `Create saves the files of a sandbox, and with --memory its processes and their memory
too, and prints the name of the snapshot. The sandbox is paused while its state is
written, and then continues.

The daemon then uploads the snapshot to its blob store, compressed, encrypted and
deduplicated. Every daemon that shares the store can make sandboxes from it. With
--save, create waits for the upload.

Everyone who may make sandboxes from the snapshot can see everything in it.`,
		Example: `  atoll snapshot create demo --name before -l task=7
  atoll snapshot create demo --memory --save`,
		ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Name, "name", "", "its name (default: its id)")
	flags.BoolVar(&opts.Memory, "memory", false, "processes and their memory too")
	flags.StringArrayVarP(&labelList, "label", "l", nil, "label it: KEY=VALUE")
	flags.BoolVar(&opts.Save, "save", false, "wait until it is in the blob store")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		var err error
		if opts.Labels, err = request.Labels(nil, labelList); err != nil {
			return err
		}
		s, err := c.Get(ctx, args[0])
		if err != nil {
			return err
		}
		made, err := s.Snapshot(ctx, opts)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(made)
		}
		return a.Println(made.Name)
	})
	return cmd
}

func (a snapshotCommands) snapshotListCmd() *cobra.Command {
	var labelList []string
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List snapshots, newest first", Args: cobra.NoArgs,
		Example: `  atoll snapshot ls --label task=7`,
	}
	cmd.Flags().StringArrayVarP(&labelList, "label", "l", nil, "only those with this label: KEY=VALUE")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "write names only")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		wanted, err := request.Labels(nil, labelList)
		if err != nil {
			return err
		}
		all := []durable.Snapshot{}
		for s, err := range c.Snapshots(ctx, wanted) {
			if err != nil {
				return err
			}
			all = append(all, s)
		}
		return a.showSnapshots(all, asJSON, quiet)
	})
	return cmd
}

func (a snapshotCommands) showSnapshots(all []durable.Snapshot, asJSON, quiet bool) error {
	if asJSON {
		return a.PrintJSON(all)
	}
	var rows [][]string
	for _, s := range all {
		if quiet {
			if err := a.Println(s.Name); err != nil {
				return err
			}
			continue
		}
		holds := "files"
		switch {
		case !s.Ready:
			holds = "(being made)"
		case s.Memory:
			holds = "memory"
		}
		rows = append(rows, []string{
			s.Name, s.ParentName, s.Image, holds, units.BytesSize(float64(s.Size)), stored(&s), term.Ago(s.Created), term.LabelText(s.Labels),
		})
	}
	if quiet {
		return nil
	}
	return a.Table("NAME OF IMAGE HOLDS SIZE STORED CREATED LABELS", rows)
}

// stored returns a snapshot's size in the blob store.
func stored(s *durable.Snapshot) string {
	switch {
	case s.Saved:
		return units.BytesSize(float64(s.Stored))
	case s.Problem == durable.ProblemKept:
		return "(at the provider)"
	case s.Problem != "":
		return "(failed)"
	case s.Ready:
		return "(saving)"
	}
	return ""
}

func (a snapshotCommands) snapshotInspectCmd() *cobra.Command {
	return &cobra.Command{
		Use: "inspect SNAPSHOT...", Short: "Show snapshots in detail, as JSON", Args: cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.SnapshotNames),
		Example: `  atoll snapshot inspect before`,
		RunE: resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
			all := make([]durable.Snapshot, len(args))
			var err error
			for i, name := range args {
				if all[i], err = c.GetSnapshot(ctx, name); err != nil {
					return err
				}
			}
			return a.PrintJSON(all)
		}),
	}
}

func (a snapshotCommands) snapshotRemoveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm [flags] SNAPSHOT...", Short: "Remove snapshots", Args: cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.SnapshotNames),
		Long: `Rm removes snapshots and prints their names. Sandboxes that were made from them keep
running.`,
		Example: `  atoll snapshot rm before`,
	}
	return resource.DaemonRemove(a.Env, cmd, "", func(ctx context.Context, c *atoll.Client, name string, _ bool) error {
		return c.RemoveSnapshot(ctx, name)
	})
}

func (a snapshotCommands) snapshotPruneCmd() *cobra.Command {
	var labelList []string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove the snapshots that no sandbox was made from", Args: cobra.NoArgs,
		Example: `  atoll snapshot prune --label task=7`,
	}
	cmd.Flags().StringArrayVarP(&labelList, "label", "l", nil, "only those with this label: KEY=VALUE")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		wanted, err := request.Labels(nil, labelList)
		if err != nil {
			return err
		}
		removed, err := c.PruneSnapshots(ctx, wanted)
		if err != nil {
			return err
		}
		return a.showSnapshots(append([]durable.Snapshot{}, removed...), asJSON, !asJSON)
	})
	return cmd
}
