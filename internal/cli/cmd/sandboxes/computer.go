package sandboxes

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// computerCommands are atoll computer.
type computerCommands struct{ *target.Env }

func (a computerCommands) computerCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "computer", Short: "Use the desktop of a sandbox: screenshots, mouse, keyboard, clipboard", GroupID: resource.GroupSandbox,
		Long: `The image needs a display; build one with: make desktop-image. The desktop is
started when it is used first. Places are pixels from the upper left.`,
		Example: `  atoll create --image desktop --memory 2g --name demo
  atoll computer screenshot demo screen.png
  atoll computer click demo 200 150`,
	}, a.startCmd(), a.screenshotCmd(), a.cursorCmd(), a.moveCmd(), a.clickCmd(), a.dragCmd(), a.scrollCmd(), a.typeCmd(), a.keyCmd(), a.copyCmd(), a.clipboardCmd())
}

// act carries out an action.
func (a computerCommands) act(ctx context.Context, name string, do viewing.ComputerAction) (out viewing.ComputerResult, err error) {
	sb, err := a.DaemonSandbox(ctx, name)
	if err != nil {
		return out, err
	}
	out, err = sb.UseComputer(ctx, viewing.ComputerRequest{Actions: []viewing.ComputerAction{do}})
	if err == nil && (do.Action == "screenshot" && out.Screenshot == nil || do.Action == "cursor" && out.Cursor == nil || do.Action == "clipboard" && out.Clipboard == nil) {
		err = &sandbox.Error{Code: sandbox.CodeInternal, Op: "computer.use", Message: "the answer of the daemon is incomplete"}
	}
	return out, err
}

// acting returns a command whose arguments make an action. example follows the
// name of the sandbox.
func (a computerCommands) acting(use, short, example string, args cobra.PositionalArgs, to func(args []string) (viewing.ComputerAction, error)) *cobra.Command {
	word, _, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args, ValidArgsFunction: resource.CompleteSandboxes(a.Env),
		Example: strings.TrimRight("  atoll computer "+word+" demo "+example, " "),
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		do, err := to(args[1:])
		if err != nil {
			return err
		}
		do.Action = word
		_, err = a.act(ctx, args[0], do)
		return err
	})
	return cmd
}

func (a computerCommands) startCmd() *cobra.Command {
	var size string
	var want viewing.Screen
	var asJSON bool
	cmd := &cobra.Command{
		Use: "start SANDBOX", Short: "Start the desktop, or give it another size",
		Long: `Start starts the desktop unless it runs, and prints its size. A desktop of another
size than --size is started again, which ends the programs on it.`,
		Example: `  atoll computer start demo
  atoll computer start --size 1920x1080 demo`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().StringVar(&size, "size", "", "size of the screen, WIDTHxHEIGHT (default 1280x800, or what it has)")
	cmd.Flags().IntVar(&want.DPI, "dpi", 0, "pixels per inch of a new display (default 96)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) (err error) {
		if size != "" {
			n, err := numbers(size, "x", 2)
			if err != nil || n[0] == 0 || n[1] == 0 {
				return term.BadFlag("size", "is not WIDTHxHEIGHT")
			}
			want.Width, want.Height = n[0], n[1]
		}
		sb, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		now, err := sb.StartDesktop(ctx, want)
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(now)
		}
		return a.Printf("%dx%d\n", now.Width, now.Height)
	})
	return cmd
}

func (a computerCommands) screenshotCmd() *cobra.Command {
	var region string
	cmd := &cobra.Command{
		Use: "screenshot SANDBOX [FILE]", Short: "Take a screenshot, as a PNG file",
		Example: `  atoll computer screenshot demo screen.png
  atoll computer screenshot --region 0,0,400,300 demo >corner.png`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().StringVar(&region, "region", "", "a part of the screen, X,Y,WIDTH,HEIGHT")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		do := viewing.ComputerAction{Action: "screenshot"}
		if region != "" {
			n, err := numbers(region, ",", 4)
			if err != nil || n[2] == 0 || n[3] == 0 {
				return term.BadFlag("region", "is not X,Y,WIDTH,HEIGHT")
			}
			do.Region = &viewing.Region{Point: viewing.Point{X: n[0], Y: n[1]}, Width: n[2], Height: n[3]}
		}
		toFile := len(args) == 2 && args[1] != "-"
		if !toFile && term.IsTerminal(a.Stdout) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "a terminal does not show pictures", Hint: "name a file: atoll computer screenshot SANDBOX FILE"}
		}
		out, err := a.act(ctx, args[0], do)
		switch {
		case err != nil:
			return err
		case toFile:
			return os.WriteFile(args[1], out.Screenshot.PNG, 0o666)
		}
		_, err = a.Stdout.Write(out.Screenshot.PNG)
		return err
	})
	return cmd
}

func (a computerCommands) cursorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cursor SANDBOX", Short: "Print where the pointer is", Example: "  atoll computer cursor demo",
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		out, err := a.act(ctx, args[0], viewing.ComputerAction{Action: "cursor"})
		if err == nil {
			err = a.Println(out.Cursor.X, out.Cursor.Y)
		}
		return err
	})
	return cmd
}

func (a computerCommands) moveCmd() *cobra.Command {
	return a.acting("move SANDBOX X Y", "Move the pointer", "200 150", cobra.ExactArgs(3), place)
}

