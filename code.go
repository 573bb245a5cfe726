package atoll

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// maxCodeOutput is how many bytes of each stream RunCode keeps, and maxCodeResults
// how many of results.
const (
	maxCodeOutput  = 16 << 20
	maxCodeResults = 64 << 20
)

// RunCode executes code in the code interpreter of the sandbox, which keeps
// variables from one call to the next, and returns its output: at most 16 MiB
// of each stream and 64 MiB of results. An exception of the code is in the output
// and is no error. When ctx ends, the code is interrupted. The image needs
// python3, and what the language needs.
func (s *Sandbox) RunCode(ctx context.Context, req coding.CodeRequest) (out coding.CodeOutput, err error) {
	var stdout, stderr strings.Builder
	size := 0
	keep := func(to *strings.Builder, text string) {
		if room := maxCodeOutput - to.Len(); len(text) > room {
			text, out.Truncated = text[:room], true
		}
		to.WriteString(text)
	}
	err = s.StreamCode(ctx, req, func(e coding.CodeEvent) error {
		switch e.Type {
		case coding.CodeStarted:
			out.Count = e.Count
		case coding.CodeStdout:
			keep(&stdout, e.Text)
		case coding.CodeStderr:
			keep(&stderr, e.Text)
		case coding.CodeShown:
			r := e.Result
			size += len(r.Text) + len(r.HTML) + len(r.Markdown) + len(r.SVG) + len(r.PNG) + len(r.JPEG) + len(r.PDF) + len(r.LaTeX) + len(r.JavaScript) + len(r.JSON) + len(r.Data) + len(r.Chart)
			if size > maxCodeResults {
				out.Truncated = true
				return nil
			}
			out.Results = append(out.Results, *r)
		case coding.CodeFailed:
			out.Error = e.Error
		case coding.CodeEnded:
			out.TimedOut = e.TimedOut
		}
		return nil
	})
	out.Stdout, out.Stderr = stdout.String(), stderr.String()
	return out, err
}

// StreamCode is RunCode for callers that want the events as they come: it calls
// each with every event, in order. If each returns an error, the code is
// interrupted, and StreamCode returns that error.
func (s *Sandbox) StreamCode(ctx context.Context, req coding.CodeRequest, each func(coding.CodeEvent) error) error {
	body, err := json.Marshal(req)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "code.run", Message: "cannot be sent", Cause: err}
	}
	r, err := s.client.conn.Request(ctx, http.MethodPost, s.path("/code"), nil, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := s.client.conn.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var line json.RawMessage
		if err := lines.Decode(&line); err != nil {
			return client.TransportError(ctx, err)
		}
		if err := lineError(line); err != nil {
			return err
		}
		var e coding.CodeEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return client.TransportError(ctx, err)
		}
		if e.Type == coding.CodeShown && e.Result == nil || e.Type == coding.CodeFailed && e.Error == nil {
			continue // not by our daemon
		}
		if err := each(e); err != nil || e.Type == coding.CodeEnded {
			return err
		}
	}
}

// CodeContexts returns the contexts of the code interpreter. Each language has a
// default one, which is made when it is first used.
func (s *Sandbox) CodeContexts(ctx context.Context) ([]coding.CodeContext, error) {
	var out struct {
		Contexts []coding.CodeContext `json:"contexts"`
	}
	err := s.client.conn.Call(ctx, http.MethodGet, s.path("/code/contexts"), nil, nil, &out)
	return out.Contexts, err
}

// CreateCodeContext makes a context with variables of its own.
func (s *Sandbox) CreateCodeContext(ctx context.Context, n coding.NewCodeContext) (out coding.CodeContext, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPost, s.path("/code/contexts"), nil, n, &out)
}

// RestartCodeContext ends the process of a context, which forgets its variables.
func (s *Sandbox) RestartCodeContext(ctx context.Context, id string) error {
	return s.codeContext(ctx, http.MethodPost, id, "/restart")
}

// InterruptCodeContext interrupts what a context executes, as ^C does. Its
// variables stay.
func (s *Sandbox) InterruptCodeContext(ctx context.Context, id string) error {
	return s.codeContext(ctx, http.MethodPost, id, "/interrupt")
}

// RemoveCodeContext ends a context. The default one of a language is made again
// when that is used.
func (s *Sandbox) RemoveCodeContext(ctx context.Context, id string) error {
	return s.codeContext(ctx, http.MethodDelete, id, "")
}

func (s *Sandbox) codeContext(ctx context.Context, method, id, rest string) error {
	return s.client.conn.Call(ctx, method, s.path("/code/contexts/"+url.PathEscape(id)+rest), nil, nil, nil)
}

