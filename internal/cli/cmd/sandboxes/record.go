package sandboxes

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// recordCommands are atoll record.
type recordCommands struct{ *target.Env }

func (a recordCommands) recordCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "record", Short: "Record terminals and desktops of sandboxes", GroupID: resource.GroupSandbox,
		Long: `A recording of a terminal has what the terminal that viewers share showed, and when, as
an asciicast file for asciinema and its players. A recording of a desktop is an MP4 file,
which browsers play. The daemon records, without any viewer, and keeps the recording until
it is removed, also when the sandbox is gone.`,
		Example: `  atoll record ls`,
	}, a.startCmd(), a.stopCmd(), a.listCmd(), a.getCmd(), a.removeCmd())
}

func (a recordCommands) startCmd() *cobra.Command {
	var n viewing.NewRecording
	var desktop bool
	var size string
	var limit time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use: "start [flags] SANDBOX", Short: "Start a recording, and print its id",
		Long: `Start records the login shell that viewers share; see: atoll terminal. With --process it
records a background command on a terminal, as started by: atoll run -d -i -t.

With --desktop it records the display, and starts the desktop if it does not run. The image
needs ffmpeg, as the image desktop has it. Pictures have no secrets removed.

The recording goes on until it is stopped, the command ends, or --max is reached. While it
runs, the sandbox does not count as idle. Secrets that are removed from the output of the
sandbox are removed from the recording of a terminal, too.`,
		Example: `  atoll record start demo
  atoll record start --desktop --fps 10 --max 1h demo`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	flags := cmd.Flags()
	flags.BoolVar(&desktop, "desktop", false, "record the desktop, instead of a terminal")
	flags.IntVar(&n.FPS, "fps", 0, "pictures of the desktop per second, at most 30 (default 15)")
	flags.StringVar(&n.Process, "process", "", "id of a background command on a terminal, instead of the login shell")
	flags.StringVar(&n.Title, "title", "", "a title for players")
	flags.StringVar(&size, "size", "", "size of the terminal, COLUMNSxROWS, unless someone uses it (default 80x24)")
	flags.DurationVar(&limit, "max", 0, "end the recording after this time (default 24h, of a desktop 10m)")
	flags.BoolVar(&n.Input, "input", false, "also record what viewers type, even if the terminal does not show it, such as passwords")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		if desktop {
			n.Kind = viewing.RecordDesktop
		}
		if n.FPS < 0 || n.FPS > 30 || flags.Changed("fps") && n.FPS == 0 {
			return term.BadFlag("fps", "is not 1 to 30")
		}
		if size != "" {
			v, err := numbers(size, "x", 2)
			if err != nil || v[0] <= 0 || v[1] <= 0 || v[0] > 500 || v[1] > 200 {
				return term.BadFlag("size", "is not COLUMNSxROWS, of at most 500x200")
			}
			n.Size = sandbox.WindowSize{Cols: uint16(v[0]), Rows: uint16(v[1])}
		}
		if limit < 0 || limit > 0 && limit < time.Second {
			return term.BadFlag("max", "is less than a second")
		}
		n.Max = int64(limit / time.Second)
		sb, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		r, err := sb.Record(ctx, n)
		return a.printRecording(r, asJSON, err)
	})
	for _, terminal := range []string{"process", "size", "input"} {
		cmd.MarkFlagsMutuallyExclusive("desktop", terminal)
		cmd.MarkFlagsMutuallyExclusive("fps", terminal)
	}
	return cmd
}

func (a recordCommands) printRecording(r viewing.Recording, asJSON bool, err error) error {
	switch {
	case err != nil:
		return err
	case asJSON:
		return a.PrintJSON(r)
	}
	return a.Println(r.ID)
}

func (a recordCommands) stopCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "stop ID", Short: "End a recording, and wait until it is stored", Example: `  atoll record stop "$(atoll record start demo)"`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, recordingIDs),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		r, err := c.StopRecording(ctx, args[0])
		return a.printRecording(r, asJSON, err)
	})
	return cmd
}

func (a recordCommands) listCmd() *cobra.Command {
	var q viewing.RecordingQuery
	cmd := &cobra.Command{
		Use: "ls [flags] [SANDBOX]", Short: "List recordings, of all sandboxes or one, newest first", Example: `  atoll record ls`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().StringVar(&q.Session, "session", "", "only recordings that were started for a session")
	return resource.DaemonList(a.Env, cmd, "ID SANDBOX KIND STATE STARTED DURATION SIZE TITLE", func(ctx context.Context, c *atoll.Client, args []string) (all []viewing.Recording, err error) {
		if len(args) > 0 {
			q.Sandbox = args[0]
		}
		for r, err := range c.Recordings(ctx, q) {
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
		return all, nil
	}, func(r viewing.Recording) []string {
		state := string(r.State)
		if r.Reason != "" {
			state += " (" + string(r.Reason) + ")"
		}
		until := r.Ended
		if until.IsZero() {
			until = time.Now()
		}
		return []string{r.ID, r.Name, r.Kind, state, term.Ago(r.Started), until.Sub(r.Started).Round(time.Second).String(), units.BytesSize(float64(r.Size)), term.OneLine(r.Title, 40)}
	})
}

func (a recordCommands) getCmd() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "get [flags] ID [FILE]", Short: "Write a recording to a file or to standard output",
		Long: `Get writes the file of a recording: asciicast of a terminal, which asciinema play FILE
plays, and MP4 of a desktop. Of a recording that runs, it writes what was recorded until now.`,
		Example: `  atoll record get "$(atoll record start demo)" demo.cast`,
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: resource.CompleteOf(a.Env, recordingIDs),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the file, instead of the argument FILE")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		if len(args) > 1 && output != "" {
			return term.BadFlag("output", "is given beside the argument %s", args[1])
		}
		name := output
		if len(args) > 1 {
			name = args[1]
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		content, err := c.FetchRecording(ctx, args[0])
		if err != nil {
			return err
		}
		defer content.Close()
		if name == "" || name == "-" {
			_, err = io.Copy(a.PlainOutput(), content)
			return err
		}
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		if closing := file.Close(); err == nil {
			err = closing
		}
		return err
	})
	return cmd
}

func (a recordCommands) removeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm ID...", Short: "Remove recordings; one that runs ends", Example: `  atoll record rm "$(atoll record start demo)"`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, recordingIDs),
	}
	return resource.DaemonRemove(a.Env, cmd, "", func(ctx context.Context, c *atoll.Client, name string, _ bool) error {
		return c.RemoveRecording(ctx, name)
	})
}

func recordingIDs(ctx context.Context, c *atoll.Client) (ids []string, err error) {
	for r, err := range c.Recordings(ctx, viewing.RecordingQuery{}) {
		if err != nil {
			return ids, err
		}
		ids = append(ids, r.ID)
	}
	return ids, nil
}
