package atoll

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// Files reaches the files of a sandbox. Paths are absolute and are resolved by
// the sandbox's own kernel.
type Files struct{ s *Sandbox }

// Files returns the sandbox's files.
func (s *Sandbox) Files() Files { return Files{s} }

// ReadOptions select a part of a file.
type ReadOptions struct {
	Offset int64 // bytes to skip
	Length int64 // at most so many bytes; 0 means to the end
}

// WriteOptions say what a written file is to look like.
type WriteOptions struct {
	Mode      uint32 // permission bits; 0 keeps an existing file's, else 0o644
	Owner     string // as sandbox.Spec.User; empty: keeps an existing file's, else the sandbox's user
	NoParents bool   // do not make missing parents
	NoReplace bool   // an existing file is CodeAlreadyExists
}

// MkdirOptions say what a made directory is to look like.
type MkdirOptions struct {
	Mode    uint32 // permission bits; 0 means 0o755
	Owner   string // as WriteOptions
	Parents bool   // make missing parents too; an existing directory is success
}

func (f Files) call(ctx context.Context, method, rest string, query url.Values, in, out any) error {
	return f.s.client.conn.Call(ctx, method, f.s.path("/files"+rest), query, in, out)
}

func at(path string) url.Values { return url.Values{"path": {path}} }

// Stat describes a file, not following a link in the last element.
func (f Files) Stat(ctx context.Context, path string) (info sandbox.FileInfo, err error) {
	return info, f.call(ctx, http.MethodGet, "/stat", at(path), nil, &info)
}

