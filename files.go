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

// Files gives access to the files of a sandbox. Paths are absolute and are
// resolved by the sandbox's own kernel. Its methods may be called concurrently.
type Files struct{ s *Sandbox }

// Files returns the sandbox's files.
func (s *Sandbox) Files() Files { return Files{s} }

// ReadOptions select a part of a file.
type ReadOptions struct {
	Offset int64 // bytes to skip
	Length int64 // maximum number of bytes; 0 means to the end
}

// WriteOptions are options of [Files.Write].
type WriteOptions struct {
	Mode      uint32 // permission bits; 0 keeps an existing file's, else 0o644
	Owner     string // as sandbox.Spec.User; empty: keeps an existing file's, else the sandbox's user
	NoParents bool   // do not make missing parents
	NoReplace bool   // an existing file is CodeAlreadyExists
	// Expect is the SHA-256, in hexadecimal, of the content that the file must have;
	// otherwise the error is CodeConflict. The new content is then at most 25 MiB.
	// Such writes of one sandbox wait for each other; programs in it do not.
	Expect string
}

// MkdirOptions are options of [Files.Mkdir].
type MkdirOptions struct {
	Mode    uint32 // permission bits; 0 means 0o755
	Owner   string // as WriteOptions.Owner
	Parents bool   // make missing parents too; an existing directory is success
}

func (f Files) call(ctx context.Context, method, rest string, query url.Values, in, out any) error {
	return f.s.client.conn.Call(ctx, method, f.s.path("/files"+rest), query, in, out)
}

func at(path string) url.Values { return url.Values{"path": {path}} }

// Stat describes a file. It does not follow a symbolic link in the last
// element.
func (f Files) Stat(ctx context.Context, path string) (info sandbox.FileInfo, err error) {
	return info, f.call(ctx, http.MethodGet, "/stat", at(path), nil, &info)
}

// List yields the files below a directory in lexical order, parents first, and
// ends with the first error. It descends depth levels: 0 means 1, a negative
// depth means all.
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

// stream sends a GET request and returns the body of the response. The caller
// closes it.
func (f Files) stream(ctx context.Context, rest string, query url.Values, header http.Header) (io.ReadCloser, error) {
	return f.s.stream(ctx, "/files"+rest, query, header)
}

func (s *Sandbox) stream(ctx context.Context, rest string, query url.Values, header http.Header) (io.ReadCloser, error) {
	r, err := s.client.conn.Request(ctx, http.MethodGet, s.path(rest), query, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		r.Header[k] = v
	}
	resp, err := s.client.conn.Do(r)
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

// Open is like Read, but also describes the file. It follows symbolic links.
// The FileInfo has size, mode, owner and modification time. An offset beyond
// the end yields an empty reader. The caller closes the reader.
func (f Files) Open(ctx context.Context, path string, opts ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	info := sandbox.FileInfo{Path: path, Type: sandbox.TypeFile}
	if opts.Offset < 0 || opts.Length < 0 {
		return nil, info, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "files.read", Subject: "range", Message: "negative offset or length"}
	}
	r, err := f.s.client.conn.Request(ctx, http.MethodGet, f.s.path("/files"), at(path), nil)
	if err != nil {
		return nil, info, err
	}
	// Always request a range, because the response then has the size in
	// Content-Range.
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

// describeFile fills info from the header of a response.
func describeFile(info *sandbox.FileInfo, h http.Header) {
	if _, size, ok := strings.Cut(h.Get("Content-Range"), "/"); ok {
		info.Size, _ = strconv.ParseInt(size, 10, 64)
	}
	mode, _ := strconv.ParseUint(h.Get("X-Atoll-Mode"), 8, 32)
	info.Mode = uint32(mode)
	_, _ = fmt.Sscanf(h.Get("X-Atoll-Owner"), "%d:%d", &info.UID, &info.GID)
	info.ModTime, _ = http.ParseTime(h.Get("Last-Modified"))
}

// Write creates or replaces a regular file with the content of r. It is atomic:
// on an error the old file stays.
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
	if opts.Expect != "" {
		query.Set("expect", opts.Expect)
	}
	return info, f.send(ctx, "", query, r, "application/octet-stream", &info)
}

// send uploads r. If reading r fails, send returns that error unchanged.
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

// utf8Path refuses a path that is not UTF-8, because encoding/json would
// replace bytes of it silently.
func utf8Path(path string) error {
	if utf8.ValidString(path) {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "path", Message: "is not valid UTF-8"}
}

// Remove removes a file or, if recursive, a tree.
func (f Files) Remove(ctx context.Context, path string, recursive bool) error {
	query := at(path)
	query.Set("recursive", strconv.FormatBool(recursive))
	return f.call(ctx, http.MethodDelete, "", query, nil, nil)
}

// Move renames a file or directory. An existing destination is
// CodeAlreadyExists, unless overwrite is set and the destination is not a
// directory.
func (f Files) Move(ctx context.Context, from, to string, overwrite bool) error {
	if err := errors.Join(utf8Path(from), utf8Path(to)); err != nil {
		return err
	}
	return f.call(ctx, http.MethodPost, "/move", nil, map[string]any{"from": from, "to": to, "overwrite": overwrite}, nil)
}

// Export writes the file or tree at path to w as a tar stream. The stream comes
// from inside the sandbox: do not trust the names, links and modes in it when
// you unpack it.
func (f Files) Export(ctx context.Context, path string, w io.Writer, exclude ...string) error {
	query := at(path)
	query["exclude"] = exclude
	return f.export(ctx, query, w)
}

// ExportZstd is like Export, but the daemon compresses the stream with zstd.
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
	return pour(ctx, w, body)
}

// pour copies the body of a response.
func pour(ctx context.Context, w io.Writer, body io.Reader) error {
	source := &watched{r: body}
	if _, err := io.Copy(w, source); err != nil {
		switch {
		case source.failure() == nil:
			return err
		case ctx.Err() != nil:
			return client.TransportError(ctx, err)
		}
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "client.request", Message: "the answer broke off", Hint: "try again; the daemon's log says why", Cause: err}
	}
	return nil
}

// Import unpacks a tar stream, which may be compressed with zstd, into the
// directory at path, and creates the directory if it is missing. On an error
// nothing is unpacked. owner, if not empty, is the owner of the files, as in
// sandbox.Spec.User.
func (f Files) Import(ctx context.Context, path string, r io.Reader, owner string) error {
	query := at(path)
	query.Set("owner", owner)
	return f.send(ctx, "/archive", query, r, "application/x-tar", nil)
}

// Watch yields the changes of a file or below a directory from now on. It ends
// when ctx ends or the watched path is removed. If the watch breaks off, the
// last pair has an error.
func (f Files) Watch(ctx context.Context, path string, recursive bool) (iter.Seq2[sandbox.FileEvent, error], error) {
	query := at(path)
	query.Set("recursive", strconv.FormatBool(recursive))
	return watching[sandbox.FileEvent](ctx, f.s, "/files/watch", query)
}

// watching yields the server-sent events of a sandbox.
func watching[T any](ctx context.Context, s *Sandbox, rest string, query url.Values) (iter.Seq2[T, error], error) {
	body, err := s.stream(ctx, rest, query, nil)
	if err != nil {
		return nil, err
	}
	return func(yield func(T, error) bool) {
		defer body.Close()
		for data, err := range client.ServerSent(ctx, body) {
			var e T
			if errors.Is(err, io.EOF) || err == nil && json.Unmarshal(data, &e) != nil {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}, nil
}

// watched remembers the error of a reader, to tell it from a transport error.
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
