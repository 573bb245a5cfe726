package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// world contains images and sandboxes with maps as files. A script is a list of
// words: NAME=CONTENT writes a file, -NAME removes one, ?NAME demands one, and
// "fail" fails.
type world struct {
	mu       sync.Mutex
	images   map[string]worldImage // by digest
	names    map[string]string
	open     int // sandboxes
	ran      []string
	networks []sandbox.Network // of the sandboxes made
	made     int               // images
}

type worldImage struct {
	files map[string]string
	cfg   Config
}

func newWorld() *world {
	w := &world{images: map[string]worldImage{}, names: map[string]string{}}
	w.images["base"] = worldImage{map[string]string{"etc/passwd": "root:x:0:0::/:/bin/sh\napp:x:7:8::/:/bin/sh\n", "etc/group": "staff:x:9:\n"}, Config{Env: []string{"PATH=/bin"}}}
	return w
}

func (w *world) image(digest string) Image {
	return Image{Digest: digest, Config: w.images[digest].cfg}
}

func (w *world) Get(_ context.Context, ref string) (Image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.images[ref]; !ok {
		return Image{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: ref}
	}
	return w.image(ref), nil
}

// Private gives the image to callers that have its name as password.
func (w *world) Private(ctx context.Context, name, ref string, login Login) (Image, error) {
	if username, password := login(); username != "me" || password != ref {
		return Image{}, &sandbox.Error{Code: sandbox.CodeUnauthorized, Subject: ref}
	}
	img, err := w.Get(ctx, ref)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = img.Digest
	return img, err
}

func (w *world) Derived(name string) (Image, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	digest, ok := w.names[name]
	return w.image(digest), ok, nil
}

func (w *world) Derive(_ context.Context, name, base string, layers []Layer, cfg Config) (Image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	files := maps.Clone(w.images[base].files)
	for _, l := range layers {
		if err := apply(files, l); err != nil {
			return Image{}, err
		}
	}
	w.made++
	digest := fmt.Sprintf("image-%d", w.made)
	w.images[digest], w.names[name] = worldImage{files, cfg}, digest
	return w.image(digest), nil
}

func apply(files map[string]string, l Layer) error {
	in, err := l.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := zstd.NewReader(in)
	if err != nil {
		return err
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		content, _ := io.ReadAll(r)
		if gone, ok := strings.CutPrefix(h.Name, ".wh."); ok {
			delete(files, gone)
		} else {
			files[h.Name] = fmt.Sprintf("%s %d:%d", content, h.Uid, h.Gid)
		}
	}
}

func (w *world) Open(_ context.Context, digest string, network sandbox.Network) (Sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	w.networks = append(w.networks, network)
	return &worldSandbox{w: w, image: w.images[digest], wrote: map[string]string{}}, nil
}

type worldSandbox struct {
	w     *world
	image worldImage
	wrote map[string]string
}

func (s *worldSandbox) Close(context.Context) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.open--
	return nil
}

func (s *worldSandbox) ReadFile(_ context.Context, name string, _ int64) ([]byte, error) {
	return []byte(s.image.files[strings.TrimPrefix(name, "/")]), nil
}

func (s *worldSandbox) Exec(_ context.Context, cmd sandbox.Command, out io.Writer) (sandbox.Exit, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.ran = append(s.w.ran, cmd.Shell)
	fmt.Fprintf(out, "ran %s", cmd.Shell)
	for _, word := range strings.Fields(cmd.Shell) {
		if name, ok := strings.CutPrefix(word, "?"); ok && s.image.files[name] == "" || word == "fail" {
			return sandbox.Exit{Code: 1, Reason: sandbox.ReasonExited}, nil
		}
		if name, ok := strings.CutPrefix(word, "-"); ok {
			s.wrote[".wh."+name] = ""
		} else if name, content, ok := strings.Cut(word, "="); ok {
			s.wrote[name] = content + cmd.Env["ARG"]
		}
	}
	return sandbox.Exit{Reason: sandbox.ReasonExited}, nil
}

func (s *worldSandbox) Diff(_ context.Context, out io.Writer) error {
	t := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(s.wrote)) {
		if err := t.WriteHeader(&tar.Header{Name: name, Size: int64(len(s.wrote[name])), Mode: 0o644}); err != nil {
			return err
		}
		if _, err := io.WriteString(t, s.wrote[name]); err != nil {
			return err
		}
	}
	return t.Close()
}

// bench is a builder over a world.
type bench struct {
	*testing.T
	world *world
	b     *Builder
}

