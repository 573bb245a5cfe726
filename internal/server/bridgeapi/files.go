package bridgeapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// file opens the sandbox of a request and finds the file that its path names.
func (h *Handler) file(r *http.Request, c *call) (Files, string, error) {
	p, err := fileOf(c.rest)
	if err != nil {
		return nil, "", err
	}
	if _, err := sessionOf(r); err != nil { // only validates the session: paths are absolute
		return nil, "", err
	}
	sb, err := h.open(r.Context(), c)
	if err != nil {
		return nil, "", err
	}
	p, err = follow(r.Context(), sb.Files(), p, "path")
	return sb.Files(), p, err
}

// readFile sends a file, or the part that a Range header names.
func (h *Handler) readFile(w http.ResponseWriter, r *http.Request, c *call) error {
	files, p, err := h.file(r, c)
	if err != nil {
		return err
	}
	from, length, partial := rangeOf(r.Header.Get("Range"))
	content, info, err := files.Read(r.Context(), p, driver.ReadOptions{Offset: from, Length: length})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return missing(p)
	}
	if err != nil {
		return err
	}
	defer content.Close()
	defer context.AfterFunc(r.Context(), func() { _ = content.Close() })()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Accept-Ranges", "bytes")
	if partial && info.Size > 0 {
		if from >= info.Size {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
			return &problem{http.StatusRequestedRangeNotSatisfiable, "the range begins beyond the end of the file", codeInvalid}
		}
		end := info.Size
		if length > 0 {
			end = min(end, from+length)
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, end-1, info.Size))
		w.WriteHeader(http.StatusPartialContent)
	}
	if _, err := io.Copy(w, content); err != nil {
		panic(http.ErrAbortHandler) // a part must not look complete
	}
	return nil
}

// rangeOf parses a single range that is counted from the beginning. Other
// ranges are ignored, as RFC 9110 allows. A length of 0 means to the end.
func rangeOf(header string) (from, length int64, ok bool) {
	text, isBytes := strings.CutPrefix(header, "bytes=")
	first, last, two := strings.Cut(text, "-")
	start, err := strconv.ParseUint(first, 10, 62)
	if !isBytes || !two || err != nil {
		return 0, 0, false
	}
	if last == "" {
		return int64(start), 0, true
	}
	end, err := strconv.ParseUint(last, 10, 62)
	if err != nil || end < start {
		return 0, 0, false
	}
	return int64(start), int64(end-start) + 1, true
}

// writeFile atomically creates or replaces a file with the body.
func (h *Handler) writeFile(w http.ResponseWriter, r *http.Request, c *call) error {
	files, p, err := h.file(r, c)
	if err != nil {
		return err
	}
	if _, err := files.Write(r.Context(), p, r.Body, driver.WriteOptions{}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, done{true})
	return nil
}

// hydrate unpacks the body into the workspace.
func (h *Handler) hydrate(w http.ResponseWriter, r *http.Request, c *call) error {
	body := bufio.NewReaderSize(r.Body, 64<<10)
	if _, err := body.Peek(1); errors.Is(err, io.EOF) {
		return invalid("Empty tar payload")
	} else if err != nil {
		return invalid("the body cannot be read")
	}
	sb, err := h.open(r.Context(), c)
	if err != nil {
		return err
	}
	if err := sb.Files().Import(r.Context(), root, body, driver.ImportOptions{}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, done{true})
	return nil
}

// persist sends the workspace as a tar stream.
func (h *Handler) persist(w http.ResponseWriter, r *http.Request, c *call) error {
	exclude, err := excludes(r.URL.Query().Get("excludes"))
	if err != nil {
		return err
	}
	sb, err := h.open(r.Context(), c)
	if err != nil {
		return err
	}
	s, err := h.services.Sandboxes.Inspect(r.Context(), nameOf(c.id))
	if err != nil {
		return err
	}
	for _, m := range s.Spec.Workspaces { // they are stored elsewhere
		if rest := segmentsOf(m.Target()); rest != nil {
			exclude = append(exclude, literal(strings.Join(rest, "/")))
		}
	}
	out := &begun{w: w}
	w.Header().Set("Content-Type", "application/octet-stream")
	a := &archive{ctx: r.Context(), files: sb.Files()}
	err = a.export(out, exclude)
	if err != nil && out.yes {
		h.opts.Logger.WarnContext(r.Context(), "persisting a workspace", "sandbox", nameOf(c.id), "error", err)
		panic(http.ErrAbortHandler) // a part must not look complete
	}
	if a.left > 0 {
		h.opts.Logger.WarnContext(r.Context(), "left files out of a workspace that clients refuse to restore", "sandbox", nameOf(c.id), "files", a.left)
	}
	return err
}

// begun remembers whether anything was written.
type begun struct {
	w   io.Writer
	yes bool
}

func (b *begun) Write(p []byte) (int, error) {
	b.yes = true
	return b.w.Write(p)
}

// excludes returns the patterns of files to leave out.
func excludes(list string) ([]string, error) {
	if strings.Contains(list, "..") {
		return nil, invalid(`exclude paths must not contain ".."`)
	}
	var out []string
	for p := range strings.SplitSeq(list, ",") {
		if p = strings.Trim(strings.TrimPrefix(strings.TrimSpace(p), "./"), "/"); p != "" && p != "." {
			out = append(out, literal(p))
		}
	}
	return out, nil
}

// literal returns the pattern of path.Match that matches a path only.
func literal(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}
