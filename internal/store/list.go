package store

import (
	"context"
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Limits of a page of a listing.
const (
	DefaultPage = 100
	MaxPage     = 10_000
)

// Filter selects sandboxes. The zero value selects all that are not gone.
type Filter struct {
	States   []sandbox.State   // in one of them; empty: in any but Gone
	Labels   map[string]string // with all of these labels
	Provider string
	Node     string
}

// Page selects one page of a listing.
type Page struct {
	Cursor string // as returned with the previous page; empty: the first page
	Limit  int    // maximum number; zero: DefaultPage; at most MaxPage
}

// Summaries lists a tenant's sandboxes, newest first. next is the cursor of the
// next page, empty at the end. A sandbox that matches from the first page to
// the last is listed exactly once, even if others are created or removed in
// between.
func (bs Sandboxes) Summaries(ctx context.Context, tenant string, f Filter, p Page) (sandboxes []Summary, next string, err error) {
	return list(ctx, bs.tx, tenant, f, p, summaryColumns, scanSummary(tenant), (*Summary).cursor)
}

// List is like [Sandboxes.Summaries], but returns complete records, which takes
// several times as long.
func (bs Sandboxes) List(ctx context.Context, tenant string, f Filter, p Page) (sandboxes []Sandbox, next string, err error) {
	return list(ctx, bs.tx, tenant, f, p, sandboxColumns, scanSandbox, func(b *Sandbox) string { return b.cursor() })
}

func list[T any](
	ctx context.Context, tx *Tx, tenant string, f Filter, p Page, columns string, scan func(scanner) (T, error), cursor func(*T) string,
) (sandboxes []T, next string, err error) {
	limit, err := p.limit()
	if err != nil {
		return nil, "", err
	}
	q := conditions{}
	q.add("tenant = ?", tenant)
	if p.Cursor != "" {
		created, id, err := parseCursor(p.Cursor)
		if err != nil {
			return nil, "", err
		}
		q.add("(created, id) < (?, ?)", created, id)
	}
	f.conditions(&q, tenant)
	query := "SELECT " + columns + " FROM sandboxes WHERE " + q.String() + " ORDER BY created DESC, id DESC LIMIT " + strconv.Itoa(limit+1)
	rows, err := tx.query(ctx, query, q.args...)
	sandboxes, err = collect(rows, err, scan)
	if err != nil || len(sandboxes) <= limit {
		return sandboxes, "", err
	}
	return sandboxes[:limit], cursor(&sandboxes[limit-1]), nil
}

func (p Page) limit() (int, error) {
	switch {
	case p.Limit == 0:
		return DefaultPage, nil
	case p.Limit < 0 || p.Limit > MaxPage:
		return 0, fail(sandbox.CodeInvalid, "limit", "%d is not between 1 and %d", p.Limit, MaxPage)
	}
	return p.Limit, nil
}

func (b *Summary) cursor() string { return formatCursor(nanos(b.Created), string(b.ID)) }

func (f *Filter) conditions(q *conditions, tenant string) {
	if len(f.States) == 0 {
		q.add("state <> 'gone'")
	} else {
		anyOf(q, "state", f.States)
	}
	if f.Provider != "" {
		q.add("provider = ?", f.Provider)
	}
	if f.Node != "" {
		q.add("node = ?", f.Node)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Labels)) {
		q.add("id IN (SELECT sandbox FROM sandbox_labels WHERE tenant = ? AND name = ? AND value = ?)", tenant, name, f.Labels[name])
	}
}

// conditions builds a WHERE clause. Values are always parameters.
type conditions struct {
	parts []string
	args  []any
}

// add adds a condition. Each question mark stands for one of args.
func (q *conditions) add(cond string, args ...any) {
	var b strings.Builder
	for i, part := range strings.Split(cond, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(len(q.args)+i))
		}
		b.WriteString(part)
	}
	q.parts = append(q.parts, b.String())
	q.args = append(q.args, args...)
}

// anyOf adds the condition that a column has one of the values, if there are
// any.
func anyOf[T ~string](q *conditions, column string, values []T) {
	if len(values) == 0 {
		return
	}
	in := make([]any, len(values))
	for i, v := range values {
		in[i] = string(v)
	}
	q.add(column+" IN (?"+strings.Repeat(", ?", len(in)-1)+")", in...)
}

func (q *conditions) String() string { return strings.Join(q.parts, " AND ") }

// A cursor names the last row of a page. It contains nothing that its holder
// does not know. The tenant is part of every query, not of the cursor.
func formatCursor(created int64, id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte("1." + strconv.FormatInt(created, 10) + "." + id))
}

func parseCursor(cursor string) (created int64, id string, err error) {
	bad := fail(sandbox.CodeInvalid, "cursor", "is not one that a listing returned")
	if len(cursor) > 256 {
		return 0, "", bad
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil {
		return 0, "", bad
	}
	rest, ok := strings.CutPrefix(string(raw), "1.")
	at, id, found := strings.Cut(rest, ".")
	created, err = strconv.ParseInt(at, 10, 64)
	if !ok || !found || err != nil || sandbox.ValidateName(id) != nil || formatCursor(created, id) != cursor {
		return 0, "", bad
	}
	return created, id, nil
}
