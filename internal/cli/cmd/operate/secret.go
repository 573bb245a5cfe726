package operate

import (
	"bytes"
	"context"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// secretCommands are atoll secret.
type secretCommands struct{ *target.Env }

func (a secretCommands) secretCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "secret", Short: "Manage secrets that sandboxes can use but not see", GroupID: resource.GroupDaemon,
		Long: `Secrets are stored encrypted and never shown again. A sandbox gets a placeholder,
and the gateway replaces it in requests to the hosts that the secret names. Or a
profile adds the secret to requests, and the sandbox gets nothing at all.

Values are read from standard input, from a file or from the terminal, never from the
command line, which every user of the machine can read.`,
		Example: `  atoll secret ls`,
	}, a.secretCreateCmd(), a.secretRotateCmd(), a.secretListCmd(), a.secretRemoveCmd())
}

const maxSecret = 64 << 10

// readSecret reads a value from a file, from standard input, or from a prompt
// on the terminal. It removes one trailing newline.
func (a secretCommands) readSecret(file string) ([]byte, error) {
	in := a.Stdin
	switch {
	case file != "" && file != "-":
		f, err := os.Open(file)
		if err != nil {
			return nil, term.Unreadable(file, err)
		}
		defer f.Close()
		in = f
	case term.IsTerminal(a.Stdin):
		a.Notef("Value: ")
		v, err := term.ReadHidden(a.Stdin.(*os.File))
		a.Notef("\n")
		return v, err
	}
	v, err := io.ReadAll(io.LimitReader(in, maxSecret+3))
	if err != nil {
		return nil, err
	}
	v = bytes.TrimSuffix(bytes.TrimSuffix(v, []byte("\n")), []byte("\r"))
	switch {
	case len(v) == 0:
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: "it is empty", Hint: "write it to standard input, or name a file with --from-file"}
	case len(v) > maxSecret:
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: "it is larger than 64 KiB"}
	}
	return v, nil
}

func (a secretCommands) secretCreateCmd() *cobra.Command {
	var s durable.NewSecret
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Store a secret, whose value is read from standard input", Args: cobra.ExactArgs(1),
		Long: `Create stores a secret. It reads the value from standard input, from a file, or from
the terminal without echo. The value cannot be shown again.

A secret without --host is sent only by stored profiles, to the hosts they name.`,
		Example: `  printf %s "$GITHUB_TOKEN" | atoll secret create github --host api.github.com`,
	}
	cmd.Flags().StringSliceVar(&s.Hosts, "host", nil, "hosts that it may be sent to, such as api.example.com or *.example.com:8443")
	cmd.Flags().StringVar(&file, "from-file", "", "read the value from a file, - for standard input")
	cmd.Flags().StringVar(&s.Source, "source", "", "store no value: the daemon finds it in env:NAME, file:/PATH, 'command:/PATH ARGUMENT…' or vault:PATH#FIELD")
	cmd.Flags().StringVar(&s.Description, "description", "", "for people")
	cmd.Flags().BoolVar(&s.AllowEnv, "allow-env", false, "sandboxes may ask for the value itself")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.MarkFlagsMutuallyExclusive("from-file", "source")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		s.Name = args[0]
		if s.Source == "" {
			v, err := a.readSecret(file)
			if err != nil {
				return err
			}
			s.Value = v
			defer clear(v)
		}
		out, err := c.CreateSecret(ctx, s)
		return a.wroteSecret(out, err, asJSON)
	})
	return cmd
}

func (a secretCommands) wroteSecret(s durable.StoredSecret, err error, asJSON bool) error {
	if err != nil {
		return err
	}
	if asJSON {
		return a.PrintJSON(s)
	}
	return a.Printf("%s is at version %d\n", s.Name, s.Version)
}

func (a secretCommands) secretRotateCmd() *cobra.Command {
	var file string
	var reread, asJSON bool
	cmd := &cobra.Command{
		Use: "rotate NAME", Short: "Give a secret a new value, from the next request on", Args: cobra.ExactArgs(1),
		Example: `  printf %s "$NEW_TOKEN" | atoll secret rotate github`,
	}
	cmd.Flags().StringVar(&file, "from-file", "", "read the value from a file, - for standard input")
	cmd.Flags().BoolVar(&reread, "reread", false, "the value is kept outside: read it anew")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.MarkFlagsMutuallyExclusive("from-file", "reread")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		var v []byte
		if !reread {
			var err error
			if v, err = a.readSecret(file); err != nil {
				return err
			}
			defer clear(v)
		}
		out, err := c.RotateSecret(ctx, args[0], v)
		return a.wroteSecret(out, err, asJSON)
	})
	return cmd
}

func (a secretCommands) secretListCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List secrets, without their values", Args: cobra.NoArgs, Example: `  atoll secret ls`}
	return resource.DaemonList(a.Env, cmd, "NAME VERSION HOSTS SOURCE SANDBOXES UPDATED", func(ctx context.Context, c *atoll.Client, _ []string) ([]durable.StoredSecret, error) {
		return c.Secrets(ctx)
	}, func(s durable.StoredSecret) []string {
		source := s.Source
		if source == "" {
			source = "stored"
		}
		return []string{s.Name, strconv.FormatInt(s.Version, 10), strings.Join(s.Hosts, ","), source, strconv.Itoa(s.Uses), term.Ago(s.Updated)}
	})
}

func (a secretCommands) secretRemoveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove secrets", Args: cobra.MinimumNArgs(1),
		Example: `  atoll secret rm github`,
	}
	return resource.DaemonRemove(a.Env, cmd, ", nor is one that sandboxes or profiles work with; they go on without it", func(ctx context.Context, c *atoll.Client, name string, force bool) error {
		return c.RemoveSecret(ctx, name, force)
	})
}
