package term

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
)

// LabelText shows labels as KEY=VALUE, in the order of their keys.
func LabelText(labels map[string]string) string {
	pairs := make([]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, k+"="+labels[k])
	}
	return strings.Join(pairs, ",")
}

// CommandText shows an argument list as it could be typed.
func CommandText(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if arg == "" || strings.ContainsAny(arg, " \t\n'\"\\$`*?;&|<>(){}[]#~!") {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// OrDash returns a text, or a dash in its place if it is empty.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// Ago formats how long ago a time was.
func Ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}

// BytesText shows a number of bytes with a binary unit.
func BytesText(n int64) string { return units.BytesSize(float64(n)) }
