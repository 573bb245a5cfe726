package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// fsck runs fsck.erofs, if it is installed.
func fsck(t testing.TB, name string) {
	t.Helper()
	tool := need.Opinion(t, "fsck.erofs")
	if tool == "" {
		return
	}
	if out, err := exec.Command(tool, "--extract", name).CombinedOutput(); err != nil {
		t.Fatalf("fsck.erofs: %v\n%s", err, out)
	}
}

// open opens a store in a new directory.
func open(t testing.TB, opts Options) *Store {
	t.Helper()
	return openAt(t, t.TempDir(), opts)
}

func openAt(t testing.TB, dir string, opts Options) *Store {
	t.Helper()
	if opts.Keychain == nil {
		opts.Keychain = authn.NewMultiKeychain() // not this machine's own
	}
	if opts.RetryDelay == 0 {
		opts.RetryDelay = time.Millisecond
	}
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustGet(t testing.TB, s *Store, ref string, opts GetOptions) *Image {
	t.Helper()
	img, err := s.Get(context.Background(), ref, opts)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// wantCode fails the test unless err has the code and contains the words.
func wantCode(t testing.TB, err error, code sandbox.Code, says ...string) {
	t.Helper()
	if sandbox.CodeOf(err) != code {
		t.Fatalf("got %v, want code %s", err, code)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

// files reads an image back: directories end with a slash, links show their
// target.
func files(t testing.TB, img *Image) map[string]string {
	t.Helper()
	for _, key := range img.Layers {
		fsck(t, filepath.Join(img.dir, key+".erofs"))
	}
	tree, done, err := img.tree()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	out := map[string]string{}
	var walk func(name string, n *mkfs.Node)
	walk = func(dir string, n *mkfs.Node) {
		for base, c := range n.Children {
			name := path.Join(dir, base)
			switch {
			case c.IsDir():
				out[name+"/"] = ""
				walk(name, c)
			case c.IsSymlink():
				out[name] = "->" + c.Target
			case c.Size > 0:
				in, err := tree.Open(c)
				if err != nil {
					t.Fatal(err)
				}
				data, err := io.ReadAll(in)
				if err != nil {
					t.Fatal(err)
				}
				out[name] = string(data)
			case c.IsRegular():
				out[name] = ""
			default:
				out[name] = "p---------"
			}
		}
	}
	walk("", tree.Root)
	return out
}

// tarOf writes a tar: names that end with a slash are directories, contents
// that begin with "->" are symbolic links.
func tarOf(t testing.TB, pairs ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := 0; i < len(pairs); i += 2 {
		hdr := &tar.Header{Name: pairs[i], Mode: 0o644, Typeflag: tar.TypeReg, ModTime: time.Unix(1_600_000_000, 0)}
		data := pairs[i+1]
		if target, ok := strings.CutPrefix(data, "->"); ok {
			hdr.Typeflag, hdr.Linkname, data = tar.TypeSymlink, target, ""
		} else if strings.HasSuffix(pairs[i], "/") {
			hdr.Typeflag, hdr.Mode = tar.TypeDir, 0o755
		}
		hdr.Size = int64(len(data))
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// imageOf makes an image of layers for a platform.
func imageOf(t testing.TB, platform string, layers ...[]byte) v1.Image {
	t.Helper()
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, Created: v1.Time{Time: time.Unix(1_700_000_000, 0)},
		Config: v1.Config{
			Entrypoint: []string{"/entry"}, Cmd: []string{"run", "it"}, Env: []string{"PATH=/bin", "A=b=c"}, User: "app:staff",
			WorkingDir: "srv/app", Labels: map[string]string{"l": "v"}, StopSignal: "SIGINT",
			ExposedPorts: map[string]struct{}{"80/tcp": {}, "443/tcp": {}}, Volumes: map[string]struct{}{"/data": {}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// testRegistry is a real registry on a loopback address. Hooks see requests
// first, and answer them by returning true.
type testRegistry struct {
	*httptest.Server
	host  string
	hooks []func(w http.ResponseWriter, r *http.Request) bool
	seen  chan string // "GET /v2/…", of requests for manifests and blobs
}

func newRegistry(t testing.TB) *testRegistry {
	t.Helper()
	inner := registry.New(registry.Logger(discard))
	r := &testRegistry{seen: make(chan string, 10_000)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet && strings.Count(req.URL.Path, "/") > 3 {
			r.seen <- req.URL.Path
		}
		for _, hook := range r.hooks {
			if hook(w, req) {
				return
			}
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(r.Close)
	r.host = strings.TrimPrefix(r.URL, "http://")
	return r
}

// push puts an image or index into the registry.
func (r *testRegistry) push(t testing.TB, ref string, what remote.Taggable) string {
	t.Helper()
	parsed, err := name.ParseReference(r.host + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	switch v := what.(type) {
	case v1.Image:
		err = remote.Write(parsed, v)
	case v1.ImageIndex:
		err = remote.WriteIndex(parsed, v)
	default:
		err = remote.Tag(parsed.(name.Tag), what)
	}
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Name()
}

// requests returns the paths requested since the last call.
func (r *testRegistry) requests() []string {
	var paths []string
	for len(r.seen) > 0 {
		paths = append(paths, <-r.seen)
	}
	return paths
}

func count(paths []string, part string) int {
	return len(slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return !strings.Contains(p, part) }))
}

// serveRaw answers with a manifest and config that no registry would accept.
func (r *testRegistry) serveRaw(t testing.TB, m *v1.Manifest, cfg *v1.ConfigFile, layer []byte) {
	t.Helper()
	rawConfig, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h, n, _ := v1.SHA256(bytes.NewReader(rawConfig))
	m.Config.Digest = h
	if m.Config.Size < 1<<30 {
		m.Config.Size = n
	}
	rawManifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	r.hooks = append(r.hooks, func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case strings.Contains(req.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", string(m.MediaType))
			_, _ = w.Write(rawManifest)
		case strings.HasSuffix(req.URL.Path, h.Hex):
			_, _ = w.Write(rawConfig)
		case strings.Contains(req.URL.Path, "/blobs/"):
			_, _ = w.Write(layer)
		default:
			return false
		}
		return true
	})
}

// transportTo connects every name to one address.
func transportTo(addr string) http.RoundTripper {
	return &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}, DisableKeepAlives: true}
}
