package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// providerCommands are atoll provider and atoll doctor.
type providerCommands struct{ *target.Env }

func (a providerCommands) providerCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use:     "provider",
		Short:   "List and check providers",
		Example: `  atoll provider ls`,
		GroupID: resource.GroupMachine,
	}, a.providerLsCmd(), a.providerShowCmd(), a.providerChooseCmd(), a.providerCheckCmd())
}

// describeProviders describes the providers of the daemon that is used, else of
// this program.
func (a providerCommands) describeProviders(ctx context.Context) ([]catalog.Provider, error) {
	c, err := a.Daemon(ctx)
	if err != nil {
		return nil, err
	}
	if c != nil {
		return c.Providers(ctx)
	}
	system, err := a.Node()
	if err != nil {
		return nil, err
	}
	var all []catalog.Provider
	for _, info := range a.Providers {
		p := catalog.Provider{Name: info.Name, Summary: info.Summary, Warning: info.Warning, Default: info.Name == a.ChosenProvider()}
		c, err := system.Engine(ctx, info.Name, false)
		if err == nil {
			err = c.Describe(ctx, &p)
		}
		if err != nil {
			p.Problem, _ = term.Explain(err)
		}
		all = append(all, p)
	}
	return catalog.Describe(all), nil
}

func (a providerCommands) providerLsCmd() *cobra.Command {
	var asJSON, known bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the providers of the daemon, or of this program if none runs",
		Example: `  atoll provider ls
  atoll provider ls --json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		all, err := a.describeProviders(ctx)
		if err != nil {
			return err
		}
		if !known {
			all = slices.DeleteFunc(all, func(p catalog.Provider) bool { return !p.Descriptor.Driver.Available })
		}
		var rows [][]string
		for _, p := range all {
			name := p.Name
			if p.Default {
				name += " *"
			}
			rows = append(rows, []string{name, yesNo(p.Available), term.OrDash(string(p.Descriptor.Isolation)), p.Summary})
		}
		if asJSON {
			return a.PrintJSON(all)
		}
		return a.Table("NAME AVAILABLE ISOLATION SUMMARY", rows)
	})
	return cmd
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a providerCommands) providerCheckCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [PROVIDER]",
		Short: "Run the conformance suite against a provider",
		Long: `Check runs Atoll's conformance suite against a provider on this machine. It makes and
removes sandboxes, and compares the capabilities that the provider declares with
what works. For a service that may charge for sandboxes, check says how many it makes
at most, gives each a lifetime of an hour at most, and removes in the end what is left.`,
		Example: `  atoll provider check host`,
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return resource.CompleteProviders(a.Env)(cmd, args, prefix)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		d, said, err := a.NamedDaemon()
		if err != nil {
			return err
		}
		if d.Host != "" {
			return &sandbox.Error{
				Code: sandbox.CodeUnsupported, Subject: "provider check", Message: "this command works on this machine only, but " + said + " names a daemon",
				Hint: "run it where the daemon is, without " + said,
			}
		}
		system, err := a.Node()
		if err != nil {
			return err
		}
		name := a.ChosenProvider()
		if len(args) > 0 {
			name = args[0]
		}
		open, end, err := system.Trial(name)
		if err != nil {
			return err
		}
		h := drivertest.Harness{
			New: open, Close: end, Spec: func() sandbox.Spec { return sandbox.Spec{Image: engine.HostImage} }, Observe: a.checkProgress(ctx),
		}
		finish := func() error { return nil }
		if chargedFor(name) {
			if finish, err = a.onAccount(ctx, &h); err != nil {
				return err
			}
		}
		report := drivertest.Check(ctx, h)
		left := finish()
		if ctx.Err() != nil {
			a.Say("note", fmt.Sprintf("interrupted after %d checks", len(report.Results)))
			return errors.Join(term.ExitCode(term.ExitInterrupted), left)
		}
		var text strings.Builder
		if asJSON {
			err = a.PrintJSON(report)
		} else if err = report.WriteText(&text); err == nil {
			err = a.Printf("%s", term.Painted(term.Visible(text.String())))
		}
		if err != nil {
			return err
		}
		return errors.Join(report.Err(), left)
	})
	return cmd
}

// checkProgress returns a function that shows progress: every result on a
// terminal, elsewhere a line for every 25.
func (a providerCommands) checkProgress(ctx context.Context) func(drivertest.Result) {
	var mu sync.Mutex
	done := 0
	return func(res drivertest.Result) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return // what fails now fails because it was interrupted
		}
		done++
		switch {
		case term.IsTerminal(a.Stderr):
			status := strings.ReplaceAll(string(res.Status), "_", " ")
			color := map[drivertest.Status]string{drivertest.Pass: term.Green, drivertest.Fail: term.Red}[res.Status]
			a.Notef("%4d %s %s\n", done, a.Paint(a.Stderr, color, status), res.Name)
		case done%25 == 0:
			a.Notef("%d checks done\n", done)
		}
	}
}

// onMachine are the providers that need nothing but this machine.
var onMachine = map[string]bool{"gvisor": true, "host": true, "microvm": true}

func (a providerCommands) doctorCmd() *cobra.Command {
	var asJSON, showAll bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and its daemon, and explain how to fix problems",
		Long: `Doctor checks what each provider needs and whether this machine has it. If a daemon
runs, doctor also checks its store, log, disks, gateway and clock, and compares its
records with the sandboxes that exist; only the owner of the machine may ask for
that. With the address of another daemon (see atoll context), only that daemon is
checked. The exit code is 1 if the default provider cannot make sandboxes, or if a check
of the daemon failed.`,
		Example: `  atoll doctor
  atoll doctor --json`,
		GroupID: resource.GroupMachine,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&showAll, "all", false, "also providers that are not configured")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		if there, _, err := a.NamedDaemon(); err != nil {
			return err
		} else if there.Host != "" { // this machine is only its client
			d, err := a.diagnoseDaemon(ctx)
			if err != nil {
				return err
			}
			return a.showDiagnoses(nil, d, asJSON)
		}
		system, err := a.Node()
		if err != nil {
			return err
		}
		all := make([]diagnosis, 0, len(a.Providers))
		hidden := 0
		for _, info := range a.Providers {
			d := a.diagnose(ctx, system, info)
			if !asJSON && !showAll && !d.Available && !d.Default && !onMachine[info.Name] {
				hidden++ // a service that is not configured
				continue
			}
			all = append(all, d)
		}
		d, err := a.diagnoseDaemon(ctx)
		if err != nil {
			return err
		}
		if err := a.showDiagnoses(all, d, asJSON); err != nil || hidden == 0 {
			return err
		}
		return a.Printf("%d providers that are not configured are left out; see: atoll doctor --all\n", hidden)
	})
	return cmd
}
