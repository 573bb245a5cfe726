package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
)

func (a *App) providerCmd() *cobra.Command {
	return parent(&cobra.Command{
		Use:     "provider",
		Short:   "What can make sandboxes here",
		Example: `  atoll provider ls`,
		GroupID: groupMachine,
	}, a.providerLsCmd(), a.providerCheckCmd())
}

// providerState is one line of a listing of providers.
type providerState struct {
	ProviderInfo
	Default      bool                `json:"default"`
	Version      string              `json:"version,omitempty"`
	Available    bool                `json:"available"`
	Isolates     bool                `json:"isolates"`
	Capabilities driver.Capabilities `json:"capabilities"`
	Problem      string              `json:"problem,omitempty"` // probing failed
}

func (a *App) providerLsCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the providers and whether they work here",
		Example: `  atoll provider ls
  atoll provider ls --json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		system, err := a.node()
		if err != nil {
			return err
		}
		var all []providerState
		var rows [][]string
		for _, info := range a.Providers {
			s := providerState{ProviderInfo: info, Default: info.Name == a.chosenProvider()}
			facts, err := system.Probe(ctx, info.Name)
			if err != nil {
				s.Problem, _ = explain(err)
			}
			s.Version, s.Available, s.Isolates, s.Capabilities = facts.Version, facts.Available, facts.Isolates, facts.Capabilities
			all = append(all, s)
			name := info.Name
			if s.Default {
				name += " *"
			}
			rows = append(rows, []string{name, yesNo(s.Available), yesNo(s.Isolates), info.Summary})
		}
		if asJSON {
			return a.printJSON(all)
		}
		return a.table("NAME AVAILABLE ISOLATES SUMMARY", rows)
	})
	return cmd
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *App) providerCheckCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [PROVIDER]",
		Short: "Find out whether a provider keeps its promises here",
		Long: `Check runs the conformance suite, by which Atoll itself is tested, against a
provider on this machine: it makes and removes sandboxes, and compares what the
provider says it can do with what works.`,
		Example: `  atoll provider check host`,
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeProviders(cmd, args, prefix)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		system, err := a.node()
		if err != nil {
			return err
		}
		name := a.chosenProvider()
		if len(args) > 0 {
			name = args[0]
		}
		report, err := system.Check(ctx, name, a.checkProgress)
		if err != nil {
			return err
		}
		write := report.WriteText
		if asJSON {
			write = report.WriteJSON
		}
		if err := write(a.Stdout); err != nil {
			return err
		}
		return report.Err()
	})
	return cmd
}

// checkProgress shows on a terminal that the suite goes on.
func (a *App) checkProgress(res drivertest.Result) {
	if isTerminal(a.Stderr) {
		status := strings.ReplaceAll(string(res.Status), "_", " ")
		color := map[drivertest.Status]string{drivertest.Pass: green, drivertest.Fail: red}[res.Status]
		_, _ = fmt.Fprintf(a.Stderr, "%s %s\n", a.paint(a.Stderr, color, status), visible(res.Name))
	}
}

func (a *App) doctorCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Explain what this machine and its daemon can and cannot do, and how to mend it",
		Long: `Doctor looks at what every provider needs and finds here. If a daemon runs, it is
asked how it is: its store, log, disks, gateway, clock, and whether what is
recorded is what exists; that is for the owner of the machine. The exit code is 1
if the default provider cannot make sandboxes, or something of the daemon is
broken.`,
		Example: `  atoll doctor
  atoll doctor --json`,
		GroupID: groupMachine,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		system, err := a.node()
		if err != nil {
			return err
		}
		all := make([]diagnosis, 0, len(a.Providers))
		for _, info := range a.Providers {
			all = append(all, a.diagnose(ctx, system, info))
		}
		d, err := a.diagnoseDaemon(ctx)
		if err != nil {
			return err
		}
		return a.showDiagnoses(all, d, asJSON)
	})
	return cmd
}
