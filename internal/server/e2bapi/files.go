package e2bapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// fileAPI downloads and uploads files.
type fileAPI struct{ *guest }

// fileCall identifies the user for a transfer.
func (h *fileAPI) fileCall(r *http.Request) (*call, error) {
	sb, err := h.open(r.Context())
	if err != nil {
		return nil, err
	}
	user, err := h.accounts.findLately(targetOf(r.Context()).own, sb, r.URL.Query().Get("username"), defaultsOf(&targetOf(r.Context()).Sandbox))
	if err != nil {
		return nil, err
	}
	return &call{sandbox: sb, user: user, header: r.Header}, nil
}

// download sends a file, or parts of it.
func (h *fileAPI) download(w http.ResponseWriter, r *http.Request) error {
	c, err := h.fileCall(r)
	if err != nil {
		return err
	}
	p, err := c.user.path(r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	info, err := c.resolve(r.Context(), p)
	switch {
	case err != nil:
		return err
	case info.Type != sandbox.TypeFile:
		return invalid("path", "%.200q is not a regular file", p)
	}
	zip, ok := encoding(r.Header.Get("Accept-Encoding"))
	if !ok {
		writeJSON(w, http.StatusNotAcceptable, problem{Code: http.StatusNotAcceptable, Message: "no acceptable encoding: there are identity and gzip"})
		return nil
	}
	head := w.Header()
	head.Set("Content-Type", "application/octet-stream")
	head.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
	head.Set("Vary", "Accept-Encoding")
	if whole, ok, err := c.whole(r.Context(), info); err != nil {
		return err
	} else if ok {
		return sendWhole(w, r, info.ModTime, whole, zip)
	}
	content := &seekable{ctx: r.Context(), files: c.sandbox.Files(), info: info}
	defer content.close()
	if zip && r.Header.Get("Range") == "" {
		head.Set("Content-Encoding", "gzip")
		return sendGzip(w, content)
	}
	http.ServeContent(straight{w}, r, "", info.ModTime, content)
	if content.err != nil {
		panic(http.ErrAbortHandler) // a part must not look complete
	}
	return nil
}

// maxWhole is the size up to which a file is read before it is sent. Files in
// /proc and /sys report the size 0 or one page, whatever their content.
const maxWhole = 4096

// whole returns a reader for a file with an unreliable size; ok is false for
// other files.
func (c *call) whole(ctx context.Context, info sandbox.FileInfo) (io.ReadCloser, bool, error) {
	if info.Size > maxWhole {
		return nil, false, nil
	}
	open, _, err := c.sandbox.Files().Read(ctx, info.Path, driver.ReadOptions{})
	return open, true, err
}

// sendWhole sends a file that may be longer than its size. Ranges are then not supported.
func sendWhole(w http.ResponseWriter, r *http.Request, modified time.Time, content io.ReadCloser, zip bool) error {
	defer content.Close()
	start, err := io.ReadAll(io.LimitReader(content, maxBuffered+1))
	if err != nil {
		return err
	}
	switch all := io.MultiReader(bytes.NewReader(start), content); {
	case zip && r.Header.Get("Range") == "":
		w.Header().Set("Content-Encoding", "gzip")
		return sendGzip(w, all)
	case len(start) <= maxBuffered:
		http.ServeContent(w, r, "", modified, bytes.NewReader(start))
	default:
		if _, err := io.Copy(w, all); err != nil {
			panic(http.ErrAbortHandler) // a part must not look complete
		}
	}
	return nil
}

// maxBuffered is how much of a file is buffered in memory to find out its length.
const maxBuffered = 64 << 10

// encoding decides whether to compress. Clients that accept uncompressed data
// get it, because that is faster here; only a client that requires gzip gets
// it.
func encoding(accept string) (zip, ok bool) {
	identity, any := true, false
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(strings.ToLower(strings.TrimSpace(part)), ";")
		key, value, _ := strings.Cut(strings.TrimSpace(params), "=")
		weight, err := strconv.ParseFloat(value, 64)
		allowed := key != "q" || err != nil || weight > 0
		switch strings.TrimSpace(name) {
		case "":
		case "identity":
			identity = allowed
		case "gzip":
			zip = allowed
		case "*":
			if !allowed {
				identity = false
			}
		default:
			any = true
		}
	}
	if zip && identity && any {
		return false, true
	}
	return zip, zip || identity
}

