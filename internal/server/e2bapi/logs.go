package e2bapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// logAPI shows the events of a sandbox as log entries.
type logAPI struct {
	finder
	events Events
}

// logSelection selects entries.
type logSelection struct {
	since, until time.Time // zero: no limit
	limit        int
	newest       bool // the last entries, the newest first
	match        func(*logEntry) bool
}

// logEntry is an event as a line for a person.
type logEntry struct {
	Time    time.Time
	Level   string // debug, info, warn or error
	Message string
	Fields  map[string]string
}

// logPage is how many events are read at once. A sandbox rarely has more.
const logPage = 1000

// entries returns at most q.limit entries of a sandbox.
func (h *logAPI) entries(ctx context.Context, id sandbox.ID, q logSelection) ([]logEntry, error) {
	var out []logEntry
	want := sandbox.EventQuery{Sandbox: id, Since: q.since, Until: q.until, Page: logPage}
	for q.newest || len(out) < q.limit {
		events, err := h.events.Events(ctx, want)
		if err != nil {
			return nil, err
		}
		for i := range events {
			want.After = events[i].Seq
			if e := entryOf(&events[i]); q.match == nil || q.match(&e) {
				out = append(out, e)
			}
		}
		if q.newest && len(out) > q.limit { // keep only the last ones
			out = slices.Delete(out, 0, len(out)-q.limit)
		}
		if len(events) < logPage {
			break
		}
	}
	if q.newest {
		slices.Reverse(out)
	}
	return out[:min(len(out), q.limit)], nil
}

// eventLevels are the levels of events that are not "info".
var eventLevels = map[string]string{
	"attempted": "debug", "denied": "warn", "failed": "error", "unknown": "error", "sandbox.lost": "error",
	"egress.denied": "warn", "egress.failed": "warn", "egress.limited": "warn",
}

func entryOf(e *sandbox.Event) logEntry {
	out := logEntry{
		Time: e.Time, Level: cmp.Or(eventLevels[e.Type], "info"), Message: e.Type,
		Fields: map[string]string{"op": e.Op, "seq": strconv.FormatInt(e.Seq, 10)},
	}
	switch e.Type {
	case "attempted":
		out.Message = "about to do " + e.Op
	case "denied", "failed", "unknown", "sandbox.lost":
		out.Message += ": " + e.Op
	}
	if what := cmp.Or(e.Program, e.Subject); what != "" {
		out.Message += " " + what
	}
	if e.Exit != nil {
		out.Fields["exitCode"] = strconv.Itoa(*e.Exit)
		out.Message += fmt.Sprintf(" (exit status %d)", *e.Exit)
	}
	if e.Code != "" {
		out.Fields["code"] = string(e.Code)
	}
	return out
}

// logLine and logRecord are an entry as clients see it.
type logLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

type logRecord struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

func recordOf(e *logEntry) logRecord {
	fields := e.Fields
	if fields == nil {
		fields = map[string]string{}
	}
	return logRecord{stamp(e.Time), e.Level, e.Message, fields}
}

// logger is what E2B's command line shows as the source of an entry.
const logger = "atoll"

// lineOf is an entry as a line of JSON text, which E2B's command line decodes.
func lineOf(e *logEntry) string {
	line := map[string]string{}
	maps.Copy(line, e.Fields)
	line["level"], line["logger"], line["message"] = e.Level, logger, e.Message
	text, _ := json.Marshal(line) // strings cannot fail
	return string(text)
}

const maxLogs = 1000

// logQuery parses the parameters of both generations. at is the name of the
// time parameter.
func logQuery(q url.Values, at string) (l logSelection, err error) {
	l.limit = maxLogs
	if text := q.Get("limit"); text != "" {
		if l.limit, err = strconv.Atoi(text); err != nil || l.limit < 0 || l.limit > maxLogs {
			return l, invalid("limit", "is not between 0 and %d", maxLogs)
		}
	}
	if text := q.Get(at); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 {
			return l, invalid(at, "is not a time in milliseconds since 1970")
		}
		l.since = time.UnixMilli(ms)
	}
	return l, nil
}

// logsV1 serves the logs for old clients: as lines and as entries.
func (h *logAPI) logsV1(w http.ResponseWriter, r *http.Request) error {
	q, err := logQuery(r.URL.Query(), "start")
	if err != nil {
		return err
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	entries, err := h.entries(r.Context(), s.ID, q)
	if err != nil {
		return err
	}
	lines, records := []logLine{}, []logRecord{}
	for i := range entries {
		e := &entries[i]
		lines = append(lines, logLine{stamp(e.Time), lineOf(e)})
		records = append(records, recordOf(e))
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": records})
	return nil
}

var logLevels = []string{"debug", "info", "warn", "error"}

// logs serves the logs from a time on or, backward, up to it.
func (h *logAPI) logs(w http.ResponseWriter, r *http.Request) error {
	given := r.URL.Query()
	q, err := logQuery(given, "cursor")
	if err != nil {
		return err
	}
	switch given.Get("direction") {
	case "", "forward":
	case "backward":
		q.newest, q.until, q.since = true, q.since, time.Time{}
	default:
		return invalid("direction", "is neither forward nor backward")
	}
	least := 0
	if level := given.Get("level"); level != "" {
		if least = slices.Index(logLevels, level); least < 0 {
			return invalid("level", "is not one of %s", strings.Join(logLevels, ", "))
		}
	}
	search := given.Get("search")
	q.match = func(e *logEntry) bool {
		return slices.Index(logLevels, e.Level) >= least && strings.Contains(e.Message, search)
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	entries, err := h.entries(r.Context(), s.ID, q)
	if err != nil {
		return err
	}
	records := []logRecord{}
	for i := range entries {
		records = append(records, recordOf(&entries[i]))
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": records})
	return nil
}
