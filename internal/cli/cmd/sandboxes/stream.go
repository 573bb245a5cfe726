package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// streamCommands are atoll stream and atoll desktop.
type streamCommands struct{ *target.Env }

// linkFlags are the flags of commands that print a link to a stream.
type linkFlags struct {
	view, stay, asJSON bool
	ttl                time.Duration
	base               string
}

const (
	// linkTTL is how long a page that a link opened may connect again.
	linkTTL = 12 * time.Hour
	maxTTL  = 24 * time.Hour
)

var linkFlagNames = []string{"view", "ttl", "base", "no-browser", "json"}

func (f *linkFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.view, "view", false, "the link only watches")
	flags.DurationVar(&f.ttl, "ttl", linkTTL, "how long the page may connect, at most 24h; the link itself opens within ten minutes, once")
	flags.StringVar(&f.base, "base", "", "address of the daemon for the browser, such as that of a proxy (default: where the daemon serves the console)")
	flags.BoolVar(&f.stay, "no-browser", false, "only print the link")
	flags.BoolVar(&f.asJSON, "json", false, "print the link as JSON")
}

// used returns the name of one of the flags that was given, if any was.
func (f *linkFlags) used(cmd *cobra.Command) string {
	for _, name := range linkFlagNames {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

// pageLink is a link as JSON.
type pageLink struct {
	URL     string          `json:"url"`
	Expires time.Time       `json:"expires"` // of the link
	Stream  *viewing.Stream `json:"stream,omitempty"`
}

// openStream opens a stream of a sandbox in the browser.
func openStream(ctx context.Context, a *target.Env, name string, n viewing.NewStream, f *linkFlags) error {
	if f.ttl < time.Second || f.ttl > maxTTL {
		return term.BadFlag("ttl", "is not between 1s and 24h")
	}
	base, err := streamBase(ctx, a, f.base)
	if err != nil {
		return err
	}
	s, err := a.DaemonSandbox(ctx, name)
	if err != nil {
		return err
	}
	n.Mode, n.TTL, n.Link = "control", int64(f.ttl/time.Second), true
	if f.view {
		n.Mode = "view"
	}
	access, err := s.OpenStream(ctx, n)
	if err != nil {
		return err
	}
	link := strings.TrimSuffix(base, "/") + "/console/#" + access.Fragment()
	if f.asJSON {
		return a.PrintJSON(pageLink{URL: link, Expires: access.CodeExpires, Stream: &access.Stream})
	}
	return a.OpenLink(ctx, link, f.stay)
}

// streamBase returns the address of the daemon for a browser.
func streamBase(ctx context.Context, a *target.Env, given string) (string, error) {
	if given != "" {
		u, err := url.Parse(given)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return "", term.BadFlag("base", "is not an address such as https://example.com/atoll")
		}
		return u.String(), nil
	}
	c, err := a.MustDaemon(ctx)
	if err != nil {
		return "", err
	}
	if base := c.WebAddress(); base != "" {
		return base, nil
	}
	u, err := consoleBase(ctx, c)
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

func (a streamCommands) desktopCmd() *cobra.Command {
	var link linkFlags
	var port string
	cmd := &cobra.Command{
		Use:   "desktop [flags] SANDBOX",
		Short: "Open the desktop of a sandbox in the browser",
		Long: `Desktop starts the desktop of a sandbox unless it runs, opens it in the browser, and
prints the link for where there is no browser. The link works once, within ten minutes.
Whoever opens it needs no key, and sees this desktop and nothing else; with --view they
cannot use mouse and keyboard. To end it, see: atoll stream rm.

The image needs a display; build one with: make desktop-image. With --port it shows
the VNC server that listens on a port, and starts nothing.`,
		Example: `  atoll desktop --no-browser --port 5900 demo
  atoll desktop --view --ttl 1h --json --port 5900 demo`,
		GroupID: resource.GroupSandbox, Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	link.register(cmd)
	cmd.Flags().StringVar(&port, "port", "", "port of a VNC server in the sandbox (default: the desktop, which is started)")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) (err error) {
		n := viewing.NewStream{Kind: "desktop"}
		if port != "" {
			if n.Port, err = request.ParsePort(port); err != nil {
				return err
			}
		}
		return openStream(ctx, a.Env, args[0], n, &link)
	})
	return cmd
}

func (a streamCommands) streamCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "stream", Short: "List and end what viewers may see", GroupID: resource.GroupSandbox,
		Long: `A stream is the permission of viewers to see a terminal, a desktop or a port of a
sandbox. Links are streams, and so is every terminal or desktop in the console.`,
		Example: `  atoll stream ls demo`,
	}, a.listCmd(), a.removeCmd())
}

func (a streamCommands) listCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls SANDBOX", Short: "List streams, with their numbers of viewers",
		Example: `  atoll stream ls demo
  atoll stream ls --json demo`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		s, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		all, err := s.Streams(ctx)
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(all)
		}
		rows := make([][]string, len(all))
		for i, v := range all {
			what := v.Process
			if v.Port != 0 {
				what = fmt.Sprint(v.Port)
			}
			rows[i] = []string{v.ID, v.Kind, what, v.Mode, fmt.Sprint(v.Viewers), v.Expires.Local().Format(time.DateTime)}
		}
		return a.Table("ID KIND OF MODE VIEWERS EXPIRES", rows)
	})
	return cmd
}

func (a streamCommands) removeCmd() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "rm SANDBOX [ID...]", Short: "End streams, and disconnect their viewers",
		Example: `  atoll stream rm --all demo`,
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.Flags().BoolVar(&all, "all", false, "end all streams of the sandbox")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		ids := args[1:]
		if all == (len(ids) > 0) {
			return &term.UsageError{Message: "name the streams to end, or give --all", Hint: "to list them: atoll stream ls " + args[0]}
		}
		s, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		if all {
			found, err := s.Streams(ctx)
			if err != nil {
				return err
			}
			for _, v := range found {
				ids = append(ids, v.ID)
			}
		}
		var failed []error
		for _, id := range ids {
			err := s.RevokeStream(ctx, id)
			if all && sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue // it has just ended
			}
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	})
	return cmd
}
