// Package term is the terminal of the command line: what commands print and read,
// how they say what went wrong, and the exit code for it.
//
// Data goes to standard output, prose to standard error.
package term

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
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// Everything that Atoll itself says goes through the functions in this file. They
// make visible what could do something to a terminal, because much of it was chosen
// by others: a daemon, a provider, or programs in a sandbox. Only what commands in
// sandboxes write, and files, are passed on as they are.

// WholeRunes cuts off a character that was cut in two.
func WholeRunes(data []byte) []byte {
	for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
		tail := data[len(data)-back:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return data[:len(data)-back]
			}
			break
		}
	}
	return data
}

// ANSI colours, used on a terminal only.
const (
	Red    = "\x1b[31m"
	Green  = "\x1b[32m"
	Yellow = "\x1b[33m"
	Cyan   = "\x1b[36m"
	reset  = "\x1b[0m"
)

// Painted is text that is printed as it is: visible text, which may contain colours
// and line breaks of ours.
type Painted string

// Paint makes text visible, and colours it if w is a terminal, unless the
// environment forbids it (no-color.org).
func (t *Term) Paint(w io.Writer, color, text string) Painted {
	text = Visible(text)
	if no, _ := t.LookupEnv("NO_COLOR"); no != "" || color == "" || !IsTerminal(w) {
		return Painted(text)
	}
	if kind, _ := t.LookupEnv("TERM"); kind == "dumb" {
		return Painted(text)
	}
	return Painted(color + text + reset)
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Hidden reports whether a terminal would not show a character as such: it is a
// control character, changes the direction of text, or has no width. Line breaks and
// tabs are not hidden.
func Hidden(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return r == utf8.RuneError || !unicode.IsPrint(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// Visible makes text harmless to a terminal: what comes from elsewhere must not move
// the cursor, change the title or hide other text.
func Visible(s string) string {
	if strings.IndexFunc(s, Hidden) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !Hidden(r):
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
	return Visible(strings.NewReplacer("\n", " ", "\t", " ").Replace(s))
}

// OneLine is inline, cut to a width for tables.
func OneLine(s string, width int) string {
	s = inline(s)
	if utf8.RuneCountInString(s) > width {
		s = string([]rune(s)[:width-1]) + "…"
	}
	return s
}

// Writef formats as fmt.Fprintf does. Every argument that is not a number or painted
// becomes one line of visible text.
func Writef(w io.Writer, format string, args ...any) error {
	if false {
		_ = fmt.Sprintf(format, args...) // go vet checks the arguments of callers
	}
	_, err := fmt.Fprintf(w, format, shown(args)...)
	return err
}

// Printf writes to standard output as writef does.
func (t *Term) Printf(format string, args ...any) error { return Writef(t.Stdout, format, args...) }

// Println writes one line to standard output. The arguments are shown as those of
// writef.
func (t *Term) Println(args ...any) error {
	_, err := fmt.Fprintln(t.Stdout, shown(args)...)
	return err
}

// Notef writes prose to standard error as writef does. If it cannot be written, there
// is nobody to tell.
func (t *Term) Notef(format string, args ...any) { _ = Writef(t.Stderr, format, args...) }

// shown returns arguments for fmt with which nothing hidden is printed.
func shown(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		if text, ok := arg.(Painted); ok {
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
	whole := WholeRunes(text)
	v.part = text[len(whole):]
	if _, err := io.WriteString(v.w, Visible(string(whole))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// VisibleOnly returns a writer that makes visible what it passes on to w.
func VisibleOnly(w io.Writer) io.Writer { return &visibleWriter{w: w} }

// PlainOutput is standard output for text that is written byte by byte, unless it goes
// to a terminal.
func (t *Term) PlainOutput() io.Writer {
	if IsTerminal(t.Stdout) {
		return VisibleOnly(t.Stdout)
	}
	return t.Stdout
}

// PrintJSON writes a value for programs.
func (t *Term) PrintJSON(v any) error { return WriteJSON(t.Stdout, v, "  ") }

// PrintJSONLine writes a value for programs, on one line.
func (t *Term) PrintJSONLine(v any) error { return WriteJSON(t.Stdout, v, "") }

// WriteJSON writes a value as JSON and a line break, without hidden characters.
func WriteJSON(w io.Writer, v any, indent string) error {
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
	if bytes.IndexFunc(text, Hidden) < 0 {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case !Hidden(r):
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

// Table writes rows in aligned columns under a header.
func (t *Term) Table(header string, rows [][]string) error {
	return t.Printf("%s", Painted(TableText(header, rows)))
}

// TableText is a table as text.
func TableText(header string, rows [][]string) string {
	return Columns(strings.Fields(header), rows, 100)
}

// Columns aligns rows under their titles. No cell is wider than width.
func Columns(titles []string, rows [][]string, width int) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.Join(titles, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = OneLine(cell, width)
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // into memory
	return b.String()
}