func newBench(t *testing.T) *bench {
	t.Helper()
	cache, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	w := newWorld()
	t.Cleanup(func() {
		if w.open != 0 {
			t.Errorf("%d sandboxes were left open", w.open)
		}
	})
	return &bench{t, w, &Builder{Images: w, Sandboxes: w, Cache: cache}}
}

// build builds and returns the files of the image and what ran.
func (b *bench) build(req Request, dockerfile string, args map[string]string) (*Result, map[string]string, []string, error) {
	b.Helper()
	d, err := ParseDockerfile(strings.NewReader(dockerfile), args)
	if err != nil {
		b.Fatal(err)
	}
	req.Description = d
	b.world.ran = nil
	res, err := b.b.Build(b.Context(), req)
	if err != nil {
		return nil, nil, b.world.ran, err
	}
	files := maps.Clone(b.world.images[res.Image.Digest].files)
	delete(files, "etc/passwd")
	delete(files, "etc/group")
	return res, files, b.world.ran, nil
}

// TestBuildWithLogin begins with an image that only its tenant may have.
func TestBuildWithLogin(t *testing.T) {
	b := newBench(t)
	login := func(password string) Login { return func() (string, string) { return "me", password } }
	if _, _, ran, err := b.build(Request{Tenant: "t", Login: login("wrong")}, "FROM base\nRUN x=1", nil); sandbox.CodeOf(err) != sandbox.CodeUnauthorized || len(ran) > 0 {
		t.Errorf("with a wrong password: ran %q, %v", ran, err)
	}
	for _, tenant := range []string{"t", "u"} {
		before := len(b.world.names)
		if _, files, _, err := b.build(Request{Tenant: tenant, Login: login("base")}, "FROM base\nRUN x=1", nil); err != nil || files["x"] == "" {
			t.Errorf("with the password: %q, %v", files, err)
		}
		own := 0
		for name := range b.world.names {
			if strings.HasPrefix(name, ImagePrefix(tenant)) {
				own++
			}
		}
		if own != 2 || len(b.world.names) != before+2 {
			t.Errorf("of the images %v two should be the tenant's", b.world.names)
		}
	}
}

func TestBuild(t *testing.T) {
	b := newBench(t)
	f := tree(t, map[string]string{"src/a": "A"})
	const text = `FROM base
ARG ARG=!
RUN x=1
ENV V=2
USER app
WORKDIR /srv
COPY --chown=app:staff src sub
RUN ?x ?srv/sub/a y=2 -x
ENTRYPOINT ["/run"]
CMD now
LABEL l=m
EXPOSE 80
`
	res, files, ran, err := b.build(Request{Tenant: "t", Files: f}, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"y": "2! 0:0", "srv/sub/a": "A 7:9"}
	if !maps.Equal(files, want) || len(ran) != 2 {
		t.Errorf("files %q, want %q; ran %q", files, want, ran)
	}
	c := res.Image.Config
	if c.User != "app" || c.Workdir != "/srv" || !slices.Equal(c.Env, []string{"PATH=/bin", "V=2"}) || !slices.Equal(c.Cmd, []string{"/bin/sh", "-c", "now"}) ||
		!slices.Equal(c.Entrypoint, []string{"/run"}) || c.Labels["l"] != "m" || !slices.Equal(c.ExposedPorts, []string{"80/tcp"}) {
		t.Errorf("config %+v", c)
	}

	again, _, ran, err := b.build(Request{Tenant: "t", Files: f}, text, nil)
	if err != nil || again.Image.Digest != res.Image.Digest || len(ran) != 0 || again.Cached != 3 {
		t.Errorf("built again: %+v, ran %q, %v", again, ran, err)
	}
	_, files, ran, err = b.build(Request{Tenant: "t", Files: f}, strings.Replace(text, "y=2", "y=3", 1), nil)
	if err != nil || files["y"] != "3! 0:0" || len(ran) != 1 {
		t.Errorf("with a changed last step: %q, ran %q, %v", files, ran, err)
	}
	_, _, ran, err = b.build(Request{Tenant: "t", Files: tree(t, map[string]string{"src/a": "B"})}, text, nil)
	if err != nil || len(ran) != 1 {
		t.Errorf("with a changed file: ran %q, %v", ran, err)
	}
	_, files, ran, err = b.build(Request{Tenant: "t", Files: f}, text, map[string]string{"ARG": "?"})
	if err != nil || files["y"] != "2? 0:0" || len(ran) != 2 {
		t.Errorf("with a changed argument: %q, ran %q, %v", files, ran, err)
	}
	_, _, ran, err = b.build(Request{Tenant: "u", Files: f}, text, nil)
	if err != nil || len(ran) != 2 {
		t.Errorf("another tenant's: ran %q, %v", ran, err)
	}
	_, _, ran, err = b.build(Request{Tenant: "t", Files: f, NoCache: true}, text, nil)
	if err != nil || len(ran) != 2 {
		t.Errorf("without the cache: ran %q, %v", ran, err)
	}
}

