package e2bapi

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/textproto"
	"slices"
	"strings"
)

// form reads multipart/form-data. It does what mime/multipart does, but reads
// from the connection right into the buffer of whoever takes the content, and
// looks for the boundary there, once. The library copies every byte twice, 4 KiB
// at a time, and looks at each by itself.
type form struct {
	body      io.Reader
	delimiter []byte // that ends a part: a line break, two hyphens, the boundary
	held      []byte // was read, and belongs to what comes next
	content   bool   // a part is being read
	first     bool   // nothing was read: no client begins with what is no part
}

// Bounds of what is held of a form.
const (
	maxBoundary   = 70
	maxPartHeader = 64 << 10
)

var errForm = errors.New("malformed form")

func newForm(body io.Reader, boundary string) (*form, error) {
	if boundary == "" || len(boundary) > maxBoundary {
		return nil, errForm
	}
	// The first delimiter has no line break before it, so that one is made up.
	return &form{body: body, delimiter: []byte("\r\n--" + boundary), held: []byte("\r\n"), content: true, first: true}, nil
}

// formPart is a part of a form. It is read before the next is asked for.
type formPart struct {
	io.Reader
	header textproto.MIMEHeader
}

// next returns the next part, and io.EOF after the last.
func (f *form) next() (*formPart, error) {
	switch n, err := io.Copy(io.Discard, struct{ io.Reader }{f}); {
	case err != nil:
		return nil, err
	case f.first && n > 0:
		return nil, errForm
	}
	f.first = false
	held := bytes.NewReader(f.held[len(f.delimiter):])
	lines := bufio.NewReader(io.LimitReader(io.MultiReader(held, f.body), maxPartHeader))
	line, _ := lines.ReadString('\n') // the last need have no end
	rest, whole := strings.CutSuffix(line, "\r\n")
	switch rest = strings.TrimRight(rest, " \t"); {
	case rest == "--":
		return nil, io.EOF
	case rest != "" || !whole:
		return nil, errForm
	}
	header, err := textproto.NewReader(lines).ReadMIMEHeader()
	if err != nil {
		return nil, errForm
	}
	read, _ := lines.Peek(lines.Buffered())
	f.held = slices.Concat([]byte("\r\n"), read, f.held[len(f.held)-held.Len():])
	f.content = true
	if err := f.skipBreak(); err != nil {
		return nil, err
	}
	part := &formPart{f, header}
	if strings.EqualFold(header.Get("Content-Transfer-Encoding"), "quoted-printable") {
		part.Reader = quotedprintable.NewReader(f)
	}
	return part, nil
}

// skipBreak drops the line break before the content, which of a part without
// any may be the first of the next delimiter.
func (f *form) skipBreak() error {
	begin := make([]byte, len(f.delimiter)+3)
	switch n, err := f.take(begin); {
	case err == io.EOF:
	case err != nil:
		return err
	default: // it is at least the break: less could still begin a delimiter
		f.held = append(bytes.Clone(begin[2:n]), f.held...)
	}
	return nil
}

// names returns the name of a part and that of its file, directories included.
func (p *formPart) names() (name, file string) {
	kind, params, err := mime.ParseMediaType(p.header.Get("Content-Disposition"))
	if err != nil || kind != "form-data" {
		return "", ""
	}
	return params["name"], params["filename"]
}

// Read reads the content of the present part.
func (f *form) Read(p []byte) (int, error) {
	if !f.content {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	// Whether there is a delimiter, two bytes after it tell.
	if least := len(f.delimiter) + 3; len(p) < least {
		small := make([]byte, least)
		n, err := f.take(small)
		f.held = append(bytes.Clone(small[min(n, len(p)):n]), f.held...)
		return copy(p, small[:n]), err
	}
	return f.take(p)
}

// take fills some of p, which has room for more than a delimiter, with content.
func (f *form) take(p []byte) (int, error) {
	n := copy(p, f.held)
	f.held = f.held[n:]
	for {
		end, over := f.end(p[:n])
		if over || end > 0 {
			f.held = append(bytes.Clone(p[end:n]), f.held...)
			if f.content = !over; over && end == 0 {
				return 0, io.EOF
			}
			return end, nil
		}
		k, err := f.body.Read(p[n:])
		n += k
		switch {
		case k > 0:
		case err == io.EOF:
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		}
	}
}

// end returns how much of b is content for sure, and whether a delimiter
// follows that.
func (f *form) end(b []byte) (n int, over bool) {
	for from := 0; ; {
		i := bytes.Index(b[from:], f.delimiter)
		if i < 0 {
			return len(b) - f.begun(b[from:]), false
		}
		from += i
		switch after := b[from+len(f.delimiter):]; {
		case len(after) == 0 || len(after) == 1 && after[0] == '-':
			return from, false // what follows will tell
		case strings.IndexByte(" \t\r\n", after[0]) >= 0 || after[0] == '-' && after[1] == '-':
			return from, true
		}
		from++
	}
}

// begun returns how many of the last bytes of b may begin a delimiter.
func (f *form) begun(b []byte) int {
	tail := b[max(0, len(b)-len(f.delimiter)+1):]
	for len(tail) > 0 {
		i := bytes.IndexByte(tail, f.delimiter[0])
		if i < 0 {
			return 0
		}
		if tail = tail[i:]; bytes.HasPrefix(f.delimiter, tail) {
			return len(tail)
		}
		tail = tail[1:]
	}
	return 0
}