// StartDesktop starts the desktop of the sandbox, unless one of that size runs.
// One of another size is started again, which ends the programs on it. The image
// needs a display; see make desktop-image.
func (s *Sandbox) StartDesktop(ctx context.Context, want viewing.Screen) (out viewing.DesktopState, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPut, s.path("/desktop"), nil, want, &out)
}

// Clipboard returns the text of the clipboard of the desktop, which is empty if
// there is none. A desktop that does not run is started.
func (s *Sandbox) Clipboard(ctx context.Context) (string, error) {
	out, err := s.UseComputer(ctx, viewing.ComputerRequest{Actions: []viewing.ComputerAction{{Action: "clipboard"}}})
	if err != nil || out.Clipboard == nil {
		return "", err
	}
	return *out.Clipboard, nil
}

// SetClipboard puts a text into the clipboard of the desktop, at most
// viewing.MaxClipboard bytes. Programs there paste it.
func (s *Sandbox) SetClipboard(ctx context.Context, text string) error {
	_, err := s.UseComputer(ctx, viewing.ComputerRequest{Actions: []viewing.ComputerAction{{Action: "copy", Text: text}}})
	return err
}

// UseComputer looks at the desktop of the sandbox, or uses its mouse and
// keyboard: it carries out the actions of a request in order. A desktop that does
// not run is started.
func (s *Sandbox) UseComputer(ctx context.Context, req viewing.ComputerRequest) (out viewing.ComputerResult, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPost, s.path("/computer"), nil, req, &out)
}

// Search searches files by name, by content, or by both. It takes at most a
// minute.
func (f Files) Search(ctx context.Context, req coding.SearchRequest) (out coding.SearchResult, err error) {
	return out, f.call(ctx, http.MethodPost, "/search", nil, req, &out)
}

// Patch applies a patch: either all of it or nothing. A part that does not fit is
// CodeConflict.
func (f Files) Patch(ctx context.Context, req coding.PatchRequest) (out coding.PatchResult, err error) {
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
func (g Git) Status(ctx context.Context) (out coding.GitStatus, err error) {
	return out, g.get(ctx, "status", url.Values{}, &out)
}

// Diff returns a difference. Without options, it is that of the working tree,
// with its untracked files, from the index.
func (g Git) Diff(ctx context.Context, opts coding.GitDiffOptions) (out coding.GitDiff, err error) {
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
func (g Git) Log(ctx context.Context, opts coding.GitLogOptions) (out coding.GitLog, err error) {
	q := query(map[string]string{"rev": opts.Rev}, map[string]int64{"max": int64(opts.Max), "skip": int64(opts.Skip)})
	if opts.Paths != nil {
		q["paths"] = opts.Paths
	}
	return out, g.get(ctx, "log", q, &out)
}

// Show returns a commit with its difference from its first parent. An empty rev
// is HEAD.
func (g Git) Show(ctx context.Context, rev string) (out coding.GitShow, err error) {
	return out, g.get(ctx, "show", query(map[string]string{"rev": rev}, nil), &out)
}

// File returns a file as it was in a commit, and at most maxBytes of it, of which
// 0 means 512 KiB. Its name is relative to the directory.
func (g Git) File(ctx context.Context, rev, name string, maxBytes int64) (coding.GitBlob, error) {
	var out coding.GitShow
	err := g.get(ctx, "show", query(map[string]string{"rev": rev, "file": name}, map[string]int64{"maxBytes": maxBytes}), &out)
	if err != nil || out.Blob == nil {
		return coding.GitBlob{}, err
	}
	return *out.Blob, nil
}

// Blame returns which commits the lines of a file are from, as of a commit. An
// empty rev is the working tree. First and last limit the lines, if not 0.
func (g Git) Blame(ctx context.Context, rev, name string, first, last int) (out coding.GitBlame, err error) {
	q := query(map[string]string{"rev": rev, "file": name}, map[string]int64{"first": int64(first), "last": int64(last)})
	return out, g.get(ctx, "blame", q, &out)
}

// Watch yields the state of the repository and then, until ctx ends, each state
// that differs from the one before. If the watch breaks off, the last pair has an
// error. The sandbox is in use while it is watched.
func (g Git) Watch(ctx context.Context) (iter.Seq2[coding.GitEvent, error], error) {
	query := url.Values{}
	if g.dir != "" {
		query.Set("path", g.dir)
	}
	return watching[coding.GitEvent](ctx, g.s, "/git/watch", query)
}
