// Package operate has the commands for the daemon and what it keeps.
package operate

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/target"
)

// Parts are what these commands need of the program. All are nil in a client.
type Parts struct {
	// Up starts a daemon, which the command closes.
	Up func(ctx context.Context, opts UpOptions) (Daemon, error)
	// Restore replaces the database in a state directory by a backup, and returns
	// where it moved the former state.
	Restore func(ctx context.Context, stateDir, backup string) (replaced string, err error)
	// Accept makes a state directory usable although parts of it are missing, and
	// returns a sentence for each.
	Accept func(ctx context.Context, stateDir string) (lost []string, err error)
	// Machine is the program of a self-hosted machine.
	Machine MachineProgram
	// Program is the path of the program that the user called. Empty: this one.
	Program string
}

// Commands returns the commands for the daemon and what it keeps.
func Commands(env *target.Env, p Parts) []*cobra.Command {
	return []*cobra.Command{
		upCommands{env, p.Up}.upCmd(),
		upCommands{env, p.Up}.downCmd(),
		consoleCmd(env),
		contextCommands{env}.contextCmd(),
		mcpCommands{env}.mcpCmd(),
		e2bCommands{env}.e2bCmd(),
		keyCommands{env}.keyCmd(),
		machineCommands{env, p.Machine, p.Program}.machineCmd(),
		nodeCommands{env}.nodeCmd(),
		tenantCommands{env}.tenantCmd(),
		workspaceCommands{env}.workspaceCmd(),
		profileCommands{env}.profileCmd(),
		policyCommands{env}.policyCmd(),
		secretCommands{env}.secretCmd(),
		profileCommands{env}.egressCmd(),
		eventCommands{env}.eventsCmd(),
		eventCommands{env}.auditCmd(),
		stateCommands{env, p.Restore, p.Accept}.stateCmd(),
	}
}
