package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/admin"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// eventCommands are atoll events and atoll audit.
type eventCommands struct{ *target.Env }

func (a eventCommands) eventsCmd() *cobra.Command {
	var opts sandbox.EventQuery
	var sb string
	var follow, asJSON, allTenants bool
	var span resource.SpanFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened, from the daemon's log",
		Long: `Events shows the daemon's log: who did what to which sandbox, and with what result.
It never contains the output of commands or the values of secrets. The first column
is the cursor for --after.

--since and --until take an age such as 10m or 2d, a time such as
2026-01-31T08:00:00Z, a day, or seconds since 1970. With --follow, --until may be
a time that is still to come.`,
		Example: `  atoll events
  atoll events --since 10m
  atoll events --all-tenants
  atoll events --type sandbox.created --json`,
		GroupID: resource.GroupDaemon,
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "keep showing new ones until interrupted")
	flags.Int64Var(&opts.After, "after", 0, "only events after this one")
	flags.StringVar(&sb, "sandbox", "", "only events of the sandbox with this name or id")
	flags.StringSliceVar(&opts.Types, "type", nil, "only of these types, such as sandbox.created")
	flags.StringSliceVar(&opts.Ops, "op", nil, "only about these operations, such as process.exec")
	span.Register(flags)
	flags.BoolVar(&asJSON, "json", false, "write JSON lines")
	flags.BoolVar(&allTenants, "all-tenants", false, "of all tenants, as the owner of the machine")
	cmd.MarkFlagsMutuallyExclusive("all-tenants", "after") // cursors are of one tenant
	cmd.MarkFlagsMutuallyExclusive("all-tenants", "sandbox")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) (err error) {
		if opts.Since, opts.Until, err = span.Read(); err != nil {
			return err
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		if sb != "" {
			s, err := c.Get(ctx, sb)
			if err != nil {
				return err
			}
			opts.Sandbox = s.ID()
		}
		if allTenants {
			err = a.eventsOfAll(ctx, c, opts, follow, asJSON)
		} else {
			err = eachEvent(ctx, c, opts, follow, func(e sandbox.Event) error { return a.showEvent("", e, asJSON) })
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return term.ExitCode(130)
		}
		return nil
	})
	return cmd
}

// eachEvent shows recorded events, and with follow those to come until ctx ends.
func eachEvent(ctx context.Context, c *atoll.Client, opts sandbox.EventQuery, follow bool, show func(sandbox.Event) error) error {
	read := c.Events
	if follow {
		read = c.FollowEvents
	}
	for e, err := range read(ctx, opts) {
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := show(e); err != nil {
			return err
		}
	}
	return nil
}

// eventsOfAll shows the events of all tenants: recorded ones by time, and with
// follow those to come as they come.
func (a eventCommands) eventsOfAll(ctx context.Context, c *atoll.Client, opts sandbox.EventQuery, follow bool, asJSON bool) error {
	tenants, err := target.Tenants(ctx, a.Env, c)
	if err != nil {
		return err
	}
	if !follow {
		type record struct {
			tenant string
			sandbox.Event
		}
		var all []record
		for _, t := range tenants {
			err := eachEvent(ctx, t.Client, opts, false, func(e sandbox.Event) error {
				all = append(all, record{t.Name, e})
				return nil
			})
			if err != nil {
				return err
			}
		}
		slices.SortStableFunc(all, func(x, y record) int { return x.Time.Compare(y.Time) })
		for _, r := range all {
			if err := a.showEvent(r.tenant, r.Event, asJSON); err != nil {
				return err
			}
		}
		return nil
	}
	var one sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range tenants {
		g.Go(func() error {
			return eachEvent(ctx, t.Client, opts, true, func(e sandbox.Event) error {
				one.Lock()
				defer one.Unlock()
				return a.showEvent(t.Name, e, asJSON)
			})
		})
	}
	return g.Wait()
}

