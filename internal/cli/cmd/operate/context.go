package operate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// contextCommands are atoll context, and which daemon a context names.
type contextCommands struct{ *target.Env }

func (a contextCommands) contextCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "context", Short: "Choose among several daemons", GroupID: resource.GroupDaemon,
		Long: `A context is a name for a daemon: its address and an API key. Commands use the daemon
of the context that is in use. ATOLL_CONTEXT names another one for a single command,
and ATOLL_HOST, with the key in ATOLL_KEY, goes before all contexts. The context
"local" is always there: it is the daemon of the state directory.

Contexts are in contexts.json in the directory atoll of the user's configuration
directory. The file holds the keys, and only its owner can read it.`,
		Example: `  atoll context create office --host https://atoll.example.com:7070 --key-file office.key
  atoll context use office
  atoll context ls`,
	}, a.contextLsCmd(), a.contextCreateCmd(), a.contextUseCmd(), a.contextRmCmd())
}

func (a contextCommands) contextLsCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "ls", Short: "List contexts", Args: cobra.NoArgs, Example: `  atoll context ls --json`}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON, without the keys")
	cmd.RunE = func(*cobra.Command, []string) error {
		all, err := a.Contexts()
		if err != nil {
			return err
		}
		type row struct {
			Name    string `json:"name"`
			Host    string `json:"host"`
			Key     bool   `json:"key"`
			Current bool   `json:"current"`
		}
		current := target.ChosenContext(a.Env, &all)
		rows := []row{{Name: target.LocalContext, Host: "unix://" + a.Socket(), Current: current == target.LocalContext}}
		for _, name := range slices.Sorted(maps.Keys(all.Known)) {
			rows = append(rows, row{name, all.Known[name].Host, all.Known[name].Key != "", current == name})
		}
		if asJSON {
			return a.PrintJSON(rows)
		}
		cells := make([][]string, len(rows))
		for i, r := range rows {
			cells[i] = []string{r.Name, map[bool]string{true: "*", false: ""}[r.Current], map[bool]string{true: "yes", false: "-"}[r.Key], r.Host}
		}
		if err := a.Table("NAME CURRENT KEY HOST", cells); err != nil {
			return err
		}
		if host, _ := a.LookupEnv("ATOLL_HOST"); host != "" {
			a.Say("note", "ATOLL_HOST is set, and goes before all contexts")
		}
		return nil
	}
	return cmd
}

func (a contextCommands) contextCreateCmd() *cobra.Command {
	var d target.DaemonContext
	var keyFile string
	var use, force bool
	cmd := &cobra.Command{
		Use: "create NAME --host ADDRESS", SuggestFor: []string{"add", "set"}, Short: "Give a daemon a name",
		Long: `Create stores the address of a daemon, and a key of it, under a name. The key is read
from --key-file, or from standard input with --key-file -, or from ATOLL_KEY.`,
		Example: `  atoll context create office --host https://atoll.example.com:7070 --key-file office.key --use`,
		Args:    cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&d.Host, "host", "", "address: https://HOST:PORT, http://HOST:PORT or unix:///PATH")
	flags.StringVar(&keyFile, "key-file", "", "file with the API key, - for standard input (default: $ATOLL_KEY)")
	flags.BoolVar(&use, "use", false, "use it from now on")
	resource.ForceFlag(flags, &force, "replace one of that name")
	_ = cmd.MarkFlagRequired("host")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name := args[0]
		if err := sandbox.ValidateName(name); err != nil {
			return err
		}
		if _, err := atoll.New(atoll.Options{Host: d.Host}); err != nil {
			return err
		}
		all, err := a.Contexts()
		if err != nil {
			return err
		}
		if _, taken := all.Known[name]; name == target.LocalContext || taken && !force {
			return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Subject: name, Message: "there is a context of that name", Hint: "choose another name, or replace it with --force"}
		}
		if d.Key, err = a.contextKey(keyFile); err != nil {
			return err
		}
		all.Known[name] = d
		if use {
			all.Current = name
		}
		return all.Save()
	}
	return cmd
}

// contextKey reads the key of a context.
func (a contextCommands) contextKey(file string) (string, error) {
	const most = 4096
	switch file {
	case "":
		key, _ := a.LookupEnv("ATOLL_KEY")
		return key, nil
	case "-":
		text, err := io.ReadAll(io.LimitReader(a.Stdin, most))
		return strings.TrimSpace(string(text)), err
	}
	return addressFile("key-file", file)
}

func (a contextCommands) contextUseCmd() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Use the daemon of a context from now on", Example: "  atoll context use office\n  atoll context use local",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := a.Contexts()
			if err != nil {
				return err
			}
			if _, err := all.Get(args[0]); err != nil {
				return err
			}
			if all.Current = args[0]; args[0] == target.LocalContext {
				all.Current = ""
			}
			return all.Save()
		},
	}
}

func (a contextCommands) contextRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Short: "Forget contexts, with their keys", Example: "  atoll context rm office",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := a.Contexts()
			if err != nil {
				return err
			}
			for _, name := range args {
				if _, err := all.Get(name); err != nil {
					return err
				}
				if name == target.LocalContext {
					return &term.UsageError{Message: fmt.Sprintf("the context %q cannot be removed", name), Hint: "it is the daemon of the state directory"}
				}
				delete(all.Known, name)
				if all.Current == name {
					all.Current = ""
					a.Say("note", "commands use the context "+target.LocalContext+" from now on")
				}
			}
			return all.Save()
		},
	}
}

func (a contextCommands) completeContexts(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	all, err := a.Contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return append([]string{target.LocalContext}, slices.Sorted(maps.Keys(all.Known))...), cobra.ShellCompDirectiveNoFileComp
}
