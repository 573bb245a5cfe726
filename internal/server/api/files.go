package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// FileRef names a file of a sandbox.
type FileRef struct {
	SandboxRef
	Path string `query:"path" required:"true" maxLength:"4096" doc:"absolute path inside the sandbox"`
}

type fileOutput struct{ Body sandbox.FileInfo }

type mkdirInput struct {
	SandboxRef
	Body struct {
		Path    string `json:"path"`
		Mode    uint32 `json:"mode,omitempty" maximum:"4095"`
		Owner   string `json:"owner,omitempty"`
		Parents bool   `json:"parents,omitempty" doc:"make missing parents; an existing directory is success"`
	}
}

type moveInput struct {
	SandboxRef
	Body struct {
		From      string `json:"from"`
		To        string `json:"to"`
		Overwrite bool   `json:"overwrite,omitempty"`
	}
}

type removeInput struct {
	FileRef
	Recursive bool `query:"recursive" doc:"remove a directory with its content"`
}

// readFileID is the operation that also accepts HEAD.
const readFileID = "readFile"

func (a *API) files() {
	const base = "/v1/sandboxes/{ref}/files"
	path := map[string]string{"path": "absolute path inside the sandbox"}
	with := func(more map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range path {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	a.raw(operation(readFileID, http.MethodGet, base, "Files", "Read a file, or the range in a Range header", ops.SandboxFind, ops.FilesRead), path, "", "application/octet-stream", a.readFile)
	a.raw(sometimes(operation("writeFile", http.MethodPut, base, "Files", "Create or replace a file atomically", ops.SandboxFind, ops.FilesWrite), ops.FilesRead), with(map[string]string{
		"mode": "permission bits, in octal", "owner": "as user of a command", "noParents": "true: parents must exist", "noReplace": "true: the file must not exist",
		"expect": "SHA-256 of the content that the file must have, in hexadecimal; otherwise nothing is written",
	}), "application/octet-stream", "application/json", a.writeFile)
	remove := operation("removeFile", http.MethodDelete, base, "Files", "Remove a file or a tree", ops.SandboxFind, ops.FilesRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *removeInput) (*struct{}, error) {
		return nil, a.withFiles(ctx, in.Ref, func(f Files) error { return f.Remove(ctx, in.Path, in.Recursive) })
	})
	huma.Register(a.huma, operation("statFile", http.MethodGet, base+"/stat", "Files", "Describe a file, without following a symbolic link", ops.SandboxFind, ops.FilesStat),
		func(ctx context.Context, in *FileRef) (*fileOutput, error) {
			out := &fileOutput{}
			return out, a.withFiles(ctx, in.Ref, func(f Files) error {
				info, err := f.Stat(ctx, in.Path)
				out.Body = info
				return err
			})
		})
	a.raw(operation("listFiles", http.MethodGet, base+"/list", "Files", "List a directory as JSON lines", ops.SandboxFind, ops.FilesList),
		with(map[string]string{"depth": "levels below it, 1 if it is left out; -1 for all"}), "", "application/x-ndjson", a.listFiles)
	mkdir := operation("makeDirectory", http.MethodPost, base+"/mkdir", "Files", "Make a directory", ops.SandboxFind, ops.FilesMkdir)
	mkdir.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, mkdir, func(ctx context.Context, in *mkdirInput) (*struct{}, error) {
		opts := driver.MkdirOptions{Mode: in.Body.Mode, Owner: in.Body.Owner, Parents: in.Body.Parents}
		return nil, a.withFiles(ctx, in.Ref, func(f Files) error { return f.Mkdir(ctx, in.Body.Path, opts) })
	})
	move := operation("moveFile", http.MethodPost, base+"/move", "Files", "Rename a file or directory", ops.SandboxFind, ops.FilesMove)
	move.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, move, func(ctx context.Context, in *moveInput) (*struct{}, error) {
		return nil, a.withFiles(ctx, in.Ref, func(f Files) error { return f.Move(ctx, in.Body.From, in.Body.To, in.Body.Overwrite) })
	})
	a.raw(operation("exportFiles", http.MethodGet, base+"/archive", "Files", "Export a file or tree as a tar stream", ops.SandboxFind, ops.FilesExport),
		with(map[string]string{"exclude": "a pattern of what to leave out; may be repeated", "compress": "zstd, for a compressed stream"}), "", "application/x-tar", a.exportFiles)
	a.raw(operation("importFiles", http.MethodPut, base+"/archive", "Files", "Unpack a tar stream, which may be compressed with zstd, into a directory; on an error, nothing is unpacked", ops.SandboxFind, ops.FilesImport),
		with(map[string]string{"owner": "whom the files belong to; as in the archive if it is left out"}), "application/x-tar", "", a.importFiles)
	a.raw(operation("watchFiles", http.MethodGet, base+"/watch", "Files", "Follow changes, as server-sent events", ops.SandboxFind, ops.FilesWatch),
		with(map[string]string{"recursive": "true: also below"}), "", "text/event-stream", a.watchFiles)
}