// List yields what is below a directory in lexical order, parents first, down
// to depth levels (0 means 1, negative all), and ends with the first error.
func (f Files) List(ctx context.Context, path string, depth int) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		query := at(path)
		query.Set("depth", strconv.Itoa(depth))
		body, err := f.stream(ctx, "/list", query, nil)
		if err != nil {
			yield(sandbox.FileInfo{}, err)
			return
		}
		defer body.Close()
		for dec := json.NewDecoder(body); ; {
			var line json.RawMessage
			err := dec.Decode(&line)
			if err == io.EOF {
				return
			}
			var info sandbox.FileInfo
			if err == nil {
				err = json.Unmarshal(line, &info)
			}
			if err != nil {
				err = client.TransportError(ctx, err)
			} else {
				err = lineError(line)
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// stream asks for something that is read little by little.
func (f Files) stream(ctx context.Context, rest string, query url.Values, header http.Header) (io.ReadCloser, error) {
	r, err := f.s.client.conn.Request(ctx, http.MethodGet, f.s.path("/files"+rest), query, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		r.Header[k] = v
	}
	resp, err := f.s.client.conn.Do(r)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Read opens a regular file. The caller closes the reader.
func (f Files) Read(ctx context.Context, path string, opts ReadOptions) (io.ReadCloser, error) {
	header := http.Header{}
	switch {
	case opts.Offset < 0 || opts.Length < 0:
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "files.read", Subject: "range", Message: "negative offset or length"}
	case opts.Length > 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", opts.Offset, opts.Offset+opts.Length-1))
	case opts.Offset > 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-", opts.Offset))
	}
	return f.stream(ctx, "", at(path), header)
}

// Open is Read that describes the file, too, as far as its reader needs: links
// are followed, and the inode is not told. An offset beyond the end reads
// nothing.
func (f Files) Open(ctx context.Context, path string, opts ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	info := sandbox.FileInfo{Path: path, Type: sandbox.TypeFile}
	if opts.Offset < 0 || opts.Length < 0 {
		return nil, info, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "files.read", Subject: "range", Message: "negative offset or length"}
	}
	r, err := f.s.client.conn.Request(ctx, http.MethodGet, f.s.path("/files"), at(path), nil)
	if err != nil {
		return nil, info, err
	}
	// A range is always asked for: its answer tells the size.
	span := fmt.Sprintf("bytes=%d-", opts.Offset)
	if opts.Length > 0 {
		span += strconv.FormatInt(opts.Offset+opts.Length-1, 10)
	}
	r.Header.Set("Range", span)
	resp, err := f.s.client.conn.Do(r)
	if err != nil {
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || opts.Offset == 0 {
			return nil, info, err
		}
		first, info, again := f.Open(ctx, path, ReadOptions{Length: 1})
		if again != nil {
			return nil, info, err
		}
		return http.NoBody, info, first.Close()
	}
	describeFile(&info, resp.Header)
	return resp.Body, info, nil
}

// describeFile reads what the header of an answer says about a file.
func describeFile(info *sandbox.FileInfo, h http.Header) {
	if _, size, ok := strings.Cut(h.Get("Content-Range"), "/"); ok {
		info.Size, _ = strconv.ParseInt(size, 10, 64)
	}
	mode, _ := strconv.ParseUint(h.Get("X-Atoll-Mode"), 8, 32)
	info.Mode = uint32(mode)
	_, _ = fmt.Sscanf(h.Get("X-Atoll-Owner"), "%d:%d", &info.UID, &info.GID)
	info.ModTime, _ = http.ParseTime(h.Get("Last-Modified"))
}

// Write makes or replaces a regular file with all of r: whole, or not at all.
func (f Files) Write(ctx context.Context, path string, r io.Reader, opts WriteOptions) (info sandbox.FileInfo, err error) {
	query := at(path)
	if opts.Mode != 0 {
		query.Set("mode", strconv.FormatUint(uint64(opts.Mode), 8))
	}
	if opts.Owner != "" {
		query.Set("owner", opts.Owner)
	}
	if opts.NoParents {
		query.Set("noParents", "true")
	}
	if opts.NoReplace {
		query.Set("noReplace", "true")
	}
	return info, f.send(ctx, "", query, r, "application/octet-stream", &info)
}

// send sends bytes. An error of r is returned as it is.
func (f Files) send(ctx context.Context, rest string, query url.Values, r io.Reader, kind string, out any) error {
	source := &watched{r: r}
	req, err := f.s.client.conn.Request(ctx, http.MethodPut, f.s.path("/files"+rest), query, source)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	err = f.s.client.conn.Receive(req, out)
	if failed := source.failure(); err != nil && failed != nil {
		return failed
	}
	return err
}

// Mkdir makes a directory.
func (f Files) Mkdir(ctx context.Context, path string, opts MkdirOptions) error {
	if err := utf8Path(path); err != nil {
		return err
	}
	in := map[string]any{"path": path, "mode": opts.Mode, "owner": opts.Owner, "parents": opts.Parents}
	return f.call(ctx, http.MethodPost, "/mkdir", nil, in, nil)
}

// utf8Path refuses a path that JSON would change without a word.
func utf8Path(path string) error {
	if utf8.ValidString(path) {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "path", Message: "holds what is not UTF-8"}
}

// Remove removes a file or, if recursive, a tree.
func (f Files) Remove(ctx context.Context, path string, recursive bool) error {
	query := at(path)
	query.Set("recursive", strconv.FormatBool(recursive))
	return f.call(ctx, http.MethodDelete, "", query, nil, nil)
}

// Move renames. An existing destination is CodeAlreadyExists unless overwrite
// is set and it is not a directory.
func (f Files) Move(ctx context.Context, from, to string, overwrite bool) error {
	if err := errors.Join(utf8Path(from), utf8Path(to)); err != nil {
		return err
	}
	return f.call(ctx, http.MethodPost, "/move", nil, map[string]any{"from": from, "to": to, "overwrite": overwrite}, nil)
}

// Export writes the file or tree at path as a tar stream. The stream comes from
// inside the sandbox: whoever unpacks it must trust nothing in it.
func (f Files) Export(ctx context.Context, path string, w io.Writer, exclude ...string) error {
	query := at(path)
	query["exclude"] = exclude
	return f.export(ctx, query, w)
}

// ExportZstd is Export with the stream compressed with zstd, by the daemon.
func (f Files) ExportZstd(ctx context.Context, path string, w io.Writer, exclude ...string) error {
	query := at(path)
	query["exclude"] = exclude
	query.Set("compress", "zstd")
	return f.export(ctx, query, w)
}

func (f Files) export(ctx context.Context, query url.Values, w io.Writer) error {
	body, err := f.stream(ctx, "/archive", query, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	source := &watched{r: body}
	if _, err := io.Copy(w, source); err != nil {
		if source.failure() != nil {
			return client.TransportError(ctx, err)
		}
		return err
	}
	return nil
}

// Import unpacks a tar stream, which may be compressed with zstd, into the
// directory at path, making it: all of it or, on an error, nothing. owner, if
// not empty, is whom the files will belong to.
func (f Files) Import(ctx context.Context, path string, r io.Reader, owner string) error {
	query := at(path)
	query.Set("owner", owner)
	return f.send(ctx, "/archive", query, r, "application/x-tar", nil)
}

// Watch yields the changes below a directory, or of a file, from now on until
// ctx ends or the watched path is removed; any other end is an error.
func (f Files) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[sandbox.FileEvent, error], error) {
	query := at(path)
	query.Set("recursive", strconv.FormatBool(recursive))
	body, err := f.stream(ctx, "/watch", query, nil)
	if err != nil {
		return nil, err
	}
	return func(yield func(sandbox.FileEvent, error) bool) {
		defer body.Close()
		for data, err := range client.ServerSent(ctx, body) {
			var e sandbox.FileEvent
			if err == nil && json.Unmarshal(data, &e) != nil {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}, nil
}

// watched remembers the error of a reader, to tell it from one of the way.
type watched struct {
	r   io.Reader
	mu  sync.Mutex
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil && err != io.EOF {
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
	}
	return n, err
}

func (w *watched) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
