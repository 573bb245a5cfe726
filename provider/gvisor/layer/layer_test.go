package layer

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/provider/internal/netfiles"
	"github.com/atoll-run/atoll/sandbox"
)

// page is the kernel's description of a part of a file: it starts and ends in
// the file, and is at a place of the writable layer.
type page struct{ start, end, at int64 }

// described returns the kernel's description of a file's content.
func described(size int64, pages ...page) string {
	b := binary.LittleEndian.AppendUint64(nil, uint64(size))
	for _, p := range pages {
		for _, v := range []int64{p.start, p.end, p.at} {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
	}
	return string(b)
}

// member is a member of a tar stream.
type member struct {
	name, content string
	header        tar.Header
}

func file(name, content string) member {
	return member{name, content, tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}}
}

// source returns what a sandbox has changed, with upper as its writable layer.
func source(t *testing.T, upper string, members ...member) Source {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		m.header.Name, m.header.Size, m.header.Format = m.name, int64(len(m.content)), tar.FormatPAX
		if err := w.WriteHeader(&m.header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return Source{Tree: bytes.NewReader(b.Bytes()), Upper: strings.NewReader(upper)}
}

// read returns the content of a layer's members by name, and their headers.
func read(t *testing.T, write func(io.Writer) error) (map[string]string, map[string]*tar.Header) {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	content, headers := map[string]string{}, map[string]*tar.Header{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			return content, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		content[h.Name], headers[h.Name] = string(text), h
	}
}

// A snapshot gets only the data of a file with a large hole, and where it
// belongs. An image gets zeros for the hole.
func TestHoles(t *testing.T) {
	const gap = 1 << 20
	s := source(t, "abcdef", file("f", described(gap+3, page{0, 3, 3}, page{gap, gap + 3, 0})))
	content, headers := read(t, s.Save)
	if want := "1048579 0:3,1048576:3"; content["f"] != "defabc" || headers["f"].PAXRecords[guest.SparseRecord] != want {
		t.Errorf("a snapshot has %q at %q, want %q at %q", content["f"], headers["f"].PAXRecords[guest.SparseRecord], "defabc", want)
	}
	content, headers = read(t, s.Export)
	if want := "def" + strings.Repeat("\x00", gap-3) + "abc"; content["f"] != want || headers["f"].PAXRecords[guest.SparseRecord] != "" {
		t.Errorf("an image has %d bytes, want %d, with zeros for the hole", len(content["f"]), len(want))
	}
}

// Removed names and directories that hide the image's are marked as in an image
// layer. The kernel may store removed names as links to the first.
func TestRemovedFiles(t *testing.T) {
	content, _ := read(t, source(
		t, "",
		member{"d/", "", tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{opaqueRecord: "y"}}},
		member{"d/gone", "", tar.Header{Typeflag: tar.TypeChar}},
		member{"also", "", tar.Header{Typeflag: tar.TypeLink, Linkname: "d/gone"}},
	).Save)
	for _, name := range []string{"d/", "d/.wh..wh..opq", "d/.wh.gone", ".wh.also"} {
		if _, ok := content[name]; !ok || len(content) != 4 {
			t.Errorf("%q is missing, or there are others: %q", name, content)
		}
	}
}

// An image does not get the files of the network link.
func TestImageWithoutNetwork(t *testing.T) {
	const ca = "authority"
	s := source(t, ca, file(strings.TrimPrefix(netfiles.FileCA, "/"), described(int64(len(ca)), page{0, int64(len(ca)), 0})), file("own", described(0)))
	if got, err := s.authority(); err != nil || string(got) != ca {
		t.Errorf("the authority is %q, %v; want %q", got, err, ca)
	}
	if content, _ := read(t, s.Save); len(content) != 2 {
		t.Errorf("a snapshot has %q, want both files", content)
	}
	if content, _ := read(t, s.Export); len(content) != 1 || content["own"] != "" {
		t.Errorf("an image has %q, want only the other file", content)
	}
}

// The description of a file comes from a kernel that code inside may control.
func TestForgedDescriptions(t *testing.T) {
	for name, text := range map[string]string{
		"short":      "1234567",
		"odd":        described(9) + "x",
		"backwards":  described(9, page{5, 4, 0}),
		"overlap":    described(9, page{0, 5, 0}, page{4, 6, 0}),
		"before":     described(9, page{0, 5, -1}),
		"no size":    described(-1, page{0, 5, 0}),
		"from below": described(9, page{-3, 5, 0}),
	} {
		if err := source(t, "", file("f", text)).Save(io.Discard); err == nil {
			t.Errorf("%s: the description %q was accepted", name, text)
		}
	}
	var refused *sandbox.Error
	if err := source(t, "", file("f", described(maxWhole+1))).Export(io.Discard); !errors.As(err, &refused) || refused.Code != sandbox.CodeExhausted {
		t.Errorf("a file of %d bytes: %v, want %s", int64(maxWhole+1), err, sandbox.CodeExhausted)
	}
}
