package code

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

const (
	searchOp       = "files.search"
	searchTimeout  = time.Minute
	defaultMatches = 200
	maxSearched    = 4 << 20 // bytes of a file
	maxRead        = 1 << 30 // bytes of all files
	maxLooked      = 200_000 // files
	maxMatchText   = 1000
	sniffed        = 8 << 10
	excludeDepth   = 12 // directories below which an excluded name is still sent, and ignored here
)

// Search searches files by name, by content, or by both. Contents come as one
// stream from the sandbox, which needs no program inside. Text is what has no NUL
// byte in its first 8 KiB.
func (s *Service) Search(ctx context.Context, ref string, req coding.SearchRequest) (out coding.SearchResult, err error) {
	q, err := newSearch(req, &out)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	sb, err := s.cfg.Open(ctx, ref)
	if err != nil {
		return out, err
	}
	if q.line == nil {
		err = q.names(ctx, sb.Files())
	} else {
		err = q.contents(ctx, sb.Files())
	}
	switch {
	case errors.Is(err, errEnough):
		out.Truncated, err = true, nil
	case err != nil && ctx.Err() != nil && context.Cause(ctx) == context.DeadlineExceeded:
		err = &sandbox.Error{Code: sandbox.CodeTimeout, Op: searchOp, Message: "did not end in time", Hint: "search a smaller directory, or exclude more"}
	}
	return out, err
}

// search is a search under way.
type search struct {
	req     coding.SearchRequest
	line    *regexp.Regexp // nil: only names
	literal []byte         // what a matching file contains; nil: not known
	out     *coding.SearchResult
}

func newSearch(req coding.SearchRequest, out *coding.SearchResult) (*search, error) {
	out.Matches = []coding.SearchMatch{}
	if err := sandbox.ValidatePath("path", req.Path); err != nil {
		return nil, err
	}
	switch {
	case req.Name == "" && req.Content == "":
		return nil, invalid(searchOp, "name", "and content are missing")
	case !doublestar.ValidatePattern(req.Name):
		return nil, invalid(searchOp, "name", "is a malformed pattern")
	}
	if req.Exclude == nil {
		req.Exclude = []string{".git", "node_modules"}
	}
	for _, name := range req.Exclude {
		if _, err := path.Match(name, ""); err != nil || name == "" || strings.Contains(name, "/") {
			return nil, invalid(searchOp, "exclude", "has a malformed name")
		}
	}
	req.Path, req.Max = path.Clean(req.Path), cmp.Or(req.Max, defaultMatches)
	q := &search{req: req, out: out}
	if req.Content == "" {
		return q, nil
	}
	expression := req.Content
	if req.Literal {
		expression = regexp.QuoteMeta(expression)
		if !req.IgnoreCase {
			q.literal = []byte(req.Content)
		}
	}
	if req.IgnoreCase {
		expression = "(?i)" + expression
	}
	var err error
	if q.line, err = regexp.Compile(expression); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: searchOp, Subject: "content", Message: err.Error()}
	}
	return q, nil
}

// names searches by name only.
func (q *search) names(ctx context.Context, files Files) error {
	for f, err := range files.List(ctx, q.req.Path, driver.ListOptions{Depth: -1}) {
		if err != nil {
			return err
		}
		if f.Path == "." || q.excluded(f.Path) {
			continue
		}
		if err := q.look(); err != nil {
			return err
		}
		if !q.named(f.Path) {
			continue
		}
		if err := q.found(coding.SearchMatch{Path: f.Path}); err != nil {
			return err
		}
	}
	return nil
}

func (q *search) look() error {
	if q.out.Files == maxLooked {
		return errEnough
	}
	q.out.Files++
	return nil
}

func (q *search) found(m coding.SearchMatch) error {
	if len(q.out.Matches) == q.req.Max {
		return errEnough
	}
	q.out.Matches = append(q.out.Matches, m)
	return nil
}

func (q *search) named(rel string) bool {
	if q.req.Name == "" {
		return true
	}
	if !strings.Contains(q.req.Name, "/") {
		rel = path.Base(rel)
	}
	ok, _ := doublestar.Match(strings.TrimPrefix(q.req.Name, "/"), rel)
	return ok
}

func (q *search) excluded(rel string) bool {
	for part := range strings.SplitSeq(rel, "/") {
		for _, name := range q.req.Exclude {
			if ok, _ := path.Match(name, part); ok {
				return true
			}
		}
	}
	return false
}

// contents searches the lines of files.
func (q *search) contents(ctx context.Context, files Files) error {
	var exclude []string
	for _, name := range q.req.Exclude {
		for depth := range excludeDepth {
			exclude = append(exclude, strings.Repeat("*/", depth)+name)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, out := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := files.Export(ctx, q.req.Path, out, driver.ExportOptions{Exclude: exclude})
		_ = out.CloseWithError(err)
		exported <- err
	}()
	err := q.archive(in)
	if err == nil {
		_, err = io.Copy(io.Discard, in) // what follows the end of the archive, and an error
	}
	cancel()
	_ = in.CloseWithError(errEnough)
	if failed := <-exported; failed != nil && !errors.Is(err, errEnough) {
		return failed
	}
	slices.SortStableFunc(q.out.Matches, func(a, b coding.SearchMatch) int { return strings.Compare(a.Path, b.Path) })
	return err
}

func (q *search) archive(in io.Reader) error {
	counted := &counter{r: in}
	for members := tar.NewReader(counted); ; {
		h, err := members.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case counted.n > maxRead:
			return errEnough
		case h.Typeflag != tar.TypeReg:
			continue
		}
		rel := below(h.Name)
		if q.excluded(rel) || !q.named(rel) {
			continue
		}
		if err := q.look(); err != nil {
			return err
		}
		if h.Size > maxSearched {
			q.out.Skipped++
			continue
		}
		data, err := io.ReadAll(members)
		if err != nil {
			return err
		}
		if err := q.lines(rel, data); err != nil {
			return err
		}
	}
}

// below returns a name without its first element, which is the searched
// directory. A searched file is its own name.
func below(name string) string {
	name = path.Clean(name)
	if _, rest, ok := strings.Cut(name, "/"); ok {
		return rest
	}
	return name
}

// lines searches a file.
func (q *search) lines(rel string, data []byte) error {
	if bytes.IndexByte(data[:min(len(data), sniffed)], 0) >= 0 || q.literal != nil && !bytes.Contains(data, q.literal) {
		return nil
	}
	for no := 1; len(data) > 0; no++ {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		line = bytes.TrimSuffix(line, []byte("\r"))
		at := q.line.FindIndex(line)
		if at == nil {
			continue
		}
		if err := q.found(coding.SearchMatch{Path: rel, Line: no, Column: at[0] + 1, Text: around(line, at[0])}); err != nil {
			return err
		}
	}
	return nil
}

// around returns a part of a line that has the place in it, as valid UTF-8.
func around(line []byte, at int) string {
	if len(line) > maxMatchText {
		start := min(max(at-maxMatchText/4, 0), len(line)-maxMatchText)
		for start > 0 && start < len(line) && !utf8.RuneStart(line[start]) {
			start++
		}
		line = line[start:min(start+maxMatchText, len(line))]
	}
	return strings.ToValidUTF8(string(line), "\uFFFD")
}

// counter counts what is read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
