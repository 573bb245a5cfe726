package resource

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/internal/cli/term"
)

// SpanFlags select what happened in a span of time.
type SpanFlags struct{ since, until string }

// Register registers --since and --until.
func (f *SpanFlags) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.since, "since", "", "only events since this time: an age such as 10m, or a time")
	flags.StringVar(&f.until, "until", "", "only events before this time: an age such as 10m, or a time")
}

// Read returns the start and end of the span; zero means open.
func (f *SpanFlags) Read() (since, until time.Time, err error) {
	if since, err = ParseTime("since", f.since); err == nil {
		until, err = ParseTime("until", f.until)
	}
	if err == nil && !since.IsZero() && !until.IsZero() && until.Before(since) {
		err = term.BadFlag("until", "%q is before %q", f.until, f.since)
	}
	return since, until, err
}

// layouts are the accepted formats of a time. Without a zone, it is in local time.
var layouts = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, time.DateOnly}

// ParseTime parses a time or an age. An empty text is the zero time.
func ParseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range layouts {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, nil
		}
	}
	if at, ok := sinceEpoch(text); ok {
		return at, nil
	}
	var age DaysFlag
	if age.Set(text) != nil || age <= 0 {
		return time.Time{}, term.BadFlag(flag, "%q is neither an age such as 90d nor a time such as 2026-01-31T00:00:00Z or 2026-01-31", text)
	}
	return time.Now().Add(-time.Duration(age)), nil
}

// sinceEpoch reads seconds since 1970, as docker takes them. Less than some
// thirty years of them are an age.
func sinceEpoch(text string) (time.Time, bool) {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "0123456789.") != "" || seconds < 1e9 || seconds > 9e9 {
		return time.Time{}, false
	}
	return time.Unix(0, int64(seconds*1e9)), true
}
