package sandboxes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// listCommands are atoll ls, inspect, top and rm.
type listCommands struct{ *target.Env }

func (a listCommands) lsCmd() *cobra.Command {
	var asJSON, quiet, watch, allTenants bool
	var wanted, filter []string
	var format string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the sandboxes that exist",
		Long: `Ls lists all sandboxes, including stopped, paused and failed ones: they still have
a name and files and count against the quota. --filter state=running shows only
running ones.`,
		Example: `  atoll ls
  atoll ls --label team=red
  atoll ls --filter state=running
  atoll ls --format '{{.Name}} {{.State}}'
  atoll ls --json`,
		GroupID: resource.GroupSandbox,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "write names only")
	cmd.Flags().StringArrayVarP(&wanted, "label", "l", nil, "only those with this label: KEY or KEY=VALUE")
	cmd.Flags().StringArrayVarP(&filter, "filter", "f", nil, "only those with this KEY=VALUE: name (a part of it), id (how it begins), state, image, label")
	cmd.Flags().BoolP("all", "a", false, "no effect: ls always shows stopped ones too")
	cmd.Flags().StringVar(&format, "format", "", term.FormatHelp)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh the list every second, until interrupted")
	target.AllTenantsFlag(cmd.Flags(), &allTenants)
	cmd.MarkFlagsMutuallyExclusive("json", "quiet", "format", "watch")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		only, err := resource.ParseFilters(filter)
		if err != nil {
			return err
		}
		t, err := a.TargetOf(ctx, allTenants)
		if err != nil {
			return err
		}
		t.Tidy(ctx)
		list := func(ctx context.Context) ([]sandbox.Sandbox, error) {
			all, err := t.List(ctx)
			return slices.DeleteFunc(all, func(s sandbox.Sandbox) bool { return !resource.HasLabels(s.Labels, wanted) || !only.Match(s) }), err
		}
		if watch {
			return a.Watch(ctx, time.Second, func(ctx context.Context) (string, error) {
				all, err := list(ctx)
				return term.TableText(sandboxHeader, sandboxRows(all)), err
			})
		}
		if _, err := term.Row(format, sandbox.Sandbox{}); err != nil {
			return err
		}
		all, err := list(ctx)
		if err != nil {
			return err
		}
		if format != "" {
			return term.Formatted(a.Term, format, all)
		}
		return a.showSandboxes(all, asJSON, quiet)
	})
	return cmd
}

func (a listCommands) showSandboxes(all []sandbox.Sandbox, asJSON, quiet bool) error {
	if asJSON {
		return a.PrintJSON(append([]sandbox.Sandbox{}, all...))
	}
	if quiet {
		for _, s := range all {
			if err := a.Println(s.Name); err != nil {
				return err
			}
		}
		return nil
	}
	return a.Table(sandboxHeader, sandboxRows(all))
}

const sandboxHeader = "NAME STATE IMAGE ISOLATION CREATED ENDS LABELS"

func sandboxRows(all []sandbox.Sandbox) [][]string {
	rows := make([][]string, 0, len(all))
	for _, s := range all {
		state := string(s.State)
		if s.State == sandbox.Exited && s.Exit != nil {
			state += fmt.Sprintf(" (%d)", s.Exit.Code)
		} else if s.Exit != nil {
			state += " (" + string(s.Exit.Reason) + ")"
		}
		rows = append(rows, []string{s.Name, state, s.Image, term.OrDash(string(s.Isolation)), term.Ago(s.Created), ends(&s), term.LabelText(s.Labels)})
	}
	return rows
}

// ends says when a sandbox ends or pauses by itself.
func ends(s *sandbox.Sandbox) string {
	var when []string
	if !s.Expires.IsZero() {
		when = append(when, "in "+units.HumanDuration(max(0, time.Until(s.Expires))))
	}
	if s.Lifetime.Idle > 0 {
		when = append(when, "unused for "+units.HumanDuration(s.Lifetime.Idle))
	}
	return term.OrDash(strings.Join(when, " or "))
}

func (a listCommands) rmCmd() *cobra.Command {
	var force, all, allTenants bool
	cmd := &cobra.Command{
		Use:   "rm [flags] SANDBOX...",
		Short: "Remove sandboxes with everything in them",
		Long: `Rm removes sandboxes and prints their names. A sandbox in which a command still runs
is only removed with --force. With --force, a sandbox that does not exist is noted and
is no failure.`,
		Example: `  atoll rm --force demo
  atoll rm --force --all
  atoll rm --force --all --all-tenants`,
		GroupID:           resource.GroupSandbox,
		ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove it even if a command runs in it")
	cmd.Flags().BoolVar(&all, "all", false, "remove all there are")
	target.AllTenantsFlag(cmd.Flags(), &allTenants)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 0) == !all {
			return &term.UsageError{Message: "name the sandboxes to remove, or give --all", Hint: "see what exists with: atoll ls"}
		}
		return nil
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		t, err := a.TargetOf(ctx, allTenants)
		if err != nil {
			return err
		}
		if all {
			list, err := t.List(ctx)
			if err != nil {
				return err
			}
			for _, s := range list {
				args = append(args, string(s.ID))
			}
		}
		return a.removeAll(ctx, t, unique(args), force)
	})
	return cmd
}

// unique removes duplicates.
func unique(names []string) (out []string) {
	for _, name := range names {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// removesAtOnce is how many sandboxes are removed at the same time.
const removesAtOnce = 8

// removeAll removes several objects at a time, and reports each failure, in the
// order of the names.
func (a listCommands) removeAll(ctx context.Context, t target.Sandboxes, names []string, force bool) error {
	type outcome struct {
		shown string
		err   error
	}
	outcomes := make([]outcome, len(names))
	done := make([]chan struct{}, len(names))
	for i := range done {
		done[i] = make(chan struct{})
	}
	var g errgroup.Group
	g.SetLimit(removesAtOnce)
	go func() {
		for i, name := range names {
			g.Go(func() error {
				defer close(done[i])
				outcomes[i].shown, outcomes[i].err = remove(ctx, t, name, force)
				return nil
			})
		}
	}()
	failed := false
	for i := range names {
		<-done[i]
		switch o := outcomes[i]; {
		case o.err != nil && ctx.Err() != nil:
			return o.err
		case o.err != nil && force && target.Missing(o.err):
			a.Say("note", term.OneLine(names[i], 80)+": no such sandbox")
		case o.err != nil:
			failed = true
			a.Report(nil, o.err)
		case o.shown != "":
			if err := a.Println(o.shown); err != nil {
				return err
			}
		}
	}
	if failed {
		return term.ExitCode(term.ExitFailure)
	}
	return nil
}

// remove removes an object and returns its name.
func remove(ctx context.Context, t target.Sandboxes, name string, force bool) (string, error) {
	sb, err := t.Find(ctx, name)
	if err != nil {
		return "", err
	}
	if !force {
		if err := idle(ctx, sb); err != nil {
			return "", err
		}
	}
	return sb.Name(), sb.Destroy(ctx)
}

// idle reports whether no command runs in a sandbox. One that cannot be asked
// has nothing that could be lost.
func idle(ctx context.Context, sb target.Sandbox) error {
	all, err := sb.Processes(ctx)
	if err != nil {
		return ctx.Err()
	}
	for _, p := range all {
		if p.Running {
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: sb.Name(), Message: "a command runs in it: " + term.OneLine(term.CommandText(p.Args), 60),
				Hint: "to remove it anyway: atoll rm --force " + sb.Name(),
			}
		}
	}
	return nil
}