func TestBuildTellsWhatItDoes(t *testing.T) {
	b := newBench(t)
	var log []string
	req := Request{Tenant: "t", Log: func(e durable.BuildEvent) {
		log = append(log, fmt.Sprintf("%d/%d %s %v %v", e.Step, e.Steps, e.Text, e.Output, e.Cached))
	}}
	if _, _, _, err := b.build(req, "FROM base\nRUN a=b\n", nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"0/1 FROM base false false", "1/1 RUN a=b false false", "1/1 ran a=b true false"}
	if !slices.Equal(log, want) {
		t.Errorf("told %q, want %q", log, want)
	}
}

// TestBuildNetwork: only run steps have a network, and only the requested one.
// The hosts are not part of a step's key.
func TestBuildNetwork(t *testing.T) {
	b := newBench(t)
	f := tree(t, map[string]string{"a": "A"})
	const text = "FROM base\nCOPY --chown=app a /\nRUN x=1\n"
	hosts := sandbox.Network{Egress: []string{"deb.example.org"}}
	if _, _, _, err := b.build(Request{Tenant: "t", Files: f, Network: hosts}, text, nil); err != nil {
		t.Fatal(err)
	}
	if n := b.world.networks; len(n) != 2 || n[0].Asked() || !slices.Equal(n[1].Egress, hosts.Egress) {
		t.Errorf("networks %+v, want none for the owner and %v for the step", n, hosts.Egress)
	}
	if _, _, ran, err := b.build(Request{Tenant: "t", Files: f}, text, nil); err != nil || len(ran) != 0 {
		t.Errorf("without a network: ran %q, %v", ran, err)
	}
	b.world.networks = nil
	if _, _, _, err := b.build(Request{Tenant: "t", Files: f, NoCache: true}, text, nil); err != nil || slices.ContainsFunc(b.world.networks, sandbox.Network.Asked) {
		t.Errorf("not asked for: networks %+v, %v", b.world.networks, err)
	}
	both := sandbox.Network{Profile: "p", Egress: hosts.Egress}
	if _, _, _, err := b.build(Request{Tenant: "t", Files: f, Network: both}, text, nil); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("two networks at once: %v", err)
	}
}

// TestFailedBuild: the steps before the one that failed need not be done again.
func TestFailedBuild(t *testing.T) {
	b := newBench(t)
	_, _, _, err := b.build(Request{Tenant: "t"}, "FROM base\nRUN a=1\nRUN fail\n", nil)
	if sandbox.CodeOf(err) != sandbox.CodeConflict || !strings.Contains(err.Error(), "RUN fail") {
		t.Errorf("got %v", err)
	}
	_, files, ran, err := b.build(Request{Tenant: "t"}, "FROM base\nRUN a=1\nRUN ?a b=2\n", nil)
	if err != nil || len(ran) != 1 || files["b"] != "2 0:0" {
		t.Errorf("after mending it: %q, ran %q, %v", files, ran, err)
	}
	if _, _, _, err := b.build(Request{Tenant: "t"}, "FROM missing\n", nil); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("without its image: %v", err)
	}
	if _, _, _, err := b.build(Request{Tenant: "t", Files: tree(t, map[string]string{"a": ""})}, "FROM base\nCOPY --chown=nobody a /\n", nil); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("for a user that is not there: %v", err)
	}
}

func TestPrune(t *testing.T) {
	b := newBench(t)
	if _, _, _, err := b.build(Request{Tenant: "t"}, "FROM base\nRUN a=1\n", nil); err != nil {
		t.Fatal(err)
	}
	if n, err := b.b.Cache.Prune("t", time.Now().Add(-time.Hour)); n != 0 || err != nil {
		t.Errorf("what was just used: %d, %v", n, err)
	}
	if n, err := b.b.Cache.Prune("u", time.Now().Add(time.Hour)); n != 0 || err != nil {
		t.Errorf("another tenant's: %d, %v", n, err)
	}
	if n, err := b.b.Cache.Prune("t", time.Now().Add(time.Hour)); n == 0 || err != nil {
		t.Errorf("what is old: %d, %v", n, err)
	}
	b.world.names = map[string]string{}
	if _, _, ran, err := b.build(Request{Tenant: "t"}, "FROM base\nRUN a=1\n", nil); len(ran) != 1 || err != nil {
		t.Errorf("after that: ran %q, %v", ran, err)
	}
}
