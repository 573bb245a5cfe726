package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// localContext is the name of the daemon of the state directory.
const localContext = "local"

// daemonContext is how to reach a daemon.
type daemonContext struct {
	Host string `json:"host"`
	Key  string `json:"key,omitempty"`
}

// contexts are the daemons that the user has given names. They are kept in a file
// that only the user can read.
type contexts struct {
	Current string                   `json:"current,omitempty"` // empty: localContext
	Known   map[string]daemonContext `json:"contexts"`

	path string
}

// contextCommands are atoll context, and which daemon a context names.
type contextCommands struct{ *Env }

// contextFile is where they are kept.
func (a *Env) contextFile() (string, error) {
	if dir, _ := a.LookupEnv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "atoll", "contexts.json"), nil
	}
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "atoll", "contexts.json"), err
}

// contexts reads the file. Without one, or without a home, there are none.
func (a *Env) contexts() (c contexts, err error) {
	c.Known = map[string]daemonContext{}
	if c.path, err = a.contextFile(); err != nil {
		return c, nil //nolint:nilerr // a user without a home has no contexts
	}
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: c.path, Message: "cannot be read: " + err.Error(), Cause: err}
	}
	if c.Known == nil {
		c.Known = map[string]daemonContext{}
	}
	return c, nil
}

// save replaces the file.
func (c *contexts) save() error {
	if c.path == "" {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "contexts are stored in the home directory, and none is set"}
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(c.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".contexts-") // for the user alone
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), c.path)
}

// get returns a context by its name.
func (c *contexts) get(name string) (daemonContext, error) {
	d, ok := c.Known[name]
	if !ok && name != localContext {
		return d, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "there is no such context", Hint: "see: atoll context ls"}
	}
	return d, nil
}

// chosenContext is the name of the context that counts: $ATOLL_CONTEXT, else the one in use.
func (a *Env) chosenContext(c *contexts) string {
	if name, _ := a.LookupEnv("ATOLL_CONTEXT"); name != "" {
		return name
	}
	if c.Current != "" {
		return c.Current
	}
	return localContext
}

// namedDaemon returns the address and key of the daemon that the user names:
// by $ATOLL_HOST, else by a context. An empty host is the daemon of the state
// directory. said is what named it.
func (a *Env) namedDaemon() (d daemonContext, said string, err error) {
	if d.Host, _ = a.LookupEnv("ATOLL_HOST"); d.Host != "" {
		d.Key, _ = a.LookupEnv("ATOLL_KEY")
		return d, "ATOLL_HOST", nil
	}
	all, err := a.contexts()
	if err != nil {
		return d, "", err
	}
	name := a.chosenContext(&all)
	if d, err = all.get(name); err != nil || d.Host == "" {
		return d, "", err
	}
	if key, _ := a.LookupEnv("ATOLL_KEY"); key != "" {
		d.Key = key
	}
	return d, "the context " + name, nil
}

func (a contextCommands) contextCmd() *cobra.Command {
	return parent(&cobra.Command{
		Use: "context", Short: "Choose among several daemons", GroupID: groupDaemon,
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
		all, err := a.contexts()
		if err != nil {
			return err
		}
		type row struct {
			Name    string `json:"name"`
			Host    string `json:"host"`
			Key     bool   `json:"key"`
			Current bool   `json:"current"`
		}
		current := a.chosenContext(&all)
		rows := []row{{Name: localContext, Host: "unix://" + a.socket(), Current: current == localContext}}
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
	var d daemonContext
	var keyFile string
	var use, force bool
	cmd := &cobra.Command{
		Use: "create NAME --host ADDRESS", Short: "Give a daemon a name",
		Long: `Create stores the address of a daemon, and a key of it, under a name. The key is read
from --key-file, or from standard input with --key-file -, or from ATOLL_KEY.`,
		Example: `  atoll context create office --host https://atoll.example.com:7070 --key-file office.key --use`,
		Args:    cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&d.Host, "host", "", "address: https://HOST:PORT, http://HOST:PORT or unix:///PATH")
	flags.StringVar(&keyFile, "key-file", "", "file with the API key, - for standard input (default: $ATOLL_KEY)")
	flags.BoolVar(&use, "use", false, "use it from now on")
	forceFlag(flags, &force, "replace one of that name")
	_ = cmd.MarkFlagRequired("host")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name := args[0]
		if err := sandbox.ValidateName(name); err != nil {
			return err
		}
		if _, err := atoll.New(atoll.Options{Host: d.Host}); err != nil {
			return err
		}
		all, err := a.contexts()
		if err != nil {
			return err
		}
		if _, taken := all.Known[name]; name == localContext || taken && !force {
			return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Subject: name, Message: "there is a context of that name", Hint: "choose another name, or replace it with --force"}
		}
		if d.Key, err = a.contextKey(keyFile); err != nil {
			return err
		}
		all.Known[name] = d
		if use {
			all.Current = name
		}
		return all.save()
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
			all, err := a.contexts()
			if err != nil {
				return err
			}
			if _, err := all.get(args[0]); err != nil {
				return err
			}
			if all.Current = args[0]; args[0] == localContext {
				all.Current = ""
			}
			return all.save()
		},
	}
}

func (a contextCommands) contextRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Short: "Forget contexts, with their keys", Example: "  atoll context rm office",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := a.contexts()
			if err != nil {
				return err
			}
			for _, name := range args {
				if _, err := all.get(name); err != nil {
					return err
				}
				if name == localContext {
					return &term.UsageError{Message: fmt.Sprintf("the context %q cannot be removed", name), Hint: "it is the daemon of the state directory"}
				}
				delete(all.Known, name)
				if all.Current == name {
					all.Current = ""
					a.Say("note", "commands use the context "+localContext+" from now on")
				}
			}
			return all.save()
		},
	}
}

func (a contextCommands) completeContexts(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	all, err := a.contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return append([]string{localContext}, slices.Sorted(maps.Keys(all.Known))...), cobra.ShellCompDirectiveNoFileComp
}
