package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func anybody(Provenance) bool { return true }

// lend returns an image with two layers, and its archive.
func lend(t *testing.T, s *Store) (*Image, *Lent, []byte) {
	t.Helper()
	base := writeFile(t, filepath.Join(t.TempDir(), "base.tar"), tarOf(t, "bin/", "", "bin/sh", "shell", "etc/", "", "etc/old", noise(1, 1<<20)))
	from, err := s.Import(t.Context(), "tar:"+base, "base:1", GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.Derive(t.Context(), "template/acme/x", from, []Layer{layerFrom(tarOf(t, "etc/.wh.old", "", "new", "4"))}, Config{Env: []string{"A=1"}, User: "app"})
	if err != nil {
		t.Fatal(err)
	}
	lent, err := s.Lend(t.Context(), img.Digest, anybody)
	if err != nil || lent == nil {
		t.Fatal(lent, err)
	}
	var b bytes.Buffer
	if err := lent.Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return img, lent, b.Bytes()
}

// left are the files that a store has, without its locks.
func left(t *testing.T, s *Store) (names []string) {
	t.Helper()
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && filepath.Base(filepath.Dir(path)) != "locks" {
			names = append(names, strings.TrimPrefix(path, s.dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Another store has an image that was lent under one digest, whoever lends it, with
// its files and its configuration, and without a name.
func TestLend(t *testing.T) {
	s, other := open(t, Options{}), open(t, Options{})
	img, lent, archive := lend(t, s)
	if s.LentAs(img.Digest) != lent.Digest() || other.LentAs(img.Digest) != img.Digest {
		t.Errorf("it is lent as %s and, by who did not lend it, as %s", s.LentAs(img.Digest), other.LentAs(img.Digest))
	}
	for range 2 {
		got, err := other.Accept(t.Context(), lent.Digest(), bytes.NewReader(archive))
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest != lent.Digest() || got.Size != img.Size || !reflect.DeepEqual(got.Config, img.Config) {
			t.Errorf("accepted %+v, lent was %+v", got, img)
		}
	}
	got := mustGet(t, other, lent.Digest(), GetOptions{})
	if !maps.Equal(files(t, got), files(t, img)) {
		t.Errorf("its files are %v, want %v", files(t, got), files(t, img))
	}
	all, err := other.List(t.Context())
	if err != nil || len(all) != 1 || len(all[0].Names) != 0 {
		t.Errorf("the other store lists %+v, %v, want one image without a name", all, err)
	}
	again, err := other.Lend(t.Context(), lent.Digest(), anybody)
	if err != nil || again.Digest() != lent.Digest() {
		t.Errorf("lent on as %v, %v, want %s", again, err, lent.Digest())
	}
	// A layer that both have is not kept twice, and a base that is pulled there is another file.
	if names := left(t, other); len(names) != 3 {
		t.Errorf("the other store has %q, want a record and two layers", names)
	}
	if err := other.Remove(t.Context(), lent.Digest()); err != nil {
		t.Fatal(err)
	}
	if names := left(t, other); len(names) != 0 {
		t.Errorf("after the removal there are %q", names)
	}
}

// Who may use an image is asked before its layers are read, and a refusal is as if
// it was not there. An image that shows this machine's files is not lent.
func TestLendAsks(t *testing.T) {
	s := open(t, Options{})
	img, _, _ := lend(t, s)
	for _, ref := range []string{img.Digest, "base:1"} {
		var asked []Provenance
		got, err := s.Lend(t.Context(), ref, func(p Provenance) bool { asked = append(asked, p); return false })
		if got != nil || err != nil || len(asked) != 1 || asked[0].Pulled || len(asked[0].Names) != 1 {
			t.Errorf("%s: %v, %v after asking about %+v", ref, got, err, asked)
		}
	}
	for _, ref := range []string{"none:1", "Not_A Reference", "sha256:" + strings.Repeat("0", 64), img.Digest[:20] + strings.Repeat("0", 51)} {
		if got, err := s.Lend(t.Context(), ref, anybody); got != nil || err != nil {
			t.Errorf("%s: %v, %v, want nothing", ref, got, err)
		}
	}
	reg := newRegistry(t)
	ref := reg.push(t, "team/app:1", imageOf(t, "linux/amd64", tarOf(t, "a", "one")))
	mustGet(t, s, ref, GetOptions{Platform: "linux/amd64"})
	_, err := s.Lend(t.Context(), ref, func(p Provenance) bool {
		if !p.Pulled {
			t.Error("a pulled image is not marked so")
		}
		return false
	})
	if err != nil {
		t.Error(err)
	}
	rec, err := s.readImage(img.Digest)
	if err != nil {
		t.Fatal(err)
	}
	rec.Binds = []Bind{{Source: "/usr", Target: "/usr"}}
	h, _ := digestHex(img.Digest)
	if err := s.writeRecord(rec, "images", h+".json"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Lend(t.Context(), img.Digest, anybody); got != nil || err != nil {
		t.Errorf("an image that shows this machine's files: %v, %v, want nothing", got, err)
	}
}

// repack changes the members of an archive.
func repack(t *testing.T, archive []byte, change func(i int, h *tar.Header, data []byte) []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	r, w := tar.NewReader(bytes.NewReader(archive)), tar.NewWriter(&b)
	for i := 0; ; i++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		data, _ := io.ReadAll(r)
		if data = change(i, h, data); data == nil {
			continue
		}
		h.Size = int64(len(data))
		if err := errors.Join(w.WriteHeader(h), second(w.Write(data))); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
	return b.Bytes()
}

func second(_ int, err error) error { return err }

// What is not exactly the image with the digest is refused, and nothing of it is
// kept: so nobody can put other content in its place, or in that of a pulled layer.
func TestAttackAccept(t *testing.T) {
	s, other := open(t, Options{}), open(t, Options{})
	_, lent, archive := lend(t, s)
	bad := map[string][]byte{"nothing": nil, "text": []byte(strings.Repeat("no image ", 1000))}
	for _, n := range []int{1, 511, 512, 700, len(archive) / 2, len(archive) - 3000} {
		bad[fmt.Sprint("cut at ", n)] = archive[:n]
	}
	for i := range 3 {
		for _, at := range []float64{0.1, 0.5, 0.99} {
			bad[fmt.Sprintf("a changed byte of file %d at %v", i, at)] = repack(t, archive, func(j int, _ *tar.Header, data []byte) []byte {
				if i == j {
					data[int(float64(len(data))*at)] ^= 1
				}
				return data
			})
		}
		bad[fmt.Sprint("without file ", i)] = repack(t, archive, func(j int, _ *tar.Header, data []byte) []byte {
			if i == j {
				return nil
			}
			return data
		})
		bad[fmt.Sprint("with a link as file ", i)] = repack(t, archive, func(j int, h *tar.Header, data []byte) []byte {
			if i == j {
				h.Typeflag, h.Linkname = tar.TypeSymlink, "/etc/passwd"
				return []byte{}
			}
			return data
		})
		bad[fmt.Sprint("with another name of file ", i)] = repack(t, archive, func(j int, h *tar.Header, data []byte) []byte {
			if i == j {
				h.Name = "../" + h.Name
			}
			return data
		})
	}
	bad["with one more file"] = repack(t, append(bytes.Clone(archive[:len(archive)-1024]), repackOne(t)...), func(_ int, _ *tar.Header, data []byte) []byte { return data })
	for what, data := range bad {
		if _, err := other.Accept(t.Context(), lent.Digest(), bytes.NewReader(data)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v, want it invalid", what, err)
		}
		if names := left(t, other); len(names) != 0 {
			t.Fatalf("%s left %q", what, names)
		}
	}
	for _, digest := range []string{"", "sha256:", "../x", "sha256:" + strings.Repeat("0", 64)} {
		_, err := other.Accept(t.Context(), digest, bytes.NewReader(archive))
		wantCode(t, err, sandbox.CodeInvalid)
	}

	// A manifest that its maker made up, with its right digest.
	var about lentAbout
	if err := json.Unmarshal(lent.about, &about); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*lentAbout){
		"another version":  func(a *lentAbout) { a.Version = 9 },
		"another platform": func(a *lentAbout) { a.Platform = "" },
		"no layers":        func(a *lentAbout) { a.Layers = nil },
		"an empty layer":   func(a *lentAbout) { a.Layers[0].Size = 0 },
		"a huge layer":     func(a *lentAbout) { a.Layers[0].Size = 1 << 60 },
		"a path as layer":  func(a *lentAbout) { a.Layers[0].Digest = "sha256:../../x" },
		"another size":     func(a *lentAbout) { a.Layers[1].Size++ },
	} {
		forged := about
		forged.Layers = slices.Clone(about.Layers)
		change(&forged)
		text, _ := json.Marshal(forged)
		data := repack(t, archive, func(i int, _ *tar.Header, data []byte) []byte {
			if i == 0 {
				return text
			}
			return data
		})
		if _, err := other.Accept(t.Context(), "sha256:"+hexSum(text), bytes.NewReader(data)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v, want it invalid", what, err)
		}
		if names := left(t, other); len(names) != 0 {
			t.Fatalf("%s left %q", what, names)
		}
	}
	if _, err := open(t, Options{MaxLayers: 1}).Accept(t.Context(), lent.Digest(), bytes.NewReader(archive)); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("a store for single files: %v, want it unsupported", err)
	}
}

func repackOne(t *testing.T) []byte {
	t.Helper()
	return tarOf(t, "more", "x")
}

// A damaged layer of an image that was lent is replaced when it is lent again, and
// one that changed on this machine is not given away.
func TestLendRepairs(t *testing.T) {
	s, other := open(t, Options{}), open(t, Options{})
	img, lent, archive := lend(t, s)
	got, err := other.Accept(t.Context(), lent.Digest(), bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	damage(t, other.rootfsPath(got.Layers[1]))
	if _, err := other.Accept(t.Context(), lent.Digest(), bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if again := mustGet(t, other, lent.Digest(), GetOptions{}); !maps.Equal(files(t, again), files(t, img)) {
		t.Error("the damaged layer is still there")
	}
	damage(t, s.rootfsPath(img.Layers[1]))
	wantCode(t, lent.Write(t.Context(), io.Discard), sandbox.CodeConflict)
}

func damage(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A store that was killed while it accepted an image has nothing of it when it is
// opened again.
func TestAcceptKilled(t *testing.T) {
	_, lent, archive := lend(t, open(t, Options{}))
	dir := t.TempDir()
	r, w := io.Pipe()
	killed, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	in := &acceptance{s: killed, digest: lent.Digest(), tar: tar.NewReader(r)}
	go func() {
		_, _ = w.Write(archive[:len(archive)-2000])
		_ = w.CloseWithError(errors.New("the connection was lost"))
	}()
	if err := in.read(); err == nil { // and no discard: the process is gone
		t.Fatal("it is complete")
	}
	if len(left(t, killed)) == 0 {
		t.Fatal("there is nothing that could be left")
	}
	for _, f := range in.files {
		_ = f.Close()
	}
	if names := left(t, openAt(t, dir, Options{})); len(names) != 0 {
		t.Errorf("after a kill there are %q", names)
	}
}

// A store that lost an image, or another machine that is to have it under the same
// digest, gets it under that digest, and lends it as the first one did. An image that
// is there stays, and what is not that image leaves nothing.
func TestAcceptAs(t *testing.T) {
	s, other := open(t, Options{}), open(t, Options{})
	img, lent, archive := lend(t, s)
	if has, err := other.Has(img.Digest); has || err != nil {
		t.Errorf("it is there before: %v, %v", has, err)
	}
	for name, data := range map[string][]byte{"cut": archive[:len(archive)/2], "changed": append([]byte("x"), archive[1:]...)} {
		if _, err := other.AcceptAs(t.Context(), img.Digest, lent.Digest(), bytes.NewReader(data)); sandbox.CodeOf(err) != sandbox.CodeInvalid || len(left(t, other)) != 0 {
			t.Errorf("%s: %v, and left is %v", name, err, left(t, other))
		}
	}
	for range 2 {
		got, err := other.AcceptAs(t.Context(), img.Digest, lent.Digest(), bytes.NewReader(archive))
		if err != nil || got.Digest != img.Digest || !reflect.DeepEqual(got.Config, img.Config) {
			t.Fatalf("accepted %+v, %v; want %+v", got, err, img)
		}
	}
	if has, err := other.Has(img.Digest); !has || err != nil {
		t.Errorf("it is there: %v, %v", has, err)
	}
	if got := mustGet(t, other, img.Digest, GetOptions{}); !maps.Equal(files(t, got), files(t, img)) {
		t.Error("it has other files")
	}
	again, err := other.Lend(t.Context(), img.Digest, anybody)
	if err != nil || again.Digest() != lent.Digest() {
		t.Fatalf("it is lent as %v, %v; want %s", again, err, lent.Digest())
	}
	var b bytes.Buffer
	if err := again.Write(t.Context(), &b); err != nil || !bytes.Equal(b.Bytes(), archive) {
		t.Errorf("its archive differs, %v", err)
	}
	before := mustGet(t, s, "base:1", GetOptions{})
	if _, err := s.AcceptAs(t.Context(), before.Digest, lent.Digest(), bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if after := mustGet(t, s, "base:1", GetOptions{}); !slices.Equal(after.Layers, before.Layers) {
		t.Errorf("an image that was there became %+v", after)
	}
}
