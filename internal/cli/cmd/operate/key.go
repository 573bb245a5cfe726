package operate

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// keyCommands are atoll key.
type keyCommands struct{ *target.Env }

func (a keyCommands) keyCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "key", Short: "Make, list and revoke API keys of the daemon", GroupID: resource.GroupDaemon,
		Example: `  atoll key ls`,
	}, a.keyCreateCmd(), a.keyListCmd(), a.keyRevokeCmd())
}

func (a keyCommands) keyCreateCmd() *cobra.Command {
	var n operator.NewKey
	var expires resource.DurationFlag
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Make an API key, and show it this once",
		Long: `Create makes an API key and writes it to standard output. It is shown only once;
the daemon keeps only its hash.`,
		Example: `  atoll key create --allow read,exec ci
  atoll key create --allow admin --expires 24h`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringSliceVar(&n.Verbs, "allow", []string{"read", "exec", "write"}, "permissions: read, exec, write, admin")
	cmd.Flags().StringVar(&n.Tenant, "tenant", "", "tenant of the key, which is created if it does not exist (default: your own)")
	cmd.Flags().Var(&expires, "expires", "how long it is valid (default: no limit)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		n.Name, n.Expires = strings.Join(args, ""), time.Duration(expires)
		k, err := c.Admin().CreateKey(ctx, n)
		if err != nil {
			return err
		}
		if err := a.showKey(k, asJSON); err != nil {
			return errors.Join(err, c.Admin().RevokeKey(context.WithoutCancel(ctx), k.ID)) // nobody has seen it
		}
		return nil
	})
	return cmd
}

func (a keyCommands) showKey(k operator.Key, asJSON bool) error {
	if asJSON {
		return a.PrintJSON(k)
	}
	if term.IsTerminal(a.Stdout) {
		a.explainKey(k)
	}
	return a.Println(k.Token)
}

// explainKey explains the key on a terminal. Standard output contains only the
// key, for scripts.
func (a keyCommands) explainKey(k operator.Key) {
	a.Notef("This is the new API key %s, which allows %s", k.ID, strings.Join(k.Verbs, ", "))
	if !k.Expires.IsZero() {
		a.Notef(" until %s", k.Expires.UTC().Format(time.RFC3339))
	}
	a.Notef(".\nKeep it now: it is not shown again. Use it as ATOLL_KEY, or end it with: atoll key revoke %s\n", k.ID)
}

func (a keyCommands) keyListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Short: "List API keys", Args: cobra.NoArgs,
		Example: `  atoll key ls`,
	}
	return resource.DaemonList(a.Env, cmd, "ID NAME ALLOWS STATE CREATED", func(ctx context.Context, c *atoll.Client, _ []string) ([]operator.Key, error) {
		return c.Admin().Keys(ctx)
	}, func(k operator.Key) []string {
		return []string{k.ID, k.Name, keyAllows(k), keyState(k), term.Ago(k.Created)}
	})
}

// keyAllows names the permissions of a key. Pages that a link signed in may also
// manage nodes and list tenants.
func keyAllows(k operator.Key) string {
	text := strings.Join(k.Verbs, ",")
	if k.Page {
		text += " (console page)"
	}
	return text
}

func keyState(k operator.Key) string {
	switch {
	case !k.Revoked.IsZero():
		return "revoked"
	case k.Expires.IsZero():
		return "valid"
	case time.Now().After(k.Expires):
		return "expired"
	}
	return "until " + k.Expires.UTC().Format(time.RFC3339)
}

func (a keyCommands) keyRevokeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID...", SuggestFor: []string{"rm", "remove", "delete"}, Short: "Revoke API keys, effective at once", Args: cobra.MinimumNArgs(1),
		Example: `  atoll key revoke $(atoll key create --json | sed -n 's/.*"id": "\(.*\)".*/\1/p')`,
	}
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		for _, id := range args {
			if err := c.Admin().RevokeKey(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}