func sendGzip(w http.ResponseWriter, content io.Reader) error {
	z := gzip.NewWriter(w)
	_, err := io.Copy(z, content)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// seekable reads a file of a sandbox at any offset.
type seekable struct {
	ctx   context.Context
	files Files
	info  sandbox.FileInfo
	at    int64
	open  io.ReadCloser
	err   error // the first error other than io.EOF
}

func (s *seekable) Read(b []byte) (int, error) {
	if s.at >= s.info.Size {
		return 0, io.EOF
	}
	if s.open == nil {
		if s.open, _, s.err = s.files.Read(s.ctx, s.info.Path, driver.ReadOptions{Offset: s.at}); s.err != nil {
			return 0, s.err
		}
	}
	n, err := s.open.Read(b)
	s.at += int64(n)
	if err == io.EOF && s.at < s.info.Size {
		err = io.ErrUnexpectedEOF // it was cut while it was read
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func (s *seekable) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.info.Size
	}
	if offset < 0 {
		return 0, errors.New("before the beginning")
	}
	if offset != s.at {
		s.close()
		s.at = offset
	}
	return offset, nil
}

// sendTo writes exactly n bytes, in chunks as they arrive.
func (s *seekable) sendTo(w io.Writer, n int64) (sent int64, err error) {
	if n <= 0 {
		return 0, nil // the length 0 would mean all
	}
	s.close()
	open, _, err := s.files.Read(s.ctx, s.info.Path, driver.ReadOptions{Offset: s.at, Length: n})
	if err == nil {
		sent, err = io.Copy(w, open)
		_ = open.Close()
	}
	if err == nil && sent < n {
		err = io.ErrUnexpectedEOF // it was cut while it was read
	}
	s.at += sent
	s.err = err
	return sent, err
}

// straight lets http.ServeContent copy from a file without another buffer.
type straight struct{ http.ResponseWriter }

// ReadFrom implements io.ReaderFrom.
func (w straight) ReadFrom(from io.Reader) (int64, error) {
	if part, ok := from.(*io.LimitedReader); ok {
		if content, ok := part.R.(*seekable); ok {
			return content.sendTo(w.ResponseWriter, part.N)
		}
	}
	return io.Copy(w.ResponseWriter, from)
}

// Unwrap lets http.ResponseController find the wrapped writer.
func (w straight) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (s *seekable) close() {
	if s.open != nil {
		_ = s.open.Close()
		s.open = nil
	}
}

// uploaded is a written file.
type uploaded struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// uploadBuffer is how many bytes of a form are read from the connection at once.
const uploadBuffer = 128 << 10

// upload writes the files of a form, or one file that is the body.
func (h *fileAPI) upload(w http.ResponseWriter, r *http.Request) error {
	metadata, err := metadataIn(r.Header)
	if err != nil {
		return err
	}
	c, err := h.fileCall(r)
	if err != nil {
		return err
	}
	c.metadata = metadata
	body := io.Reader(r.Body)
	switch strings.ToLower(r.Header.Get("Content-Encoding")) {
	case "", "identity":
	case "gzip":
		if body, err = gzip.NewReader(body); err != nil {
			return invalid("body", "is not gzip")
		}
	default:
		return invalid("Content-Encoding", "is neither identity nor gzip")
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return invalid("Content-Type", "is missing or malformed")
	}
	var done []uploaded
	switch kind {
	case "application/octet-stream":
		done, err = c.writeOne(r, body)
	case "multipart/form-data":
		done, err = c.writeParts(r, multipart.NewReader(bufio.NewReaderSize(body, uploadBuffer), params["boundary"]))
	default:
		err = invalid("Content-Type", "is neither multipart/form-data nor application/octet-stream")
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

func (c *call) writeOne(r *http.Request, body io.Reader) ([]uploaded, error) {
	given := r.URL.Query().Get("path")
	if given == "" {
		return nil, invalid("path", "none given")
	}
	u, err := c.write(r.Context(), given, body)
	return []uploaded{u}, err
}

// writeParts writes the parts of a form that are named "file". The destination
// is the path of the request or, without one, the part's file name.
func (c *call) writeParts(r *http.Request, form *multipart.Reader) ([]uploaded, error) {
	done, seen := []uploaded{}, map[string]bool{}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			return done, nil
		}
		if err != nil {
			return nil, invalid("body", "is not a form")
		}
		if part.FormName() != "file" {
			continue
		}
		given := r.URL.Query().Get("path")
		if given == "" {
			// Part.FileName would remove the directories.
			_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			if given = params["filename"]; given == "" {
				return nil, invalid("path", "none given, and a part has no file name")
			}
		}
		if seen[given] {
			return nil, invalid("path", "%.200q is written twice in one request", given)
		}
		seen[given] = true
		u, err := c.write(r.Context(), given, part)
		if err != nil {
			return nil, err
		}
		done = append(done, u)
	}
}

func (c *call) write(ctx context.Context, given string, from io.Reader) (uploaded, error) {
	p, err := c.user.path(given)
	if err != nil {
		return uploaded{}, err
	}
	at := p
	switch info, err := c.resolve(ctx, p); {
	case err == nil && info.Type == sandbox.TypeDir:
		return uploaded{}, invalid("path", "%.200q is a directory", p)
	case err == nil:
		at = info.Path // write through the link instead of replacing it
	}
	u := uploaded{Path: p, Name: path.Base(p), Type: "file"}
	_, err = c.sandbox.Files().Overwrite(ctx, at, from, driver.OverwriteOptions{Owner: c.user.name, Namespace: metadataNamespace, Attributes: c.metadata})
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		_, err = c.sandbox.Files().Write(ctx, at, from, driver.WriteOptions{Owner: c.user.name})
		return u, err
	}
	u.Metadata = c.metadata
	return u, err
}
