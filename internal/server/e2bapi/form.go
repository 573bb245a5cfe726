package e2bapi

import (
	"bufio"
	"bytes"
	"io"
	"mime/multipart"
	"mime/quotedprintable"
	"strings"
)

// form reads the parts of a form, of which large files are. The library's reader
// takes everything in pieces of 4 KiB and copies it twice, which is more than all
// else that an upload costs here. So it gets no more than a line at a time, by
// which it knows the parts and finds their ends, and what surely is in between
// goes past it.
type form struct {
	from   *bufio.Reader
	reader *multipart.Reader
	dash   []byte // what each boundary begins with
	err    error  // what came instead of more
	now    *formPart
	// inside is how much the library has been given and has not passed on.
	inside int
}

// formBuffer is how much of a form is taken from the connection at once.
const formBuffer = 128 << 10

// fill waits until there are n bytes to be taken, or returns why there will not
// be so many any more.
func (f *form) fill(n int) error {
	if f.from.Buffered() < n && f.err == nil {
		_, f.err = f.from.Peek(n)
	}
	if f.from.Buffered() >= n {
		return nil
	}
	return f.err
}

func newForm(body io.Reader, boundary string) *form {
	f := &form{from: bufio.NewReaderSize(body, formBuffer), dash: []byte("\n--" + boundary)}
	f.reader = multipart.NewReader((*formLines)(f), boundary)
	return f
}

// next returns the next part and its content, which ends with the next call.
func (f *form) next() (*multipart.Part, io.Reader, error) {
	if f.now != nil {
		_, _ = io.Copy(io.Discard, f.now) // the library would take each line by itself
	}
	part, err := f.reader.NextRawPart()
	if err != nil {
		return nil, nil, err
	}
	f.inside = 0 // it has read to the end of the line that ends the part's header
	f.now = &formPart{form: f, part: part}
	content := io.Reader(f.now)
	if strings.EqualFold(part.Header.Get("Content-Transfer-Encoding"), "quoted-printable") {
		content = quotedprintable.NewReader(content)
	}
	return part, content, nil
}

// formLines is what the library reads a form from: a line, and then the end of the
// line. With the latter it would wait for what follows.
type formLines form

func (f *formLines) Read(p []byte) (int, error) {
	if err := (*form)(f).fill(1); err != nil {
		return 0, err
	}
	line, _ := f.from.Peek(min(len(p), f.from.Buffered()))
	switch end := bytes.IndexByte(line, '\n'); {
	case end == 0 || end == 1 && line[0] == '\r':
		line = line[:end+1]
	case end > 0 && line[end-1] == '\r':
		line = line[:end-1]
	case end > 0:
		line = line[:end]
	}
	n := copy(p, line)
	_, _ = f.from.Discard(n)
	f.inside += n
	return n, nil
}

// formPart is the content of a part.
type formPart struct {
	form  *form
	part  *multipart.Part
	begun bool
}

func (c *formPart) Read(p []byte) (int, error) {
	n := 0
	if c.form.inside == 0 {
		n = c.form.plain(p, !c.begun)
	}
	c.begun = true
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	n, err := c.part.Read(p)
	c.form.inside -= n
	return n, err
}

// plain takes what comes before anything that could be a boundary. At the first
// byte of a part that needs no end of line before it.
func (f *form) plain(p []byte, first bool) int {
	_ = f.fill(len(f.dash) + 1) // a boundary and the end of the line before it, or the library finds out what is missing
	b, _ := f.from.Peek(f.from.Buffered())
	if first && (bytes.HasPrefix(b, f.dash[1:]) || bytes.HasPrefix(f.dash[1:], b)) {
		return 0
	}
	end := f.boundary(b)
	if end < 0 {
		end = len(b)
		tail := max(0, end-len(f.dash)) // to look for the last of a whole buffer would cost as much as all else
		if last := bytes.LastIndexByte(b[tail:], '\n'); last >= 0 && bytes.HasPrefix(f.dash, b[tail+last:]) {
			end = tail + last
		}
	}
	if end > 0 && b[end-1] == '\r' {
		end-- // belongs to the end of line that may follow
	}
	n := copy(p, b[:end])
	_, _ = f.from.Discard(n)
	return n
}

// boundary finds the end of line before what looks like a boundary. It looks for
// the boundary, since ends of lines are many.
func (f *form) boundary(b []byte) int {
	for at := 1; at < len(b); at++ {
		i := bytes.Index(b[at:], f.dash[1:])
		if i < 0 {
			break
		}
		if at += i; b[at-1] == '\n' {
			return at - 1
		}
	}
	return -1
}
