package host

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

func (a providerCommands) providerShowCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show PROVIDER",
		Short: "Show everything about a provider",
		Example: `  atoll provider show gvisor
  atoll provider show e2b --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: resource.CompleteProviders(a.Env),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		all, err := a.describeProviders(ctx)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Name != args[0] {
				continue
			}
			if asJSON {
				return a.PrintJSON(p)
			}
			return a.showProvider(p)
		}
		return &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "provider.show", Subject: args[0], Message: "there is no such provider", Hint: "list them with: atoll provider ls --all",
		}
	})
	return cmd
}

func (a providerCommands) showProvider(p catalog.Provider) error {
	d := p.Descriptor
	life := "none of its own"
	if d.Lifetime.Hard > 0 {
		life = "at most " + d.Lifetime.Hard.String()
	}
	rows := [][]string{
		{"provider", p.Name + ": " + p.Summary},
		{"available", cmp.Or(map[bool]string{true: "yes"}[p.Available], "no: "+cmp.Or(p.Problem, d.Driver.Reason, "see atoll doctor"))},
		{"tier", string(d.Tier) + ", " + strings.Join(d.OS.Supported, ", ")},
		{"isolation", cmp.Or(string(d.Isolation), "not known")},
		{"lifetime", life},
		{"pause", cmp.Or(string(d.Pause), "no")},
		{"snapshot", string(d.Snapshot.Kind)},
		{"fork", yesNo(d.Fork)},
		{"egress", string(d.Egress)},
		{"ports", string(d.Ports.Kind)},
		{"terminal", yesNo(d.Terminal.PTY)},
		{"desktop", yesNo(d.Desktop.Available)},
		{"workspace", d.WorkspaceRoot},
		{"price", string(d.Price)},
		{"verified", string(d.Verified)},
	}
	for _, u := range d.Units {
		rows = append(rows, []string{"unit", u.Of + " in " + u.Unit})
	}
	for _, c := range d.Credentials {
		need := "optional"
		if c.Required {
			need = "required"
		}
		rows = append(rows, []string{"credential", fmt.Sprintf("%s in $%s, %s", c.Name, c.Env, need)})
	}
	return a.Table("FIELD VALUE", rows)
}

func (a providerCommands) providerChooseCmd() *cobra.Command {
	var asJSON bool
	var n catalog.Needs
	var memory, disk resource.SizeFlag
	var cpus float64
	var snapshot, pause, egress, price string
	var image bool
	var isolation resource.IsolationFlag
	cmd := &cobra.Command{
		Use:   "choose",
		Short: "Find the provider that fits what a sandbox needs, and say why",
		Long: `Choose lists all providers, the best first, with what speaks for or against each
one. It makes nothing. A limit that is named must really be enforced.`,
		Example: `  atoll provider choose
  atoll provider choose --memory 4g --snapshot memory
  atoll provider choose --fork --isolated
  atoll provider choose --isolation hardware`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.VarP(&memory, "memory", "m", "a memory limit that is enforced")
	flags.Float64Var(&cpus, "cpus", 0, "a processor limit that is enforced")
	flags.Var(&disk, "disk", "a disk limit that is enforced")
	flags.StringVar(&snapshot, "snapshot", "", "snapshots: memory or files")
	flags.StringVar(&pause, "pause", "", "pauses: memory or disk")
	flags.StringVar(&egress, "egress", "", "egress rules: switch, cidr, host or full")
	flags.StringVar(&price, "price", "", "at most this price class: free, use or plan")
	flags.BoolVar(&image, "image", false, "takes OCI images")
	flags.BoolVar(&n.Fork, "fork", false, "forks")
	flags.BoolVar(&n.Ports, "ports", false, "exposes ports")
	flags.BoolVar(&n.Desktop, "desktop", false, "has a desktop")
	flags.BoolVar(&n.Isolated, "isolated", false, "code inside cannot harm the machine")
	isolation.Register(cmd)
	flags.BoolVar(&n.OwnFiles, "own-files", false, "a file system of its own, not that of the machine")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		for name, given := range map[string]bool{"memory": memory != 0, "cpus": cpus != 0, "disk": disk != 0} {
			if given {
				n.Limits = append(n.Limits, name)
			}
		}
		n.Isolation = sandbox.Isolation(isolation)
		n.Images, n.Pause, n.Egress, n.Price = image, sandbox.PauseKind(pause), enforce.Kind(egress), catalog.PriceClass(price)
		if a.Provider != "" {
			n.Provider = a.Provider
		}
		switch snapshot {
		case "":
		case "memory":
			n.Snapshot = catalog.SnapshotMemory
		case "files":
			n.Snapshot = catalog.SnapshotFS
		default:
			return term.BadFlag("snapshot", "%q is neither memory nor files", snapshot)
		}
		if n.Egress != "" && n.Egress.Rank() < 0 {
			return term.BadFlag("egress", "%q is not one of switch, cidr, host and full", egress)
		}
		all, err := a.describeProviders(ctx)
		if err != nil {
			return err
		}
		choice := catalog.ChooseFrom(n, all)
		if asJSON {
			return a.PrintJSON(choice)
		}
		var rows [][]string
		for _, c := range choice.Candidates {
			rows = append(rows, []string{c.Provider, yesNo(c.Fits), strings.Join(c.Reasons, "; ")})
		}
		if err := a.Table("PROVIDER FITS WHY", rows); err != nil {
			return err
		}
		if choice.Provider == "" {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "provider.choose", Message: "no provider fits", Hint: "the list says what each one lacks"}
		}
		return nil
	})
	return cmd
}
