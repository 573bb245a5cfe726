package operate

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/admin"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// limitFlag is a limit of a tenant: a number, a size if it counts bytes, or
// "none". It satisfies pflag.Value.
type limitFlag struct {
	bytes  bool
	whole  bool // no fractions
	set    func(float64)
	value  float64
	lifted bool
}

// tenantCommands are atoll tenant.
type tenantCommands struct{ *target.Env }

func (f *limitFlag) Set(text string) (err error) {
	if f.lifted = text == "none"; f.lifted {
		f.value = 0
		return nil
	}
	var n int64
	if f.bytes {
		n, err = units.RAMInBytes(text)
		f.value = float64(n)
	} else {
		f.value, err = strconv.ParseFloat(text, 64)
	}
	if err == nil && f.whole && f.value != math.Trunc(f.value) {
		return fmt.Errorf("%q is not a whole number", text)
	}
	if err != nil || !(f.value > 0) || math.IsInf(f.value, 0) || n == math.MaxInt64 {
		return fmt.Errorf("%q is neither an amount above zero nor none", text)
	}
	return nil
}

func (f *limitFlag) String() string {
	switch {
	case f.lifted:
		return "none"
	case f.value == 0:
		return ""
	}
	return limitText(f.value, f.bytes)
}

func (f *limitFlag) Type() string { return "limit" }

func limitText(v float64, bytes bool) string {
	switch {
	case v == 0:
		return "-"
	case bytes:
		return units.BytesSize(v)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// limitFlags registers a flag for each limit. It returns a function that
// returns the given limits, or nil if there are none.
func limitFlags(flags *pflag.FlagSet) func() *operator.LimitsChange {
	var c operator.LimitsChange
	all := map[string]*limitFlag{}
	add := func(name, what string, f limitFlag) {
		all[name] = &f
		flags.Var(&f, name, what+`; "none" lifts the limit`)
	}
	add("boxes", "sandboxes at once", whole(&c.Sandboxes))
	add("cpus", "processors' worth of time, over all sandboxes", number(&c.CPUs))
	add("memory", "memory, over all sandboxes, such as 16g", size(&c.Memory))
	add("disk", "writable disk, over all sandboxes, such as 100g", size(&c.Disk))
	add("snapshots", "snapshots with a name", whole(&c.Snapshots))
	add("snapshot-bytes", "bytes of all snapshots, such as 100g", size(&c.SnapshotBytes))
	add("exec-rate", "commands started per second", number(&c.ExecRate))
	add("exec-burst", "commands that may start at once", whole(&c.ExecBurst))
	add("output-rate", "bytes of output per second, such as 10m; what is over is slowed down", size(&c.OutputRate))
	add("output-burst", "bytes of output at once", size(&c.OutputBurst))
	add("warm-hours", "hours per calendar month that sessions may have a sandbox, over all sandboxes", number(&c.WarmHours))
	return func() *operator.LimitsChange {
		given := false
		for name, f := range all {
			if flags.Changed(name) {
				given = true
				f.set(f.value)
			}
		}
		if !given {
			return nil
		}
		return &c
	}
}

// whole is a limit that is a whole number.
func whole[T int | int64](to **T) limitFlag {
	return limitFlag{whole: true, set: func(v float64) { *to = new(T(v)) }}
}

// size is a limit in bytes.
func size(to **int64) limitFlag {
	f := whole(to)
	f.bytes = true
	return f
}

// number is a limit that may be a fraction.
func number(to **float64) limitFlag {
	return limitFlag{set: func(v float64) { *to = &v }}
}

func (a tenantCommands) tenantCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "tenant", Short: "Make, show and limit tenants of the daemon", GroupID: resource.GroupDaemon,
		Long: `A tenant is one customer of the daemon. Tenants are isolated from each other. Only
the owner of the machine, through the daemon's socket, may create and change tenants;
see also: atoll key create --tenant.`,
		Example: `  atoll tenant show`,
	}, a.tenantCreateCmd(), a.tenantListCmd(), a.tenantShowCmd(), a.tenantQuotaCmd(), a.tenantDisableCmd(true), a.tenantDisableCmd(false))
}

func (a tenantCommands) tenantCreateCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "create [flags] NAME", Short: "Make a tenant", Args: cobra.ExactArgs(1),
		Example: `  atoll tenant create --boxes 10 --memory 16g acme`,
	}
	given := limitFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = a.tenantCommand(&asJSON, func(ctx context.Context, c *admin.Client, name string) (operator.Tenant, error) {
		t, err := c.CreateTenant(ctx, name, operator.Limits{})
		if limits := given(); err == nil && limits != nil {
			return c.UpdateTenant(ctx, name, operator.TenantChange{Limits: limits})
		}
		return t, err
	})
	return cmd
}

