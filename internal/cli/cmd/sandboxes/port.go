package sandboxes

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// portCommands are atoll port.
type portCommands struct{ *target.Env }

func (a portCommands) portCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "port", Short: "Reach ports inside sandboxes", GroupID: resource.GroupSandbox,
		Example: `  atoll port forward demo 8000
  atoll port ls`,
	}, a.portForwardCmd(), a.portLsCmd(), a.portOpenCmd(), a.portPreviewCmd(), a.portRmCmd(), a.portTokenCmd(), a.portURLCmd())
}

func (a portCommands) portForwardCmd() *cobra.Command {
	var address string
	var asJSON, detach bool
	cmd := &cobra.Command{
		Use:   "forward SANDBOX [LOCAL:]REMOTE...",
		Short: "Listen here, and connect to ports inside",
		Long: `Forward listens on ports of this machine and forwards connections to ports inside
the sandbox, including servers that listen only on the sandbox's loopback. It prints
the addresses and runs until it is interrupted.

The local port is the same as the remote one unless you give one; 0 takes any free
port. Connecting needs no key: forward listens on 127.0.0.1, which every user of this
machine can reach.

With --detach the daemon listens instead, on its machine, for as long as the sandbox
is there, as it does for the ports of atoll run --publish. See also: atoll port ls.`,
		Example: `  atoll port forward demo 8000
  atoll port forward demo 0:8000 5433:5432
  atoll port forward -d demo 8080:80`,
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "the address of this machine to listen on")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON, an object per port")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "have the daemon listen, and return")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		pairs, err := parseForwards(args[1:])
		switch {
		case err != nil:
			return err
		case detach && asJSON:
			return term.BadFlag("json", "cannot be used with --detach; see: atoll port ls --json")
		case detach:
			return a.publish(ctx, args[0], address, pairs)
		}
		b, err := a.Find(ctx, args[0])
		if err != nil {
			return err
		}
		f := &forwarder{env: a.Env, sandbox: b, asJSON: asJSON}
		if ip := net.ParseIP(address); ip == nil || !ip.IsLoopback() {
			a.Say("warning", "everyone who can reach "+address+" can reach the sandbox")
		}
		return f.run(ctx, address, pairs)
	})
	return cmd
}

// forwardPair is what one argument asks for; local 0 is any port.
type forwardPair struct{ local, remote uint16 }

func parseForwards(args []string) ([]forwardPair, error) {
	pairs := make([]forwardPair, 0, len(args))
	for _, arg := range args {
		local, remote, two := strings.Cut(arg, ":")
		if !two {
			remote = local
		}
		to, err := request.ParsePort(remote)
		if err != nil {
			return nil, err
		}
		p := forwardPair{remote: to}
		if local != "" && local != "0" {
			if p.local, err = request.ParsePort(local); err != nil {
				return nil, err
			}
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

func (a portCommands) portTokenCmd() *cobra.Command {
	var expires resource.DurationFlag
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "token SANDBOX [PORT...]",
		Short: "Make a token with which others reach ports over HTTP",
		Long: `Token writes a token to standard output. A client that sends it to the daemon in the
header Atoll-Token reaches the named ports, or all ports, and nothing else. The token
ends when it expires, when the sandbox is removed, or when the key that made it ends.`,
		Example: `  atoll port token --expires 1h demo 8000`,
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().Var(&expires, "expires", "how long it is valid (default 24h)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		opts := atoll.PortTokenOptions{Expires: time.Duration(expires)}
		for _, arg := range args[1:] {
			port, err := request.ParsePort(arg)
			if err != nil {
				return err
			}
			opts.Ports = append(opts.Ports, port)
		}
		s, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		t, err := s.PortToken(ctx, opts)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(t)
		}
		return a.Println(t.Token)
	})
	return cmd
}

func (a portCommands) portOpenCmd() *cobra.Command {
	var stay, asJSON bool
	var expires resource.DurationFlag
	cmd := &cobra.Command{
		Use:   "open SANDBOX PORT",
		Short: "Open an HTTP server of a sandbox in the browser",
		Long: `Open shows an HTTP server of a sandbox in the browser, and prints the link for where
there is no browser. The link works once: the browser then has a cookie for this port.
Nothing is published, and the page has a host name of its own, so it cannot act on other
sandboxes or on the daemon.`,
		Example: `  atoll port open demo 8000
  atoll port open --no-browser --expires 1h demo 8000`,
		Args: cobra.ExactArgs(2), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().BoolVar(&stay, "no-browser", false, "only print the link")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the link as JSON")
	cmd.Flags().Var(&expires, "expires", "how long the browser may use the port (default 24h)")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		port, err := request.ParsePort(args[1])
		if err != nil {
			return err
		}
		s, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		base, err := a.portBase(ctx, s, port)
		if err != nil {
			return err
		}
		t, err := s.PortToken(ctx, atoll.PortTokenOptions{Ports: []uint16{port}, Expires: time.Duration(expires)})
		if err != nil {
			return err
		}
		link := base + "/.atoll/open#" + t.Token
		if asJSON {
			return a.PrintJSON(pageLink{URL: link, Expires: t.Expires})
		}
		return a.OpenLink(ctx, link, stay)
	})
	return cmd
}

// portBase returns the address of a port for a browser. If the daemon serves no
// address of TCP, it begins to serve that of the console.
func (a portCommands) portBase(ctx context.Context, s *atoll.Sandbox, port uint16) (string, error) {
	if address, err := s.PortURL(port); err == nil {
		return strings.TrimSuffix(address, "/"), nil
	}
	c, err := a.MustDaemon(ctx)
	if err != nil {
		return "", err
	}
	u, err := consoleBase(ctx, c)
	if err != nil {
		return "", err
	}
	host := u.Hostname()
	if host == "localhost" || net.ParseIP(host) != nil {
		host = "localhost"
	}
	return fmt.Sprintf("%s://%d-%s.%s", u.Scheme, port, s.ID(), net.JoinHostPort(host, u.Port())), nil
}

// consoleBase returns the address of the console. If the daemon does not serve
// one, it begins to.
func consoleBase(ctx context.Context, c *atoll.Client) (*url.URL, error) {
	link, err := c.Admin().OpenConsole(ctx, operator.ConsoleSettings{})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

func (a portCommands) portURLCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "url SANDBOX PORT",
		Short: "Say where a port is shown over HTTP",
		Long: `Url writes the address at which the daemon serves an HTTP server of the sandbox to
clients that send a token (see atoll port token). You must use the daemon over TCP.`,
		Example: `  ATOLL_HOST=http://127.0.0.1:7070 atoll port url demo 8000`,
		Args:    cobra.ExactArgs(2), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		port, err := request.ParsePort(args[1])
		if err != nil {
			return err
		}
		s, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		url, err := s.PortURL(port)
		if err != nil {
			return err
		}
		return a.Println(url)
	})
	return cmd
}
