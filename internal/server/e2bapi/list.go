package e2bapi

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// listQuery selects a page of sandboxes.
type listQuery struct {
	metadata     map[string]string
	states       []string
	ascending    bool
	startedAfter time.Time
	template     string
	limit        int
	after        *position
}

// position is the position of a sandbox in a listing.
type position struct {
	started int64 // microseconds since 1970
	id      sandbox.ID
}

func positionOf(s *sandbox.Detail) position { return position{s.Created.UnixMicro(), s.ID} }

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.started, o.started), cmp.Compare(p.id, o.id))
}

const maxPage = 100

func parseList(q url.Values) (l listQuery, err error) {
	l.limit = maxPage
	if l.metadata, err = parseMetadata(q.Get("metadata")); err != nil {
		return l, err
	}
	for _, states := range q["state"] {
		l.states = append(l.states, strings.Split(states, ",")...)
	}
	for _, s := range l.states {
		if s != "running" && s != "paused" {
			return l, invalid("state", "%.20q is neither running nor paused", s)
		}
	}
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		l.ascending = true
	default:
		return l, invalid("order", "%.20q is neither asc nor desc", order)
	}
	if text := q.Get("startedAfter"); text != "" {
		if l.startedAfter, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return l, invalid("startedAfter", "is not a time")
		}
	}
	l.template = strings.ToLower(strings.TrimSpace(q.Get("template")))
	if text := q.Get("limit"); text != "" {
		if l.limit, err = strconv.Atoi(text); err != nil || l.limit < 1 || l.limit > maxPage {
			return l, invalid("limit", "is not between 1 and %d", maxPage)
		}
	}
	if token := q.Get("nextToken"); token != "" {
		l.after, err = parseToken(token, l.ascending)
	}
	return l, err
}

// parseMetadata parses a filter, which is escaped twice.
func parseMetadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	bad := invalid("metadata", "is not a filter")
	text, err := url.QueryUnescape(text)
	if err != nil {
		return nil, bad
	}
	out := map[string]string{}
	for pair := range strings.SplitSeq(text, "&") {
		k, v, _ := strings.Cut(pair, "=")
		key, err1 := url.QueryUnescape(k)
		value, err2 := url.QueryUnescape(v)
		if err1 != nil || err2 != nil || key == "" || strings.HasPrefix(key, labelPrefix) {
			return nil, bad
		}
		out[key] = value
	}
	return out, nil
}

func (l *listQuery) order() string {
	if l.ascending {
		return "asc"
	}
	return "desc"
}

// token is the page token for the position after a sandbox. It is not valid for
// a listing in the other order.
func (l *listQuery) token(p position) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s.%d.%s", l.order(), p.started, p.id))
}

func parseToken(token string, ascending bool) (*position, error) {
	bad := invalid("nextToken", "is not one that this listing returned")
	l := listQuery{ascending: ascending}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil, bad
	}
	parts := strings.SplitN(string(raw), ".", 3)
	if len(parts) != 3 || parts[0] != l.order() {
		return nil, bad
	}
	started, err := strconv.ParseInt(parts[1], 10, 64)
	p := position{started, sandbox.ID(parts[2])}
	if err != nil || l.token(p) != token {
		return nil, bad
	}
	return &p, nil
}

// matches reports whether a sandbox matches the query, apart from metadata and
// page.
func (l *listQuery) matches(s *sandbox.Detail) bool {
	state, exists := stateOf(s)
	return exists && (len(l.states) == 0 || slices.Contains(l.states, state)) &&
		(l.startedAfter.IsZero() || !stamp(s.Created).Before(l.startedAfter)) &&
		(l.template == "" || templateName(&s.Sandbox) == l.template)
}

// page returns the page of all matching sandboxes. more reports whether there
// is another one.
func (l *listQuery) page(all []sandbox.Detail) (page []sandbox.Detail, more bool) {
	slices.SortFunc(all, func(a, b sandbox.Detail) int {
		c := positionOf(&a).compare(positionOf(&b))
		if !l.ascending {
			c = -c
		}
		return c
	})
	if l.after != nil {
		all = slices.DeleteFunc(all, func(s sandbox.Detail) bool {
			c := positionOf(&s).compare(*l.after)
			return l.ascending && c <= 0 || !l.ascending && c >= 0
		})
	}
	return all[:min(len(all), l.limit)], len(all) > l.limit
}

func (h *sandboxAPI) list(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r.URL.Query())
	if err != nil {
		return err
	}
	all, err := h.sandboxes.InspectAll(r.Context(), l.metadata)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s sandbox.Detail) bool { return !l.matches(&s) })
	running := 0
	for _, s := range all {
		if state, _ := stateOf(&s); state == "running" {
			running++
		}
	}
	if len(l.states) == 0 || slices.Contains(l.states, "running") {
		w.Header().Set("X-Total-Running", strconv.Itoa(running))
	}
	page, more := l.page(all)
	if more {
		w.Header().Set("X-Next-Token", l.token(positionOf(&page[len(page)-1])))
	}
	return writeList(w, page)
}

// listRunning is the listing for old clients: all running sandboxes on one page.
func (h *sandboxAPI) listRunning(w http.ResponseWriter, r *http.Request) error {
	metadata, err := parseMetadata(r.URL.Query().Get("metadata"))
	if err != nil {
		return err
	}
	all, err := h.sandboxes.InspectAll(r.Context(), metadata)
	if err != nil {
		return err
	}
	l := listQuery{states: []string{"running"}, limit: len(all)}
	page, _ := l.page(slices.DeleteFunc(all, func(s sandbox.Detail) bool { return !l.matches(&s) }))
	return writeList(w, page)
}

func writeList(w http.ResponseWriter, page []sandbox.Detail) error {
	out := make([]listed, len(page))
	for i := range page {
		out[i] = toListed(&page[i])
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}
