package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/term"
)

// ANSI colours, used on a terminal only.
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	reset  = "\x1b[0m"
)

// paint colours text if w is a terminal, unless the environment forbids it
// (no-color.org).
func (a *App) paint(w io.Writer, color, text string) string {
	if no, _ := a.LookupEnv("NO_COLOR"); no != "" || color == "" || !isTerminal(w) {
		return text
	}
	if kind, _ := a.LookupEnv("TERM"); kind == "dumb" {
		return text
	}
	return color + text + reset
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printJSON writes a value for programs.
func (a *App) printJSON(v any) error {
	enc := json.NewEncoder(a.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table writes rows in aligned columns under a header.
func (a *App) table(header string, rows [][]string) error {
	_, err := io.WriteString(a.Stdout, tableText(header, rows))
	return err
}

// tableText is a table as text.
func tableText(header string, rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.ReplaceAll(header, " ", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell, 100)
		}
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // into memory
	return b.String()
}

// ago formats how long ago a time was.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}
