package image

import (
	"bytes"
	"context"
	"encoding/json"
	"log"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

var discard = log.New(new(bytes.Buffer), "", 0)

func writeFile(t testing.TB, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t testing.TB, data []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zstded(t testing.TB, data []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

func wantFiles(t *testing.T, img *Image, want map[string]string) {
	t.Helper()
	if got := files(t, img); !maps.Equal(got, want) {
		t.Errorf("files are %q, want %q", got, want)
	}
}

func TestTar(t *testing.T) {
	plain := tarOf(t, "etc/", "", "etc/passwd", "root:x:0:0", "bin", "->usr/bin", ".wh.literal", "kept")
	want := map[string]string{"etc/": "", "etc/passwd": "root:x:0:0", "bin": "->usr/bin", ".wh.literal": "kept"}
	s := open(t, Options{})
	digests := map[string]bool{}
	for kind, data := range map[string][]byte{"plain": plain, "gzip": gzipped(t, plain), "zstd": zstded(t, plain), "two gzips": append(gzipped(t, plain[:700]), gzipped(t, plain[700:])...)} {
		img := mustGet(t, s, "tar:"+writeFile(t, filepath.Join(t.TempDir(), "r.tar"), data), GetOptions{})
		wantFiles(t, img, want)
		digests[img.Digest] = true
		if t.Failed() {
			t.Fatal(kind)
		}
	}
	if len(digests) != 1 {
		t.Error("one tree has several digests")
	}
}

func TestTarThatChanges(t *testing.T) {
	s, path := open(t, Options{}), filepath.Join(t.TempDir(), "r.tar")
	writeFile(t, path, tarOf(t, "f", "1"))
	wantFiles(t, mustGet(t, s, "tar:"+path, GetOptions{}), map[string]string{"f": "1"})
	writeFile(t, path, tarOf(t, "f", "22"))
	wantFiles(t, mustGet(t, s, "tar:"+path, GetOptions{}), map[string]string{"f": "22"})
}

func TestBrokenTars(t *testing.T) {
	dir := t.TempDir()
	good := tarOf(t, "f", string(bytes.Repeat([]byte("x"), 5000)))
	s := open(t, Options{})
	for what, data := range map[string][]byte{
		"junk":           bytes.Repeat([]byte("junk"), 1000),
		"cut tar":        good[:2000],
		"cut gzip":       gzipped(t, good)[:50],
		"cut zstd":       zstded(t, good)[:20],
		"gzip magic":     {0x1f, 0x8b, 0xff, 0xff},
		"dot dot":        tarOf(t, "../../evil", "x"),
		"corrupted gzip": func() []byte { z := gzipped(t, good); z[len(z)-6] ^= 1; return z }(),
	} {
		_, err := s.Get(context.Background(), "tar:"+writeFile(t, filepath.Join(dir, what), data), GetOptions{})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if left, _ := os.ReadDir(s.path("tmp")); len(left) > 0 {
		t.Errorf("failed imports left %d files", len(left))
	}
	if left, _ := os.ReadDir(s.path("rootfs")); len(left) > 0 {
		t.Errorf("failed imports made %d file systems", len(left))
	}
}

func TestCompressionBomb(t *testing.T) {
	s := open(t, Options{Limits: Limits{RatioFrom: 1 << 20}})
	bomb := zstded(t, tarOf(t, "zeros", string(make([]byte, 16<<20))))
	_, err := s.Get(context.Background(), "tar:"+writeFile(t, filepath.Join(t.TempDir(), "bomb"), bomb), GetOptions{})
	wantCode(t, err, sandbox.CodeExhausted, "200-fold")
}

func TestSourcesThatAreNotFiles(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, filepath.Join(dir, "file"), nil)
	s := open(t, Options{})
	for ref, code := range map[string]sandbox.Code{
		"tar:" + dir + "/none": sandbox.CodeNotFound, "tar:" + fifo: sandbox.CodeInvalid, "tar:" + dir: sandbox.CodeInvalid,
		"dir:" + dir + "/none": sandbox.CodeNotFound, "dir:" + file: sandbox.CodeInvalid,
		"oci:" + dir + "/none": sandbox.CodeNotFound, "oci:" + dir: sandbox.CodeNotFound, "oci:" + file: sandbox.CodeInvalid,
		"docker-archive:" + dir + "/none": sandbox.CodeNotFound, "docker-archive:" + fifo: sandbox.CodeInvalid, "docker-archive:" + file: sandbox.CodeInvalid,
	} {
		if _, err := s.Get(context.Background(), ref, GetOptions{}); sandbox.CodeOf(err) != code {
			t.Errorf("%s: got %v, want %s", ref, err, code)
		}
	}
}

func TestDir(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/etc/conf", []byte("1"))
	writeFile(t, dir+"/one", []byte("shared"))
	if err := os.Link(dir+"/one", dir+"/two"); err != nil {
		t.Fatal(err)
	}
	outside := writeFile(t, filepath.Join(t.TempDir(), "secret"), []byte(canary))
	for name, target := range map[string]string{"l": outside, "l.": "../../../etc/shadow"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{})
	img := mustGet(t, s, "dir:"+dir, GetOptions{})
	want := map[string]string{
		"etc/": "", "etc/conf": "1", "one": "shared", "two": "shared", "l": "->" + outside, "l.": "->../../../etc/shadow", "fifo": "p---------",
	}
	wantFiles(t, img, want)
	writeFile(t, dir+"/etc/conf", []byte("2"))
	want["etc/conf"] = "2"
	wantFiles(t, mustGet(t, s, "dir:"+dir, GetOptions{}), want)
}

func TestLayout(t *testing.T) {
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	add := func(tag, data string) v1.Image {
		img := imageOf(t, "linux/amd64", tarOf(t, "base", "b", "gone", "x"), tarOf(t, "f", data, ".wh.gone", ""))
		if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{annotationName: tag})); err != nil {
			t.Fatal(err)
		}
		return img
	}
	one := add("one", "1")
	s := open(t, Options{})
	linux := GetOptions{Platform: "linux/amd64"}
	img := mustGet(t, s, "oci:"+dir, linux)
	wantFiles(t, img, map[string]string{"base": "b", "f": "1"})
	if d, _ := one.Digest(); img.Digest != d.String() {
		t.Errorf("digest %s, want %s", img.Digest, d)
	}
	checkConfig(t, img)

	add("two", "2")
	wantFiles(t, mustGet(t, s, "oci:"+dir+":two", linux), map[string]string{"base": "b", "f": "2"})
	_, err = s.Get(context.Background(), "oci:"+dir, linux)
	wantCode(t, err, sandbox.CodeInvalid, "several")
	_, err = s.Get(context.Background(), "oci:"+dir+":three", linux)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = s.Get(context.Background(), "oci:"+dir+":one", GetOptions{Platform: "linux/s390x"})
	wantCode(t, err, sandbox.CodeNotFound, "linux/s390x")
}

// checkConfig compares with what imageOf wrote.
func checkConfig(t *testing.T, img *Image) {
	t.Helper()
	got, _ := json.Marshal(img.Config)
	const want = `{"entrypoint":["/entry"],"cmd":["run","it"],"env":["PATH=/bin","A=b=c"],"user":"app:staff","workdir":"/srv/app","labels":{"l":"v"},` +
		`"stopSignal":"SIGINT","exposedPorts":["443/tcp","80/tcp"],"volumes":["/data"]}`
	if string(got) != want {
		t.Errorf("config %s\nwant   %s", got, want)
	}
	if img.Platform != "linux/amd64" || img.Created.Unix() != 1_700_000_000 {
		t.Errorf("platform %s, created %v", img.Platform, img.Created)
	}
}

func TestLayoutThatLies(t *testing.T) {
	blob := func(dir string, h v1.Hash) string { return filepath.Join(dir, "blobs", "sha256", h.Hex) }
	for what, spoil := range map[string]func(t *testing.T, dir string, img v1.Image){
		"layer": func(t *testing.T, dir string, img v1.Image) {
			m, _ := img.Manifest()
			writeFile(t, blob(dir, m.Layers[0].Digest), gzipped(t, tarOf(t, "f", "evil")))
		},
		"config": func(t *testing.T, dir string, img v1.Image) {
			m, _ := img.Manifest()
			writeFile(t, blob(dir, m.Config.Digest), []byte(`{"os":"linux"}`))
		},
		"manifest": func(t *testing.T, dir string, img v1.Image) {
			d, _ := img.Digest()
			writeFile(t, blob(dir, d), []byte(`{"schemaVersion":2}`))
		},
		"link out": func(t *testing.T, dir string, img v1.Image) {
			m, _ := img.Manifest()
			if err := os.Remove(blob(dir, m.Config.Digest)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/shadow", blob(dir, m.Config.Digest)); err != nil {
				t.Fatal(err)
			}
		},
		"fifo": func(t *testing.T, dir string, img v1.Image) {
			m, _ := img.Manifest()
			if err := os.Remove(blob(dir, m.Layers[0].Digest)); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(blob(dir, m.Layers[0].Digest), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			img := imageOf(t, "linux/amd64", tarOf(t, "f", "1"))
			p, err := layout.Write(dir, empty.Index)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.AppendImage(img); err != nil {
				t.Fatal(err)
			}
			spoil(t, dir, img)
			_, err = open(t, Options{}).Get(context.Background(), "oci:"+dir, GetOptions{Platform: "linux/amd64"})
			wantCode(t, err, sandbox.CodeInvalid)
		})
	}
}

func TestDockerArchive(t *testing.T) {
	one := imageOf(t, "linux/amd64", tarOf(t, "base", "b"), tarOf(t, "f", "1"))
	two := imageOf(t, "linux/amd64", tarOf(t, "base", "b"), tarOf(t, "f", "2"))
	tag := func(s string) name.Tag {
		tag, err := name.NewTag(s)
		if err != nil {
			t.Fatal(err)
		}
		return tag
	}
	path := filepath.Join(t.TempDir(), "images.tar")
	if err := tarball.MultiWriteToFile(path, map[name.Tag]v1.Image{tag("app:1"): one, tag("app:2"): two}); err != nil {
		t.Fatal(err)
	}
	s, linux := open(t, Options{}), GetOptions{Platform: "linux/amd64"}
	img := mustGet(t, s, "docker-archive:"+path+":app:2", linux)
	wantFiles(t, img, map[string]string{"base": "b", "f": "2"})
	checkConfig(t, img)
	if id, _ := two.ConfigName(); img.Digest != id.String() {
		t.Errorf("digest %s, want the image's id %s", img.Digest, id)
	}
	_, err := s.Get(context.Background(), "docker-archive:"+path, linux)
	wantCode(t, err, sandbox.CodeInvalid, "several")
	_, err = s.Get(context.Background(), "docker-archive:"+path+":app:3", linux)
	wantCode(t, err, sandbox.CodeNotFound)

	single := filepath.Join(t.TempDir(), "one.tar")
	if err := tarball.WriteToFile(single, tag("app:1"), one); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(single)
	if err != nil {
		t.Fatal(err)
	}
	zipped := writeFile(t, single+".gz", gzipped(t, data))
	wantFiles(t, mustGet(t, s, "docker-archive:"+zipped, linux), map[string]string{"base": "b", "f": "1"})
	if left, _ := os.ReadDir(s.path("tmp")); len(left) > 0 {
		t.Errorf("%d temporary files stay", len(left))
	}
	_, err = s.Get(context.Background(), "docker-archive:"+writeFile(t, single+".cut", data[:len(data)/2]), linux)
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = s.Get(context.Background(), "docker-archive:"+writeFile(t, single+".rootfs", tarOf(t, "f", "1")), linux)
	wantCode(t, err, sandbox.CodeInvalid, "manifest.json")
}

func TestImport(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "r.tar"), tarOf(t, "f", "1"))
	s := open(t, Options{})
	img, err := s.Import(context.Background(), "tar:"+path, "myapp:1", GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	got := mustGet(t, s, "docker.io/library/myapp:1", GetOptions{Policy: PolicyNever})
	if got.Digest != img.Digest || got.Ref != "myapp:1" {
		t.Errorf("got %s %s", got.Ref, got.Digest)
	}
	for _, bad := range []string{"", "host", "dir:/x", "UPPER", "a@sha256:" + img.Digest[7:]} {
		if _, err := s.Import(context.Background(), "tar:"+path, bad, GetOptions{}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("name %q: %v", bad, err)
		}
	}
}

// TestForeignLayers uses a media type that must not be distributed.
func TestForeignLayers(t *testing.T) {
	img := imageOf(t, "linux/amd64", tarOf(t, "f", "1"))
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.Append(imageOf(t, "linux/amd64"), mutate.Addendum{Layer: layers[0], MediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	_, err = open(t, Options{}).Get(context.Background(), "oci:"+dir, GetOptions{Platform: "linux/amd64"})
	wantCode(t, err, sandbox.CodeInvalid, "foreign")
}
