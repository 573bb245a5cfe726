package e2bapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Logs tells what happened to a sandbox.
type Logs interface {
	// Logs returns at most limit entries since a time, the oldest first or,
	// with newest, the last ones, the newest first.
	Logs(ctx context.Context, id sandbox.ID, q LogQuery) ([]LogEntry, error)
}

// LogQuery selects entries.
type LogQuery struct {
	Since, Until time.Time // zero: no bound
	Limit        int
	Newest       bool
	Match        func(*LogEntry) bool
}

// LogEntry is something that happened to a sandbox.
type LogEntry struct {
	Time    time.Time
	Level   string // debug, info, warn or error
	Message string
	Fields  map[string]string
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

func recordOf(e *LogEntry) logRecord {
	fields := e.Fields
	if fields == nil {
		fields = map[string]string{}
	}
	return logRecord{stamp(e.Time), e.Level, e.Message, fields}
}

const maxLogs = 1000

// logQuery reads what both generations understand; at is the name of the time.
func logQuery(q url.Values, at string) (l LogQuery, err error) {
	l.Limit = maxLogs
	if text := q.Get("limit"); text != "" {
		if l.Limit, err = strconv.Atoi(text); err != nil || l.Limit < 0 || l.Limit > maxLogs {
			return l, invalid("limit", "is not between 0 and %d", maxLogs)
		}
	}
	if text := q.Get(at); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 {
			return l, invalid(at, "is not a time in milliseconds since 1970")
		}
		l.Since = time.UnixMilli(ms)
	}
	return l, nil
}

// logsV1 are the logs for old clients: as lines, and as entries.
func (h *Handler) logsV1(w http.ResponseWriter, r *http.Request) error {
	q, err := logQuery(r.URL.Query(), "start")
	if err != nil {
		return err
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	entries, err := h.service.Logs(r.Context(), s.ID, q)
	if err != nil {
		return err
	}
	lines, records := []logLine{}, []logRecord{}
	for i := range entries {
		e := &entries[i]
		lines = append(lines, logLine{stamp(e.Time), fmt.Sprintf("%s %s", e.Level, e.Message)})
		records = append(records, recordOf(e))
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": records})
	return nil
}

var logLevels = []string{"debug", "info", "warn", "error"}

// logs are the logs from a time on or, backward, up to it.
func (h *Handler) logs(w http.ResponseWriter, r *http.Request) error {
	given := r.URL.Query()
	q, err := logQuery(given, "cursor")
	if err != nil {
		return err
	}
	switch given.Get("direction") {
	case "", "forward":
	case "backward":
		q.Newest, q.Until, q.Since = true, q.Since, time.Time{}
	default:
		return invalid("direction", "is neither forward nor backward")
	}
	least := 0
	if level := given.Get("level"); level != "" {
		if least = slices.Index(logLevels, level); least < 0 {
			return invalid("level", "is none of %s", strings.Join(logLevels, ", "))
		}
	}
	search := given.Get("search")
	q.Match = func(e *LogEntry) bool {
		return slices.Index(logLevels, e.Level) >= least && strings.Contains(e.Message, search)
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	entries, err := h.service.Logs(r.Context(), s.ID, q)
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
