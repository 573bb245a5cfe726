package sandboxes

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// noteOpen warns of published ports that others than users of the machine reach.
func noteOpen(a *target.Env, all []sandbox.PublishedPort) {
	for _, p := range all {
		if ip := net.ParseIP(p.Address); p.Address != "" && !ip.IsLoopback() {
			a.Say("warning", "everyone who can reach "+p.Listen()+" can reach the sandbox")
		}
	}
}

// noteChosen says which ports the daemon chose.
func noteChosen(a *target.Env, asked []sandbox.PublishedPort, made target.Sandbox) {
	r, ok := made.(target.RemoteSandbox)
	if !ok || !slices.ContainsFunc(asked, func(p sandbox.PublishedPort) bool { return p.HostPort == 0 }) {
		return
	}
	for _, p := range r.Info().Ports {
		a.Say("note", fmt.Sprintf("%s leads to port %d of %s", p.Listen(), p.Port, r.Name()))
	}
}

// publish has the daemon forward ports in the background.
func (a portCommands) publish(ctx context.Context, ref, address string, pairs []forwardPair) error {
	s, err := a.DaemonSandbox(ctx, ref)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		p, err := s.Publish(ctx, sandbox.PublishedPort{Address: address, HostPort: pair.local, Port: pair.remote})
		if err != nil {
			return err
		}
		noteOpen(a.Env, []sandbox.PublishedPort{p})
		if err := a.Printf("%s -> %s:%d\n", p.Listen(), s.Name(), p.Port); err != nil {
			return err
		}
	}
	return nil
}

func (a portCommands) portLsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls [SANDBOX]",
		Short: "List published ports",
		Long: `Ls lists the ports of the daemon's machine that lead to sandboxes: those of
atoll run -p, atoll create -p and atoll port forward --detach.`,
		Example: `  atoll port ls
  atoll port ls demo --json`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	return resource.DaemonList(a.Env, cmd, "SANDBOX PORT PUBLISHED STATE", func(ctx context.Context, c *atoll.Client, args []string) ([]sandbox.Publication, error) {
		all, err := c.PublishedPorts(ctx)
		if err != nil || len(args) == 0 {
			return all, err
		}
		s, err := c.Get(ctx, args[0])
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(all, func(p sandbox.Publication) bool { return p.Sandbox != s.ID() }), nil
	}, func(p sandbox.Publication) []string {
		state := "open" // whether a program in the sandbox listens is not known
		if p.Error != "" {
			state = term.OneLine(p.Error, 200)
		}
		return []string{p.Name, fmt.Sprint(p.Port), p.Listen(), state}
	})
}

func (a portCommands) portRmCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "rm SANDBOX HOST-PORT...",
		Short:   "Stop publishing ports",
		Long:    `Rm has the daemon stop listening on ports of its machine for a sandbox. Connections that are open end.`,
		Example: `  atoll port rm demo 8080`,
		Args:    cobra.MinimumNArgs(2), ValidArgsFunction: resource.CompleteSandbox(a.Env),
		RunE: resource.Interruptible(func(ctx context.Context, args []string) error {
			s, err := a.DaemonSandbox(ctx, args[0])
			if err != nil {
				return err
			}
			for _, arg := range args[1:] {
				port, err := request.ParsePort(arg)
				if err != nil {
					return err
				}
				if err := s.Unpublish(ctx, port); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