// tenantCommand adapts a command that is about one tenant and shows it.
func (a tenantCommands) tenantCommand(asJSON *bool, do func(context.Context, *admin.Client, string) (operator.Tenant, error)) func(*cobra.Command, []string) error {
	return resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		t, err := do(ctx, c.Admin(), strings.Join(args, ""))
		if err != nil {
			return err
		}
		if *asJSON {
			return a.PrintJSON(t)
		}
		return a.showTenant(t)
	})
}

func (a tenantCommands) showTenant(t operator.Tenant) error {
	state := "enabled"
	if !t.Disabled.IsZero() {
		state = "disabled " + term.Ago(t.Disabled)
	}
	l, u := t.Limits, t.Usage
	if err := a.Printf("%s: %s\n", t.ID, state); err != nil {
		return err
	}
	return a.Table("WHAT USED LIMIT", [][]string{
		{"boxes", fmt.Sprint(u.Sandboxes), limitText(float64(l.Sandboxes), false)},
		{"cpus", strconv.FormatFloat(u.CPUs, 'f', -1, 64), limitText(l.CPUs, false)},
		{"memory", units.BytesSize(float64(u.Memory)), limitText(float64(l.Memory), true)},
		{"disk", units.BytesSize(float64(u.Disk)), limitText(float64(l.Disk), true)},
		{"snapshots", strconv.FormatInt(u.Snapshots, 10), limitText(float64(l.Snapshots), false)},
		{"snapshot-bytes", units.BytesSize(float64(u.SnapshotBytes)), limitText(float64(l.SnapshotBytes), true)},
		{"commands/s", "", limitText(l.ExecRate, false)},
		{"output/s", "", limitText(float64(l.OutputRate), true)},
		{"warm-hours", strconv.FormatFloat(u.WarmHours, 'f', 2, 64), limitText(l.WarmHours, false)},
	})
}

func (a tenantCommands) tenantListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Short: "List tenants", Args: cobra.NoArgs,
		Example: `  atoll tenant ls`,
	}
	return resource.DaemonList(a.Env, cmd, "NAME STATE BOXES MEMORY CREATED", func(ctx context.Context, c *atoll.Client, _ []string) ([]operator.Tenant, error) {
		return c.Admin().Tenants(ctx)
	}, func(t operator.Tenant) []string {
		state := "enabled"
		if !t.Disabled.IsZero() {
			state = "disabled"
		}
		return []string{
			t.ID, state, fmt.Sprintf("%d/%s", t.Usage.Sandboxes, limitText(float64(t.Limits.Sandboxes), false)),
			fmt.Sprintf("%s/%s", units.BytesSize(float64(t.Usage.Memory)), limitText(float64(t.Limits.Memory), true)), term.Ago(t.Created),
		}
	})
}

func (a tenantCommands) tenantShowCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show [NAME]", Short: "Show the quota and usage of a tenant", Args: cobra.MaximumNArgs(1),
		Long: `Show lists the quota and the usage of a tenant: your own or, for the owner of the
machine, any.`,
		Example: `  atoll tenant show`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = a.tenantCommand(&asJSON, func(ctx context.Context, c *admin.Client, name string) (operator.Tenant, error) {
		if name == "" {
			return c.Tenant(ctx)
		}
		return c.TenantByID(ctx, name)
	})
	return cmd
}

func (a tenantCommands) tenantQuotaCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "set-quota [flags] NAME", Short: "Change the quota of a tenant", Args: cobra.ExactArgs(1),
		Long: `Set-quota changes the limits that you give and leaves the others. It does not affect
sandboxes that already exist.`,
		Example: `  atoll tenant set-quota --boxes 20 --exec-rate 50 default
  atoll tenant set-quota --boxes none --exec-rate none default`,
	}
	given := limitFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limits := given()
		if limits == nil {
			return term.Usage(cmd, fmt.Errorf("no limit is given"))
		}
		return a.tenantCommand(&asJSON, func(ctx context.Context, c *admin.Client, name string) (operator.Tenant, error) {
			return c.UpdateTenant(ctx, name, operator.TenantChange{Limits: limits})
		})(cmd, args)
	}
	return cmd
}

func (a tenantCommands) tenantDisableCmd(disable bool) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "enable NAME", Short: "Enable a disabled tenant", Args: cobra.ExactArgs(1),
		Example: `  atoll tenant enable default`,
	}
	if disable {
		cmd.Use, cmd.Short = "disable NAME", "Disable a tenant and its keys"
		cmd.Long = "Disable rejects the keys of a tenant and stops it from creating sandboxes. Its\nrunning sandboxes are not touched."
		cmd.Example = "  atoll tenant disable default"
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = a.tenantCommand(&asJSON, func(ctx context.Context, c *admin.Client, name string) (operator.Tenant, error) {
		return c.UpdateTenant(ctx, name, operator.TenantChange{Disabled: &disable})
	})
	return cmd
}
