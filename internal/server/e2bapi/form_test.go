package e2bapi

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

const formBoundary = "b0undary"

// readForm says all that a form holds, and how it ends.
func readForm(next func() (*multipart.Part, io.Reader, error)) string {
	var said strings.Builder
	for {
		part, content, err := next()
		if err != nil {
			said.WriteString(err.Error())
			return said.String()
		}
		b, err := io.ReadAll(content)
		said.WriteString(part.FormName() + " " + part.FileName() + ": " + string(b))
		if err != nil {
			said.WriteString(" " + err.Error())
		}
		said.WriteString("\n")
	}
}

// sameForm compares what is read of a body with what the library alone reads.
func sameForm(t *testing.T, body []byte) {
	t.Helper()
	library := multipart.NewReader(bytes.NewReader(body), formBoundary)
	want := readForm(func() (*multipart.Part, io.Reader, error) {
		part, err := library.NextPart()
		return part, part, err
	})
	readers := map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader}
	if len(body) < formBuffer {
		readers["bytes"], readers["with the end"] = iotest.OneByteReader, iotest.DataErrReader
	}
	for name, reader := range readers {
		if got := readForm(newForm(reader(bytes.NewReader(body)), formBoundary).next); got != want {
			t.Errorf("%s: of %.300q it reads %.300q, the library %.300q", name, body, got, want)
		}
	}
}

// formOf makes a form with lines that end so of contents.
func formOf(nl string, contents ...string) []byte {
	var b strings.Builder
	for _, c := range contents {
		b.WriteString("--" + formBoundary + nl + `Content-Disposition: form-data; name="file"; filename="f"` + nl + nl + c + nl)
	}
	return []byte(b.String() + "--" + formBoundary + "--" + nl)
}

func TestFormIsTheLibrarys(t *testing.T) {
	large := make([]byte, formBuffer+formBuffer/2)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(large)
	edge := strings.Repeat("x", formBuffer)
	contents := []string{
		"", "x", "\r", "\n", "\r\n", "\r\r\n\n", "-", "--", "--b0", "\r\n--", "\r\n--b0undar", "x--" + formBoundary, "--" + formBoundary + "x",
		"\r\n--" + formBoundary + "x", "\n--" + formBoundary, "x\n--" + formBoundary + "--", "\r\n--" + formBoundary + "-x", "\r\n--" + formBoundary + " ",
		"--" + formBoundary, "--" + formBoundary + "--", "x\r\n--" + formBoundary + "x--" + formBoundary + "--", string(large), edge, edge + "\r", edge + "\r\n-",
	}
	for k := range 4*len(formBoundary) + 8 { // a boundary across the end of the buffer
		sameForm(t, formOf("\r\n", edge[:formBuffer-60-k]))
	}
	for _, c := range contents {
		sameForm(t, formOf("\r\n", c))
		sameForm(t, formOf("\n", c))
	}
	all := formOf("\r\n", append(contents[:20:20], string(large))...)
	sameForm(t, all)
	for _, cut := range []int{0, 1, 5, 30, 80, 100, 500, 1000, len(all) - 20, len(all) - 5, len(all) - 3, len(all) - 2, len(all) - 1} {
		sameForm(t, all[:cut])
	}
	for _, other := range []string{
		"", "\r\n", "before\r\n" + string(all), string(all) + "after", "--" + formBoundary + "\r\n\r\nwithout a header\r\n--" + formBoundary + "--",
		"--" + formBoundary + "  \r\nContent-Transfer-Encoding: quoted-printable\r\nX-Long: a\r\n b\r\n\r\n=41=\r\nB\r\n--" + formBoundary + "--\r\n",
	} {
		sameForm(t, []byte(other))
	}
}

// What nobody reads is passed over.
func TestFormIsSkipped(t *testing.T) {
	f := newForm(bytes.NewReader(formOf("\r\n", strings.Repeat("\n", formBuffer), "rest")), formBoundary)
	if _, _, err := f.next(); err != nil {
		t.Fatal(err)
	}
	_, content, err := f.next()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(content); string(b) != "rest" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	if _, _, err := f.next(); err != io.EOF {
		t.Error(err)
	}
}

// An error of the connection is what whoever reads the content gets.
func TestFormIsCut(t *testing.T) {
	whole := formOf("\r\n", strings.Repeat("x", 2*formBuffer))
	cut := &http.MaxBytesError{Limit: 1}
	f := newForm(io.MultiReader(bytes.NewReader(whole[:formBuffer]), iotest.ErrReader(cut)), formBoundary)
	_, content, err := f.next()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, content); !errors.Is(err, cut) || n > formBuffer {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func FuzzForm(f *testing.F) {
	f.Add("x\r\n--" + formBoundary)
	f.Add("\n--" + formBoundary + "--\r")
	f.Fuzz(func(t *testing.T, content string) {
		sameForm(t, formOf("\r\n", content, content))
		sameForm(t, []byte("--"+formBoundary+content))
	})
}