// withFiles calls a function with the files of a sandbox.
func (a *API) withFiles(ctx context.Context, ref string, do func(Files) error) error {
	sb, err := a.services.Processes.Open(ctx, ref)
	if err == nil {
		err = do(sb.Files())
	}
	return a.problem(ctx, err)
}

// part is the range of a file in a Range header.
type part struct{ offset, length int64 } // length 0: to the end

// parseRange parses a single range that is counted from the beginning. Other
// ranges are ignored, as RFC 9110 allows.
func parseRange(header string) (s part, ok bool) {
	text, isBytes := strings.CutPrefix(header, "bytes=")
	first, last, two := strings.Cut(text, "-")
	if !isBytes || !two || first == "" || strings.Contains(text, ",") {
		return part{}, false
	}
	from, err := strconv.ParseUint(first, 10, 62)
	if err != nil {
		return part{}, false
	}
	if last == "" {
		return part{offset: int64(from)}, true
	}
	to, err := strconv.ParseUint(last, 10, 62)
	if err != nil || to < from {
		return part{}, false
	}
	return part{int64(from), int64(to-from) + 1}, true
}

func (a *API) readFile(w http.ResponseWriter, r *http.Request) error {
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	part, partial := parseRange(r.Header.Get("Range"))
	content, info, err := sb.Files().Read(r.Context(), r.URL.Query().Get("path"), driver.ReadOptions{Offset: part.offset, Length: part.length})
	if err != nil {
		return err
	}
	defer content.Close()
	defer context.AfterFunc(r.Context(), func() { _ = content.Close() })()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", info.ModTime.UTC().Format(http.TimeFormat))
	h.Set("X-Atoll-Mode", strconv.FormatUint(uint64(info.Mode), 8))
	h.Set("X-Atoll-Owner", fmt.Sprintf("%d:%d", info.UID, info.GID))
	if partial && info.Size == 0 {
		return partOfUnsized(w, r, part, content)
	}
	if partial {
		if part.offset >= info.Size {
			return beyond(w, info.Size)
		}
		if end := part.offset + part.length; part.length > 0 && end < info.Size {
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.offset, end-1, info.Size))
		} else {
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.offset, info.Size-1, info.Size))
		}
	}
	if r.Method == http.MethodHead && !partial && info.Size > 0 {
		h.Set("Content-Length", strconv.FormatInt(info.Size, 10))
	}
	if partial {
		w.WriteHeader(http.StatusPartialContent)
	}
	if r.Method == http.MethodHead {
		return nil // without reading the file: some have no end
	}
	return finish(w, content)
}

// maxUnsized bounds a range of a file whose size is not known.
const maxUnsized = 1 << 20

// partOfUnsized answers with a range of a file whose size is reported as 0.
// Such a file is empty, or the kernel generates its content, as in /proc.
func partOfUnsized(w http.ResponseWriter, r *http.Request, part part, content io.Reader) error {
	if r.Method == http.MethodHead {
		return nil
	}
	start, err := io.ReadAll(io.LimitReader(content, maxUnsized+1))
	switch {
	case err != nil:
		return err
	case len(start) == 0 && part.offset > 0:
		return beyond(w, 0)
	case len(start) == 0 || len(start) > maxUnsized && part.offset == 0 && part.length == 0:
		return finish(w, io.MultiReader(bytes.NewReader(start), content))
	case len(start) > maxUnsized:
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "files.read", Message: "the file reports no size and is too large to be read in ranges"}
	}
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", part.offset, part.offset+int64(len(start))-1))
	w.WriteHeader(http.StatusPartialContent)
	_, err = w.Write(start)
	return err
}

