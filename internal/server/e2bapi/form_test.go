package e2bapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"
	"testing/iotest"
)

// readForm returns what a form holds, part by part, and how it ends.
func readForm(body io.Reader, boundary string) (parts []string, err error) {
	f, err := newForm(body, boundary)
	if err != nil {
		return nil, err
	}
	for {
		part, err := f.next()
		if err != nil {
			return parts, err
		}
		name, file := part.names()
		content, err := io.ReadAll(part)
		if err != nil {
			return parts, err
		}
		parts = append(parts, fmt.Sprintf("%q %q %q", name, file, content))
	}
}

// libraryForm is readForm by the standard library.
func libraryForm(body io.Reader, boundary string) (parts []string, err error) {
	f := multipart.NewReader(body, boundary)
	for {
		part, err := f.NextPart()
		if err != nil {
			return parts, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return parts, err
		}
		kind, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil || kind != "form-data" {
			params = nil
		}
		parts = append(parts, fmt.Sprintf("%q %q %q", params["name"], params["filename"], content))
	}
}

const head = "Content-Disposition: form-data; name=\"file\"; filename=\"/a/b\"\r\nContent-Type: text/plain\r\n\r\n"

// forms are bodies with the boundary "b".
var forms = []string{
	"--b\r\n" + head + "one\r\n--b\r\n" + head + "two\r\n--b--\r\n",
	"--b \t\r\n" + head + "\r\n--b--\r\nafter",
	"--b\r\n" + head + "\r\r\n\r\n--\r\n-\r\n--bb\r\n--b-\r\n--bx--\r\n\n--b\r\n--b--\r\n",
	"--b\r\n" + head + "\r\n\r\n--b\r\nContent-Disposition: form-data; name=other\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\na=3Db\r\n--b--",
	"--b\r\n\r\n--b\r\n" + head + "--b\r\n" + head + "-", "--b\r\n\r\n--b\r\n" + head + "--b\r\n" + head + "\r\r\n--b--",
	"--b\r\n" + head + strings.Repeat("\r\n--", 3000) + "\r\n--b--\r\n",
	"--b\r\n" + head + strings.Repeat("x", 300_000) + "\r\n--b--\r\n",
	"--b\r\n" + head + "cut", "--b\r\n" + head + "cut\r\n--b", "--b\r\n" + head + "cut\r\n--b-", "--b\r\nContent-", "--", "", "--b--", "no form",
	"--bb\r\n" + head + "\r\n--bb--", "--b\r\nno header\r\n\r\nx\r\n--b--",
	"--b\r\n" + head + "one\r\n--b x\r\n" + head + "two\r\n--b--",
}

// TestForm: it reads what the standard library reads, whatever the sizes of the
// pieces are in which the body comes.
func TestForm(t *testing.T) {
	for i, body := range forms {
		want, wantErr := libraryForm(strings.NewReader(body), "b")
		for name, from := range map[string]io.Reader{
			"at once": strings.NewReader(body), "byte by byte": iotest.OneByteReader(strings.NewReader(body)),
			"by halves": iotest.HalfReader(strings.NewReader(body)), "end with the last": iotest.DataErrReader(strings.NewReader(body)),
		} {
			got, err := readForm(from, "b")
			whole := wantErr == io.EOF // a part that was cut off is none here, though the library may show it
			if (err == io.EOF) != whole || whole && fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("form %d %s: %.300v %v, want %.300v %v", i, name, got, err, want, wantErr)
			}
		}
	}
}

// TestFormInSmallPieces takes the content byte by byte.
func TestFormInSmallPieces(t *testing.T) {
	f, err := newForm(strings.NewReader(forms[2]), "b")
	if err != nil {
		t.Fatal(err)
	}
	part, err := f.next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(iotest.OneByteReader(part))
	if want := "\r\r\n\r\n--\r\n-\r\n--bb\r\n--b-\r\n--bx--\r\n\n--b"; err != nil || string(got) != want {
		t.Errorf("%q %v, want %q", got, err, want)
	}
}

func TestFormIsBounded(t *testing.T) {
	for _, boundary := range []string{"", strings.Repeat("b", maxBoundary+1)} {
		if _, err := newForm(strings.NewReader(""), boundary); err == nil {
			t.Errorf("the boundary %q is taken", boundary)
		}
	}
	endless := io.MultiReader(strings.NewReader("--b\r\nX: "), repeated('x'))
	if _, err := readForm(endless, "b"); !errors.Is(err, errForm) {
		t.Errorf("a header without an end: %v", err)
	}
	broken := errors.New("broken")
	if _, err := readForm(io.MultiReader(strings.NewReader("--b\r\n"+head+"x"), iotest.ErrReader(broken)), "b"); !errors.Is(err, broken) {
		t.Errorf("a body that breaks off: %v", err)
	}
}

// repeated is one byte for ever.
type repeated byte

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// FuzzForm: whatever the standard library reads to the end is read so.
func FuzzForm(f *testing.F) {
	for _, body := range forms[:5] {
		f.Add([]byte(body), uint8(7))
	}
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		want, err := libraryForm(bytes.NewReader(body), "b")
		if err != io.EOF {
			return
		}
		got, err := readForm(pieces{bytes.NewReader(body), int(size) + 1}, "b")
		if err == io.EOF && fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: %v, want %v", body, got, want)
		}
	})
}

// pieces gives at most so much at once.
type pieces struct {
	io.Reader
	size int
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.size)]) }

func BenchmarkForm(b *testing.B) {
	const size = 16 << 20
	body := []byte("--b\r\n" + head + strings.Repeat("x", size) + "\r\n--b--\r\n")
	b.SetBytes(size)
	buf := make([]byte, 128<<10)
	for b.Loop() {
		f, err := newForm(bytes.NewReader(body), "b")
		if err != nil {
			b.Fatal(err)
		}
		part, err := f.next()
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{part}, buf); n != size || err != nil {
			b.Fatal(n, err)
		}
	}
}
