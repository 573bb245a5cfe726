package target

import (
	"slices"

	"github.com/spf13/cobra"
)

// withoutEngine are commands that never need the engine.
var withoutEngine = []string{"version", "completion", "help", "context", "down", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

// BeginInEngine continues a command in the engine if there is no daemon, before
// the command has read anything, such as its standard input. With a daemon, the
// few commands that need the engine continue there later.
func (e *Env) BeginInEngine(cmd *cobra.Command, args []string) error {
	top := cmd
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	if e.Engine == nil || top.Hidden || slices.Contains(withoutEngine, top.Name()) || cmd.HasSubCommands() && len(args) == 0 {
		return nil
	}
	d, _, err := e.NamedDaemon()
	if err != nil || d.Host != "" || listens(cmd.Context(), e.Socket()) {
		return nil //nolint:nilerr // the command returns it
	}
	return e.Engine(e.StateDir)
}

// InEngine continues a command in the engine. A program without one returns what
// cannot be done.
func (e *Env) InEngine(what string) error {
	if e.Engine == nil {
		return ClientOnly(what)
	}
	return e.Engine(e.StateDir)
}
