package atoll

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
)

// Search searches files by name, by content, or by both. It takes at most a
// minute.
func (f Files) Search(ctx context.Context, req sandbox.SearchRequest) (out sandbox.SearchResult, err error) {
	return out, f.call(ctx, http.MethodPost, "/search", nil, req, &out)
}

// Patch applies a patch: either all of it or nothing. A part that does not fit is
// CodeConflict.
func (f Files) Patch(ctx context.Context, req sandbox.PatchRequest) (out sandbox.PatchResult, err error) {
	return out, f.call(ctx, http.MethodPost, "/patch", nil, req, &out)
}

// Git reads a git repository of a sandbox, with the sandbox's own git. It changes
// nothing. If the image has no git, its methods return CodeUnsupported. They may
// be called concurrently, and take at most a minute.
type Git struct {
	s   *Sandbox
	dir string
}

// Git returns the repository that a directory, an absolute path in the sandbox,
// is in. An empty one is the sandbox's working directory.
func (s *Sandbox) Git(dir string) Git { return Git{s, dir} }

func (g Git) get(ctx context.Context, what string, query url.Values, out any) error {
	if g.dir != "" {
		query.Set("path", g.dir)
	}
	return g.s.client.conn.Call(ctx, http.MethodGet, g.s.path("/git/"+what), query, nil, out)
}

// query sets the parameters that are not empty.
func query(texts map[string]string, numbers map[string]int64) url.Values {
	q := url.Values{}
	for name, v := range texts {
		if v != "" {
			q.Set(name, v)
		}
	}
	for name, n := range numbers {
		if n != 0 {
			q.Set(name, strconv.FormatInt(n, 10))
		}
	}
	return q
}

// Status returns the state of the repository. Outside of one, IsRepo is false.
func (g Git) Status(ctx context.Context) (out sandbox.GitStatus, err error) {
	return out, g.get(ctx, "status", url.Values{}, &out)
}

// Diff returns a difference. Without options, it is that of the working tree,
// with its untracked files, from the index.
func (g Git) Diff(ctx context.Context, opts sandbox.GitDiffOptions) (out sandbox.GitDiff, err error) {
	q := query(map[string]string{"from": opts.From, "to": opts.To}, map[string]int64{"context": int64(max(opts.Context, -1)), "maxBytes": int64(opts.MaxBytes)})
	if opts.Staged {
		q.Set("staged", "true")
	}
	if opts.Paths != nil {
		q["paths"] = opts.Paths
	}
	return out, g.get(ctx, "diff", q, &out)
}

// Log returns commits, the latest first.
func (g Git) Log(ctx context.Context, opts sandbox.GitLogOptions) (out sandbox.GitLog, err error) {
	q := query(map[string]string{"rev": opts.Rev}, map[string]int64{"max": int64(opts.Max), "skip": int64(opts.Skip)})
	if opts.Paths != nil {
		q["paths"] = opts.Paths
	}
	return out, g.get(ctx, "log", q, &out)
}

// Show returns a commit with its difference from its first parent. An empty rev
// is HEAD.
func (g Git) Show(ctx context.Context, rev string) (out sandbox.GitShow, err error) {
	return out, g.get(ctx, "show", query(map[string]string{"rev": rev}, nil), &out)
}

// File returns a file as it was in a commit, and at most maxBytes of it, of which
// 0 means 512 KiB. Its name is relative to the directory.
func (g Git) File(ctx context.Context, rev, name string, maxBytes int64) (sandbox.GitBlob, error) {
	var out sandbox.GitShow
	err := g.get(ctx, "show", query(map[string]string{"rev": rev, "file": name}, map[string]int64{"maxBytes": maxBytes}), &out)
	if err != nil || out.Blob == nil {
		return sandbox.GitBlob{}, err
	}
	return *out.Blob, nil
}

// Blame returns which commits the lines of a file are from, as of a commit. An
// empty rev is the working tree. First and last limit the lines, if not 0.
func (g Git) Blame(ctx context.Context, rev, name string, first, last int) (out sandbox.GitBlame, err error) {
	q := query(map[string]string{"rev": rev, "file": name}, map[string]int64{"first": int64(first), "last": int64(last)})
	return out, g.get(ctx, "blame", q, &out)
}

// Watch yields the state of the repository and then, until ctx ends, each state
// that differs from the one before. If the watch breaks off, the last pair has an
// error. The sandbox is in use while it is watched.
func (g Git) Watch(ctx context.Context) (iter.Seq2[sandbox.GitEvent, error], error) {
	query := url.Values{}
	if g.dir != "" {
		query.Set("path", g.dir)
	}
	return watching[sandbox.GitEvent](ctx, g.s, "/git/watch", query)
}
