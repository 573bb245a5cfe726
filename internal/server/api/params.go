package api

import (
	"fmt"
	"iter"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

func pathParams(path string) (names []string) {
	for _, m := range pathParam.FindAllStringSubmatch(path, -1) {
		names = append(names, m[1])
	}
	return names
}

func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// query parses the query parameters of a request, and remembers the first
// error.
type query struct {
	r   *http.Request
	err error
}

func (q *query) get(name string) string { return q.r.URL.Query().Get(name) }

func (q *query) bool(name string) bool {
	text := q.get(name)
	if text == "" {
		return false
	}
	v, err := strconv.ParseBool(text)
	if err != nil && q.err == nil {
		q.err = invalid(name, "is neither true nor false")
	}
	return v
}

func (q *query) int(name string, base, bits int) int64 {
	text := q.get(name)
	if text == "" {
		return 0
	}
	v, err := strconv.ParseInt(text, base, bits)
	if err != nil && q.err == nil {
		q.err = invalid(name, "is not a number in range")
	}
	return v
}

// mode reads permission bits, written in octal as for chmod.
func (q *query) mode(name string) uint32 {
	v := q.int(name, 8, 32)
	if (v < 0 || v > 0o7777) && q.err == nil {
		q.err = invalid(name, "is not a mode of at most 7777, in octal")
	}
	return uint32(v)
}

func (q *query) time(name string) time.Time {
	text := q.get(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil && q.err == nil {
		q.err = invalid(name, "is not a time as in RFC 3339")
	}
	return t
}

// labels reads KEY=VALUE selectors.
func labels(selectors []string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range selectors {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, invalid("label", "is not KEY=VALUE")
		}
		if old, twice := out[k]; twice && old != v {
			return nil, invalid("label", "is asked to have two values at once")
		}
		out[k] = v
	}
	return out, nil
}
