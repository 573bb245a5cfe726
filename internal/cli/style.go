package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/docker/go-units"
	"golang.org/x/term"
)

// Everything that Atoll itself says goes through the functions in this file. They
// make visible what could do something to a terminal, because much of it was chosen
// by others: a daemon, a provider, or programs in a sandbox. Only what commands in
// sandboxes write, and files, are passed on as they are.

// Term is the terminal, or what stands for it: the streams and the environment of
// one run of the command line.
type Term struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
}

// ANSI colours, used on a terminal only.
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	reset  = "\x1b[0m"
)

// painted is text that is printed as it is: visible text, which may contain colours
// and line breaks of ours.
type painted string

// paint makes text visible, and colours it if w is a terminal, unless the
// environment forbids it (no-color.org).
func (a *Term) paint(w io.Writer, color, text string) painted {
	text = visible(text)
	if no, _ := a.LookupEnv("NO_COLOR"); no != "" || color == "" || !isTerminal(w) {
		return painted(text)
	}
	if kind, _ := a.LookupEnv("TERM"); kind == "dumb" {
		return painted(text)
	}
	return painted(color + text + reset)
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// hidden reports whether a terminal would not show a character as such: it is a
// control character, changes the direction of text, or has no width. Line breaks and
// tabs are not hidden.
func hidden(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return r == utf8.RuneError || !unicode.IsPrint(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// visible makes text harmless to a terminal: what comes from elsewhere must not move
// the cursor, change the title or hide other text.
func visible(s string) string {
	if strings.IndexFunc(s, hidden) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// inline is visible without line breaks.
func inline(s string) string {
	return visible(strings.NewReplacer("\n", " ", "\t", " ").Replace(s))
}

// oneLine is inline, cut to a width for tables.
func oneLine(s string, width int) string {
	s = inline(s)
	if utf8.RuneCountInString(s) > width {
		s = string([]rune(s)[:width-1]) + "…"
	}
	return s
}

// writef formats as fmt.Fprintf does. Every argument that is not a number or painted
// becomes one line of visible text.
func writef(w io.Writer, format string, args ...any) error {
	if false {
		_ = fmt.Sprintf(format, args...) // go vet checks the arguments of callers
	}
	_, err := fmt.Fprintf(w, format, shown(args)...)
	return err
}

// printf writes to standard output as writef does.
func (a *Term) printf(format string, args ...any) error { return writef(a.Stdout, format, args...) }

// println writes one line to standard output. The arguments are shown as those of
// writef.
func (a *Term) println(args ...any) error {
	_, err := fmt.Fprintln(a.Stdout, shown(args)...)
	return err
}

// notef writes prose to standard error as writef does. If it cannot be written, there
// is nobody to tell.
func (a *Term) notef(format string, args ...any) { _ = writef(a.Stderr, format, args...) }

// shown returns arguments for fmt with which nothing hidden is printed.
func shown(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		if text, ok := arg.(painted); ok {
			out[i] = string(text)
			continue
		}
		switch kind := reflect.ValueOf(arg).Kind(); {
		case kind >= reflect.Bool && kind <= reflect.Float64:
			out[i] = arg
		default:
			out[i] = inline(fmt.Sprint(arg))
		}
	}
	return out
}

// visibleWriter makes visible what is written to it. It keeps back the beginning of
// a character that is written in two parts.
type visibleWriter struct {
	w    io.Writer
	part []byte
}

func (v *visibleWriter) Write(p []byte) (int, error) {
	text := slices.Concat(v.part, p)
	whole := wholeRunes(text)
	v.part = text[len(whole):]
	if _, err := io.WriteString(v.w, visible(string(whole))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// visibleOnly returns a writer that makes visible what it passes on to w.
func visibleOnly(w io.Writer) io.Writer { return &visibleWriter{w: w} }

// plainOutput is standard output for text that is written byte by byte, unless it goes
// to a terminal.
func (a *Term) plainOutput() io.Writer {
	if isTerminal(a.Stdout) {
		return visibleOnly(a.Stdout)
	}
	return a.Stdout
}

// printJSON writes a value for programs.
func (a *Term) printJSON(v any) error { return writeJSON(a.Stdout, v, "  ") }

// printJSONLine writes a value for programs, on one line.
func (a *Term) printJSONLine(v any) error { return writeJSON(a.Stdout, v, "") }

// writeJSON writes a value as JSON and a line break, without hidden characters.
func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}

// escapeJSON replaces the hidden characters of JSON by their escapes, so that it
// means the same. They can only be in strings.
func escapeJSON(text []byte) []byte {
	if bytes.IndexFunc(text, hidden) < 0 {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

// table writes rows in aligned columns under a header.
func (a *Term) table(header string, rows [][]string) error {
	return a.printf("%s", painted(tableText(header, rows)))
}

// tableText is a table as text.
func tableText(header string, rows [][]string) string {
	return columns(strings.Fields(header), rows, 100)
}

// columns aligns rows under their titles. No cell is wider than width.
func columns(titles []string, rows [][]string, width int) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.Join(titles, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = oneLine(cell, width)
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
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