// beyond refuses a range that begins after the end of the file.
func beyond(w http.ResponseWriter, size int64) error {
	w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
	return &Problem{
		Status: http.StatusRequestedRangeNotSatisfiable, Title: http.StatusText(http.StatusRequestedRangeNotSatisfiable),
		Code: sandbox.CodeInvalid, Detail: "the range begins beyond the end of the file",
	}
}

// finish copies the rest of a response body. If that fails, it aborts the
// connection, so that the client does not take a part for the whole.
func finish(w http.ResponseWriter, content io.Reader) error {
	if _, err := io.Copy(flusher{w, http.NewResponseController(w)}, content); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// flusher flushes after every write.
type flusher struct {
	w  io.Writer
	rc *http.ResponseController
}

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil && n < 4<<10 {
		err = f.rc.Flush()
	}
	return n, err
}

func (a *API) writeFile(w http.ResponseWriter, r *http.Request) error {
	q := query{r: r}
	opts := driver.WriteOptions{Mode: q.mode("mode"), Owner: q.get("owner"), NoParents: q.bool("noParents"), NoReplace: q.bool("noReplace")}
	if q.err != nil {
		return q.err
	}
	if expect := q.get("expect"); expect != "" {
		info, err := a.services.Source.Write(r.Context(), r.PathValue("ref"), q.get("path"), r.Body, opts, expect)
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, info)
	}
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	info, err := sb.Files().Write(r.Context(), q.get("path"), r.Body, opts)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, info)
}

func (a *API) listFiles(w http.ResponseWriter, r *http.Request) error {
	q := query{r: r}
	opts := driver.ListOptions{Depth: int(q.int("depth", 10, 32))}
	if q.err != nil {
		return q.err
	}
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	var out *lines
	for info, err := range sb.Files().List(r.Context(), q.get("path"), opts) {
		switch {
		case err != nil && out == nil:
			return err
		case err != nil:
			out.write(map[string]any{"error": a.problem(r.Context(), err)})
			return nil
		}
		if out == nil {
			out = newLines(w)
		}
		if !out.write(info) {
			return nil
		}
	}
	if out == nil {
		newLines(w)
	}
	return nil
}

func (a *API) exportFiles(w http.ResponseWriter, r *http.Request) error {
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	q := r.URL.Query()
	opts := driver.ExportOptions{Exclude: q["exclude"]}
	kind := "application/x-tar"
	switch q.Get("compress") {
	case "":
	case "zstd":
		opts.Zstd, kind = true, "application/zstd"
	default:
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "files.export", Subject: "compress", Message: "is not zstd", Hint: "leave it out for a plain tar stream"}
	}
	out := &begun{w: flusher{w, http.NewResponseController(w)}}
	w.Header().Set("Content-Type", kind)
	err = sb.Files().Export(r.Context(), q.Get("path"), out, opts)
	return a.cutShort(r.Context(), out, err)
}

// cutShort returns the error of a response. If its body has begun, it logs the error
// and aborts the connection, so that a part does not look complete.
func (a *API) cutShort(ctx context.Context, out *begun, err error) error {
	if err == nil || !out.yes {
		return err
	}
	if ctx.Err() == nil {
		a.opts.Logger.WarnContext(ctx, "a response was cut short", "error", err)
	}
	panic(http.ErrAbortHandler)
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

func (a *API) importFiles(w http.ResponseWriter, r *http.Request) error {
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	q := r.URL.Query()
	if err := sb.Files().Import(r.Context(), q.Get("path"), r.Body, driver.ImportOptions{Owner: q.Get("owner")}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// watchFiles reports changes until the client disconnects.
func (a *API) watchFiles(w http.ResponseWriter, r *http.Request) error {
	q := query{r: r}
	recursive := q.bool("recursive")
	if q.err != nil {
		return q.err
	}
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	changes, err := sb.Files().Watch(r.Context(), q.get("path"), recursive)
	if err != nil {
		return err
	}
	out, epoch := newEvents(w), routedBy(r.Context()).Epoch
	for {
		select {
		case c, more := <-changes:
			if c.Revision, c.LeaseEpoch = a.revisions.Next(), epoch; !more || !out.send("", "change", c) {
				return nil
			}
		case <-out.beat():
			if !out.alive() {
				return nil
			}
		}
	}
}
