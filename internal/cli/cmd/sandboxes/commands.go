// Package sandboxes has the commands that make and use sandboxes.
package sandboxes

import (
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/target"
)

// Commands returns the commands that make and use sandboxes.
func Commands(env *target.Env) []*cobra.Command {
	return []*cobra.Command{
		runCommands{env}.runCmd(),
		runCommands{env}.createCmd(),
		processCommands{env}.execCmd(),
		processCommands{env}.shellCmd(),
		processCommands{env}.attachCmd(),
		processCommands{env}.terminalCmd(),
		listCommands{env}.lsCmd(),
		listCommands{env}.inspectCmd(),
		listCommands{env}.topCmd(),
		processCommands{env}.psCmd(),
		processCommands{env}.logsCmd(),
		processCommands{env}.killCmd(),
		copyCommands{env}.cpCmd(),
		portCommands{env}.portCmd(),
		streamCommands{env}.desktopCmd(),
		streamCommands{env}.streamCmd(),
		computerCommands{env}.computerCmd(),
		codeCommands{env}.codeCmd(),
		gitCommands{env}.gitCmd(),
		gitCommands{env}.searchCmd(),
		gitCommands{env}.patchCmd(),
		recordCommands{env}.recordCmd(),
		listCommands{env}.rmCmd(),
		lifecycleCommands{env}.pauseCmd(),
		lifecycleCommands{env}.resumeCmd(),
		lifecycleCommands{env}.stopCmd(),
		lifecycleCommands{env}.startCmd(),
		lifecycleCommands{env}.updateCmd(),
		lifecycleCommands{env}.forkCmd(),
		snapshotCommands{env}.snapshotCmd(),
		sessionCommands{env}.sessionCmd(),
		sessionCommands{env}.usageCmd(),
	}
}