// showEvent writes an event, with its tenant if one is given.
func (a eventCommands) showEvent(tenant string, e sandbox.Event, asJSON bool) error {
	if asJSON {
		text, err := json.Marshal(e)
		if err == nil && tenant != "" {
			var of []byte
			of, err = json.Marshal(tenant)
			text = slices.Concat([]byte(`{"tenant":`), of, []byte(","), text[1:])
		}
		if err != nil {
			return err
		}
		return a.PrintJSONLine(json.RawMessage(text))
	}
	if tenant != "" {
		e.Type = tenant + "  " + e.Type
	}
	fields := []string{
		fmt.Sprint(e.Seq), e.Time.UTC().Format(time.RFC3339), e.Type, e.Op, cmp.Or(e.Name, string(e.Sandbox), "-"),
	}
	for _, extra := range []string{e.Subject, e.Program, string(e.Code), string(e.Reason)} {
		if extra != "" && extra != e.Name {
			fields = append(fields, extra)
		}
	}
	return a.Println(term.OneLine(strings.Join(fields, "  "), 400))
}

func (a eventCommands) auditCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "audit", Short: "Check the daemon's log", GroupID: resource.GroupDaemon,
		Example: `  atoll audit verify`,
	}, a.auditVerifyCmd(), a.auditExportCmd(), a.auditPruneCmd())
}

func (a eventCommands) auditExportCmd() *cobra.Command {
	var opts sandbox.EventQuery
	cmd := &cobra.Command{
		Use: "export", Short: "Write the log as JSON lines, each with its hash", Args: cobra.NoArgs,
		Long: `Export writes the log to standard output, one record per line, exactly as it was
hashed: {"hash":"…","event":{…}}. The hash of a record is the SHA-256 of "atoll event
v1", a line feed, the 32 bytes of the previous hash, and the bytes of the event. For the
first record, the previous hash is the SHA-256 of "atoll genesis v1", a line feed and
the tenant's name. On a terminal, characters that it would not show are escaped.

With --format otlp-json it writes what atoll up --otlp sends, for OpenTelemetry's
collectors to read from a file; that cannot be checked by its hashes.`,
		Example: `  atoll audit export
  atoll audit export --op process.exec --since 7d
  atoll audit export --format otlp-json`,
	}
	format := string(admin.AuditChained)
	cmd.Flags().StringVar(&format, "format", format, "json, or otlp-json for OpenTelemetry")
	cmd.Flags().StringSliceVar(&opts.Types, "type", nil, "only of these types, such as sandbox.created")
	cmd.Flags().StringSliceVar(&opts.Ops, "op", nil, "only about these operations, such as process.exec")
	var span resource.SpanFlags
	span.Register(cmd.Flags())
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) (err error) {
		if opts.Since, opts.Until, err = span.Read(); err != nil {
			return err
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		return c.Admin().ExportAudit(ctx, admin.AuditFormat(format), opts, a.PlainOutput())
	})
	return cmd
}

func (a eventCommands) auditVerifyCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify", Short: "Check that the log was not modified", Args: cobra.NoArgs,
		Long: `Verify reads the whole log and checks its chain of hashes, which reveals any record
that was edited, removed or moved. It also compares the end of the log with the copy
that is kept outside the database.`,
		Example: `  atoll audit verify`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		report, err := c.Admin().VerifyAudit(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			err = a.PrintJSON(report)
		} else if report.Sound {
			err = a.Printf("%d records, all valid\n", report.Records)
			if report.Pruned > 0 && err == nil {
				err = a.Printf("records up to %d were pruned, last at %s\n", report.Pruned, report.PrunedAt.UTC().Format(time.RFC3339))
			}
		}
		if err != nil || report.Sound {
			return err
		}
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: fmt.Sprintf("record %d", report.FaultSeq),
			Message: "the log was modified: " + report.Fault, Hint: "the database was modified; restore it from a backup",
		}
	})
	return cmd
}
