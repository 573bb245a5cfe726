package term

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Escape sequences: switch to the alternate screen, so that the old content
// comes back, and hide the cursor.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	// ResetScreen ends what a program in a shared terminal has set: the alternate
	// screen, scrolling, mouse, paste and colours.
	ResetScreen = "\x1b[?1049l\x1b[r\x1b[?1;1000;1002;1003;1006;2004l\x1b[?7;25h\x1b[0m\x1b[999;1H\r\n"
)

// Watch repeatedly shows the result of frame until ctx ends, which is not an
// error. On a terminal each frame replaces the previous one, and the terminal
// is restored at the end; elsewhere frames follow each other.
func (t *Term) Watch(ctx context.Context, every time.Duration, frame func(context.Context) (string, error)) (err error) {
	screen, _ := t.Stdout.(*os.File)
	if !IsTerminal(t.Stdout) {
		screen = nil
	}
	began := false
	defer func() {
		if began {
			_ = t.Printf("%s", Painted(leaveScreen))
		}
	}()
	for {
		text, err := frame(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if screen != nil && !began {
			began = true
			text = enterScreen + fit(screen, text)
		} else if screen != nil {
			text = fit(screen, text)
		}
		if err := t.Printf("%s", Painted(text)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// fit makes of a frame what fills the screen: no line is longer and none is
// below it.
func fit(screen *os.File, text string) string {
	cols, rows, err := term.GetSize(int(screen.Fd()))
	if err != nil || cols <= 0 || rows <= 1 {
		cols, rows = 80, 24
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if more := len(lines) - (rows - 1); more > 0 {
		lines = append(lines[:rows-2], fmt.Sprintf("… and %d more", more+1))
	}
	var b strings.Builder
	b.WriteString(home)
	for _, line := range lines {
		b.WriteString(OneLine(line, cols) + clearLine + "\r\n")
	}
	return b.String() + clearBelow
}
