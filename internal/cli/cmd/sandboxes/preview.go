package sandboxes

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

func (a portCommands) portPreviewCmd() *cobra.Command {
	var public, remove, asJSON bool
	cmd := &cobra.Command{
		Use:   "preview SANDBOX [PORT]",
		Short: "Have the provider show a port at an address of its own",
		Long: `Preview asks the provider of a sandbox to show an HTTP server inside at an address
of the provider's, which is reached without this daemon. It writes the address, and
the header with the token that requests need. With --public, which needs the
permission admin, they need none. Asking again gives the same address and a new token.

Without PORT it lists the ports that are shown; with --rm it has the provider show
PORT no longer. Few providers have such addresses: atoll provider inspect shows the
kind of ports "preview-url". For any other provider, see: atoll port url.`,
		Example: `  atoll port preview demo 8000
  atoll port preview demo
  atoll port preview --rm demo 8000`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().BoolVar(&public, "public", false, "make it public: no token is needed")
	cmd.Flags().BoolVar(&remove, "rm", false, "have the provider show the port no longer")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.MarkFlagsMutuallyExclusive("public", "rm")
	cmd.MarkFlagsMutuallyExclusive("json", "rm")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		var port uint16
		var err error
		switch {
		case len(args) == 2:
			if port, err = request.ParsePort(args[1]); err != nil {
				return err
			}
		case public || remove:
			return &term.UsageError{Message: "--public and --rm need a port", Hint: "atoll port preview " + args[0] + " 8000"}
		}
		s, err := a.DaemonSandbox(ctx, args[0])
		switch {
		case err != nil:
			return err
		case remove:
			return s.Unpreview(ctx, port)
		case port == 0:
			all, err := s.Previews(ctx)
			if err != nil || asJSON {
				return a.jsonUnless(err, all)
			}
			return a.Table("PORT ACCESS URL", previewRows(all))
		}
		p, err := s.Preview(ctx, sandbox.PreviewRequest{Port: port, Public: public})
		if err != nil || asJSON {
			return a.jsonUnless(err, p)
		}
		return a.showPreview(p)
	})
	return cmd
}

// jsonUnless writes JSON, or returns the error.
func (a portCommands) jsonUnless(err error, v any) error {
	if err != nil {
		return err
	}
	return a.PrintJSON(v)
}

func previewRows(all []sandbox.Preview) [][]string {
	rows := make([][]string, len(all))
	for i, p := range all {
		access := "token"
		if p.Public {
			access = "public"
		}
		rows[i] = []string{fmt.Sprint(p.Port), access, p.URL}
	}
	return rows
}

func (a portCommands) showPreview(p sandbox.Preview) error {
	if err := a.Println(p.URL); err != nil || p.Public {
		return err
	}
	if !p.Expires.IsZero() {
		a.Say("note", "the token ends at "+p.Expires.Format(time.RFC3339))
	}
	return a.Printf("%s: %s\n", p.Header, p.Token)
}
