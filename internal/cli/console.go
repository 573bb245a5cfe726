package cli

import (
	"context"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func (a *Env) consoleCmd() *cobra.Command {
	var s operator.ConsoleSettings
	var stay, asJSON bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open the web console",
		Long: `Console opens the web console in the browser, signed in, and prints the link for where
there is no browser. The link signs in once, within two minutes. A page stays signed in
for 12 hours.

The daemon serves the console at ` + operator.DefaultConsole + `, now and after later starts, or where it
serves clients over TCP already (atoll up --listen). Elsewhere, open /console/ of the
daemon's address and sign in with an API key; see: atoll key create.`,
		Example: `  atoll console
  atoll console --no-browser`,
		Args:    cobra.NoArgs,
		GroupID: groupDaemon,
	}
	cmd.Flags().StringVar(&s.Listen, "listen", "", "loopback address for the console, HOST:PORT (default "+operator.DefaultConsole+")")
	cmd.Flags().BoolVar(&stay, "no-browser", false, "only print the link")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the link as JSON")
	cmd.RunE = a.withDaemon(func(ctx context.Context, c *atoll.Client, _ []string) error {
		link, err := c.Admin().OpenConsole(ctx, s)
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(link)
		}
		return a.openLink(ctx, link.URL, stay)
	})
	return cmd
}

// openLink prints a link that works once, and opens it in the browser unless
// stay is set or there is none.
func (a *Term) openLink(ctx context.Context, link string, stay bool) error {
	if err := a.println(link); err != nil {
		return err
	}
	if stay || !a.hasScreen() || !browse(ctx, link) {
		a.notef("atoll: open the link in a browser; it works once\n")
	}
	return nil
}

// hasScreen reports whether a browser can be shown here.
func (a *Term) hasScreen() bool {
	for _, name := range []string{"DISPLAY", "WAYLAND_DISPLAY"} {
		if v, _ := a.LookupEnv(name); v != "" {
			return true
		}
	}
	return runtime.GOOS != "linux"
}

// browse opens a link in the user's browser, and reports whether one took it.
// Other users can read the arguments of programs, so the browser gets a file of
// this user that leads to the link.
func browse(ctx context.Context, link string) bool {
	dir, err := os.UserCacheDir()
	if err != nil || os.MkdirAll(filepath.Join(dir, "atoll"), 0o700) != nil {
		return false
	}
	page := filepath.Join(dir, "atoll", "console.html")
	text := "<!doctype html><meta charset=utf-8><title>Atoll</title><meta http-equiv=refresh content=\"0;url=" + html.EscapeString(link) + "\">\n"
	_ = os.Remove(page) // one of another mode
	if os.WriteFile(page, []byte(text), 0o600) != nil {
		return false
	}
	command := []string{"xdg-open", page}
	switch runtime.GOOS {
	case "darwin":
		command[0] = "open"
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler", page}
	}
	return exec.CommandContext(ctx, command[0], command[1:]...).Run() == nil //nolint:gosec // a fixed program, and a file of ours
}