func (a computerCommands) clickCmd() *cobra.Command {
	var do viewing.ComputerAction
	cmd := a.acting("click SANDBOX [X Y]", "Click, where the pointer is or elsewhere", "200 150 --count 2", cobra.RangeArgs(1, 3), func(args []string) (viewing.ComputerAction, error) {
		at, err := place(args)
		do.X, do.Y = at.X, at.Y
		return do, err
	})
	cmd.Flags().StringVar(&do.Button, "button", "left", "left, middle, right, back or forward")
	cmd.Flags().IntVar(&do.Count, "count", 1, "number of clicks; 2 is a double click")
	cmd.Flags().StringSliceVar(&do.Keys, "hold", nil, "key to hold, such as ctrl (repeatable)")
	return cmd
}

func (a computerCommands) dragCmd() *cobra.Command {
	var do viewing.ComputerAction
	cmd := a.acting("drag SANDBOX X Y X Y...", "Press a button, move through points, release", "100 100 300 200", cobra.MinimumNArgs(5), func(args []string) (viewing.ComputerAction, error) {
		n, err := numbers(strings.Join(args, ","), ",", len(args)/2*2)
		if err != nil {
			return do, err
		}
		for i := 0; i < len(n); i += 2 {
			do.Path = append(do.Path, viewing.Point{X: n[i], Y: n[i+1]})
		}
		return do, nil
	})
	cmd.Flags().StringVar(&do.Button, "button", "left", "left, middle or right")
	cmd.Flags().StringSliceVar(&do.Keys, "hold", nil, "key to hold, such as shift (repeatable)")
	return cmd
}

func (a computerCommands) scrollCmd() *cobra.Command {
	var up, down, left, right int
	cmd := a.acting("scroll SANDBOX [X Y]", "Turn the mouse wheel", "--down 3", cobra.RangeArgs(1, 3), func(args []string) (viewing.ComputerAction, error) {
		do, err := place(args)
		do.ScrollX, do.ScrollY = 100*(right-left), 100*(down-up)
		return do, err
	})
	cmd.Flags().IntVar(&up, "up", 0, "notches up")
	cmd.Flags().IntVar(&down, "down", 0, "notches down, at most 15")
	cmd.Flags().IntVar(&left, "left", 0, "notches to the left")
	cmd.Flags().IntVar(&right, "right", 0, "notches to the right")
	return cmd
}

func (a computerCommands) typeCmd() *cobra.Command {
	cmd := a.acting("type SANDBOX [TEXT]", "Type text; without TEXT, read it from standard input", "'hello'", cobra.RangeArgs(1, 2), func(args []string) (do viewing.ComputerAction, err error) {
		if len(args) == 1 {
			do.Text = args[0]
			return do, nil
		}
		do.Text, err = a.allInput()
		return do, err
	})
	cmd.Example += "\n  printf hello | atoll computer type demo"
	return cmd
}

// allInput reads standard input, as far as an action may take it.
func (a computerCommands) allInput() (string, error) {
	text, err := io.ReadAll(io.LimitReader(a.Stdin, viewing.MaxClipboard+1))
	return string(text), err
}

func (a computerCommands) copyCmd() *cobra.Command {
	cmd := a.acting("copy SANDBOX [TEXT]", "Put text into the clipboard; without TEXT, read it from standard input", "'hello'", cobra.RangeArgs(1, 2), func(args []string) (do viewing.ComputerAction, err error) {
		if len(args) == 1 {
			do.Text = args[0]
			return do, nil
		}
		do.Text, err = a.allInput()
		return do, err
	})
	cmd.Long = `Copy puts at most 1 MiB of text into the clipboard of the desktop. Programs there paste
it, for example with: atoll computer key SANDBOX ctrl+v. Nothing clears the clipboard.`
	cmd.Example += "\n  printf hello | atoll computer copy demo"
	return cmd
}

func (a computerCommands) clipboardCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "clipboard SANDBOX", Short: "Print the text of the clipboard",
		Long: `Clipboard prints what a program in the sandbox has copied, and nothing if there is no
text. A key that may only look cannot read it.`,
		Example: `  atoll computer clipboard demo`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		out, err := a.act(ctx, args[0], viewing.ComputerAction{Action: "clipboard"})
		if err == nil {
			_, err = io.WriteString(a.PlainOutput(), *out.Clipboard)
		}
		if err == nil && term.IsTerminal(a.Stdout) {
			err = a.Println()
		}
		return err
	})
	return cmd
}

func (a computerCommands) keyCmd() *cobra.Command {
	var do viewing.ComputerAction
	var hold time.Duration
	cmd := a.acting("key SANDBOX KEY...", "Press keys together", "ctrl+s", cobra.MinimumNArgs(2), func(args []string) (viewing.ComputerAction, error) {
		do.Keys, do.DurationMS = args, hold.Milliseconds()
		return do, nil
	})
	cmd.Long = `Key presses keys together. Names are those of X11, such as Return, Prior or KP_0, and
common ones such as enter, ctrl, cmd and ArrowUp.`
	cmd.Flags().IntVar(&do.Count, "count", 1, "how often to press them")
	cmd.Flags().DurationVar(&hold, "hold", 0, "how long to hold them")
	return cmd
}

// place reads X and Y, if they are given.
func place(args []string) (do viewing.ComputerAction, err error) {
	if len(args) == 0 {
		return do, nil
	}
	n, err := numbers(strings.Join(args, ","), ",", 2)
	if err == nil {
		do.X, do.Y = &n[0], &n[1]
	}
	return do, err
}

// numbers reads so many numbers that are not negative.
func numbers(text, between string, count int) ([]int, error) {
	parts := strings.Split(text, between)
	all := make([]int, 0, len(parts))
	for _, p := range parts {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: p, Message: "is not a number of pixels"}
		}
		all = append(all, int(n))
	}
	if len(all) != count {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: text, Message: "a place is two numbers, X and Y"}
	}
	return all, nil
}
