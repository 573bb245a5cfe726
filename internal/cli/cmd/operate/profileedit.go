package operate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// fallbackEditor is there on every system that has an editor.
const fallbackEditor = "vi"

func (a profileCommands) profileEditCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "edit NAME", Short: "Change a profile in your editor, and apply it to running sandboxes", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeProfile,
		Long: `Edit opens a profile in $VISUAL, $EDITOR or vi. The text that you save becomes its
next version, as with apply. If another user changed the profile in the meantime, or
your text cannot be stored, edit keeps it in a file and prints its name.`,
		Example: `  atoll profile edit docs
  EDITOR="sed -i s/GET/HEAD/" atoll profile edit docs`,
	}
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		old, err := c.Profile(ctx, args[0], 0)
		if err != nil {
			return err
		}
		return a.editProfile(ctx, c, &old)
	})
	return cmd
}

// editProfile opens a profile in the user's editor and stores the result.
func (a profileCommands) editProfile(ctx context.Context, c *atoll.Client, old *durable.StoredProfile) (err error) {
	text, err := yamlOf(old.Profile)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "atoll-edit-")
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	file := filepath.Join(dir, filepath.Base(old.Name)+".yaml") // the name is what the daemon says
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	if err := a.openEditor(ctx, file); err != nil {
		return err
	}
	edited, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Equal(edited, text) || len(bytes.TrimSpace(edited)) == 0 {
		return a.Printf("%s is unchanged, at version %d\n", old.Name, old.Version)
	}
	p, err := a.namedProfile(file, []string{old.Name})
	if err == nil {
		var out durable.StoredProfile
		if out, err = c.ApplyProfile(ctx, p, old.Version); err == nil {
			return a.Printf("%s is at version %d\n", out.Name, out.Version)
		}
	}
	keep = true
	return keptIn(err, file)
}

// keptIn adds to an error where the text is that could not be stored.
func keptIn(err error, file string) error {
	hint := "your text is in " + file + "; fix it, and: atoll profile apply -f " + file
	var known *sandbox.Error
	if !errors.As(err, &known) {
		return &sandbox.Error{Code: sandbox.CodeOf(err), Subject: file, Message: err.Error(), Hint: hint, Cause: err}
	}
	own := *known
	own.Hint, own.Cause = hint, err
	return &own
}

// openEditor opens a file in the user's editor and waits until it is closed. As
// in other programs, the editor's variable may contain arguments.
func (a profileCommands) openEditor(ctx context.Context, file string) error {
	visual, _ := a.LookupEnv("VISUAL")
	editor, _ := a.LookupEnv("EDITOR")
	editor = cmp.Or(visual, editor, fallbackEditor)
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	if err := cmd.Run(); err != nil {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: editor, Message: "the editor failed, and nothing was changed", Cause: err,
			Hint: "name another one in $EDITOR",
		}
	}
	return nil
}

// completeProfile offers the names of profiles.
func (a profileCommands) completeProfile(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), resource.CompletionTime)
	defer cancel()
	c, err := a.MustDaemon(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := c.Profiles(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, 0, len(all))
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
