package daemon_test

import (
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Nodes with the same bucket get from it what another one has pulled, also when
// there is no registry any more. A snapshot starts on such a node, too.
func TestNodesShareImages(t *testing.T) {
	reg := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(reg.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(reg.URL, "http://") + "/team/app:1")
	ok(t, err)
	img, err := random.Image(1<<10, 2)
	ok(t, err)
	ok(t, remote.Write(ref, img))
	digest, err := img.Digest()
	ok(t, err)

	bucket := t.TempDir()
	s := &isle{m: daemontest.New(t), a: newNode(t, 32<<30), b: newNode(t, 16<<30)}
	s.a.kill(t)
	s.a.images = bucket
	s.a.start(t)
	s.b.kill(t)
	s.b.blobs = bucket
	s.b.start(t)
	s.start(t)
	sb := s.create(t, sandbox.Spec{Name: "one", Image: ref.Name(), Provider: "node-a"})
	shell(t, sb, "echo far > /f")
	saved(t, sb, "before")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		found, err := filepath.Glob(filepath.Join(bucket, "images", "*", "*"))
		ok(t, err)
		if len(found) >= 4 { // the directory of the manifests, the configuration and the layers
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the bucket has %q", found)
		}
	}

	// What else a has is not there.
	if found, err := filepath.Glob(filepath.Join(bucket, "[a-z]*")); err != nil || len(found) != 1 {
		t.Errorf("the bucket has %q, %v", found, err)
	}

	reg.Close()
	pinned := ref.Context().Name() + "@" + digest.String()
	if out := shell(t, s.create(t, sandbox.Spec{Snapshot: "before", Provider: "node-b"}), "cat /f"); out != "far\n" {
		t.Errorf("from the snapshot: %q", out)
	}
	if got := s.create(t, sandbox.Spec{Image: pinned, Provider: "node-b"}); got.Info().Provider != "node-b" {
		t.Errorf("made: %+v", got.Info())
	}
	ok(t, os.RemoveAll(bucket)) // b has it now
	s.create(t, sandbox.Spec{Image: pinned, Provider: "node-b"})
	images, err := image.Open(filepath.Join(s.b.m.Dir, "images"), image.Options{})
	ok(t, err)
	if got, err := images.Inspect(t.Context(), pinned); err != nil || got.Digest != digest.String() {
		t.Errorf("b has the image %+v, %v", got, err)
	}
}

// logText is what daemons log.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait waits until a line has been logged that matches a pattern.
func (l *logText) wait(t *testing.T, pattern string) {
	t.Helper()
	p := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if p.MatchString(l.String()) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing matches %s in the log:\n%s", pattern, l)
		}
	}
}

// Nodes share images with a key that may do no more than the guide says, at an S3
// server that enforces it. With less, images come from the registry, and the log says
// what the key lacks.
func TestNodesShareImagesWithLimitedKey(t *testing.T) {
	var down atomic.Bool
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	reg := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			http.NotFound(w, r)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(reg.Close)
	push := func(repo string) (tag, pinned string) {
		ref, err := name.ParseReference(strings.TrimPrefix(reg.URL, "http://") + "/team/" + repo + ":1")
		ok(t, err)
		img, err := random.Image(20<<20, 1) // more than one part of an upload
		ok(t, err)
		ok(t, remote.Write(ref, img))
		digest, err := img.Digest()
		ok(t, err)
		return ref.Name(), ref.Context().Name() + "@" + digest.String()
	}
	t.Cleanup(blobtest.Stop)
	address := strings.Replace(blobtest.S3(t), "?", "/a/b?", 1)
	all, err := blob.Open(t.Context(), address)
	ok(t, err)
	ok(t, all.Put(t.Context(), "other", strings.NewReader("."), blob.PutOptions{})) // the credentials are read once
	blobtest.Limit(t, address, blobtest.NodePolicy(t, address))

	s := &isle{m: daemontest.New(t), a: newNode(t, 32<<30), b: newNode(t, 16<<30)}
	var logs logText
	for _, n := range []*nodeDaemon{s.a, s.b} {
		n.kill(t)
		n.images, n.logger = address, slog.New(slog.NewTextHandler(&logs, nil))
		n.start(t)
	}
	s.start(t)
	tag, pinned := push("app")
	s.create(t, sandbox.Spec{Image: tag, Provider: "node-a"})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		found := 0
		for info, err := range all.List(t.Context(), "") {
			ok(t, err)
			if strings.HasPrefix(info.Key, "images/") {
				found++
			}
		}
		if found >= 3 { // the manifest, the configuration and the layer
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the bucket has %d parts, want 3", found)
		}
	}
	late, latePinned := push("late")
	down.Store(true)
	if got := s.create(t, sandbox.Spec{Image: pinned, Provider: "node-b"}); got.Info().Provider != "node-b" {
		t.Errorf("made: %+v", got.Info())
	}
	if text := logs.String(); strings.Contains(text, "part of an image") {
		t.Errorf("the nodes log:\n%s", text)
	}
	down.Store(false)

	policy := blobtest.NodePolicy(t, address)
	blobtest.Limit(t, address, strings.ReplaceAll(policy, `"s3:PutObject", `, ""))
	s.a.kill(t)
	s.a.start(t)
	s.state(t, "a", operator.NodeReady)
	s.create(t, sandbox.Spec{Image: late, Provider: "node-a"})
	logs.wait(t, `cannot be shared with other machines.*a/b/images/blobs/[0-9a-f]+: the S3 service refuses s3:PutObject`)
	blobtest.Limit(t, address, strings.ReplaceAll(policy, `"s3:GetObject", `, ""))
	s.b.kill(t)
	s.b.start(t)
	s.state(t, "b", operator.NodeReady)
	s.create(t, sandbox.Spec{Image: latePinned, Provider: "node-b"})
	logs.wait(t, `cannot be read from where machines share it.*a/b/images/[^ ]+: the S3 service refuses s3:GetObject`)
}

// A daemon removes from its blob store what images nobody used for long, and a node
// that only shares images there does not. It starts while the store cannot be
// reached.
func TestExpireImages(t *testing.T) {
	bucket := t.TempDir()
	put := func(key string, age time.Duration) string {
		path := filepath.Join(bucket, key)
		ok(t, os.MkdirAll(filepath.Dir(path), 0o700))
		ok(t, os.WriteFile(path, nil, 0o600))
		ok(t, os.Chtimes(path, time.Time{}, time.Now().Add(-age)))
		return path
	}
	const day = 24 * time.Hour
	old, young, other := put("images/blobs/old", 15*day), put("images/blobs/young", 13*day), put("recordings/old", 100*day)
	node := daemontest.New(t).Start(t, func(o *daemon.Options) { o.ShareImages, o.ShareImagesKeep = bucket, time.Hour })
	ok(t, node.Close())
	_, err := os.Stat(old)
	ok(t, err)
	daemontest.New(t).Start(t, func(o *daemon.Options) { o.Blobs, o.ShareImagesKeep = bucket, time.Hour }) // less than MinImagesKeep
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(old); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("an old part of an image is still there")
		}
	}
	for _, path := range []string{young, other} {
		_, err := os.Stat(path)
		ok(t, err)
	}
	daemontest.New(t).Start(t, func(o *daemon.Options) { o.ShareImages = "s3://none?endpoint=http://127.0.0.1:1&region=none" })
	opts := daemontest.New(t).Options()
	opts.ShareImages = "s3://me:secret@none"
	if _, err := daemon.Start(t.Context(), opts); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a secret in the address: %v", err)
	}
}

// Of daemons with one database, the one with the first name of those that live
// removes shared images.
func TestFirstOfDaemons(t *testing.T) {
	alone := daemontest.New(t).Start(t, nil)
	if first, err := alone.IsFirst(t.Context()); err != nil || !first {
		t.Errorf("a daemon without others is first: %v, %v", first, err)
	}
	address := storetest.Postgres(t)
	start := func(name string) *daemon.Daemon {
		m := daemontest.New(t)
		ok(t, os.WriteFile(filepath.Join(m.Dir, "node.json"), []byte(`{"node":"`+name+`","instance":""}`), 0o600))
		return m.Start(t, func(o *daemon.Options) { o.Store = address })
	}
	daemons := map[string]*daemon.Daemon{"b": start("b"), "c": start("c"), "d": start("d")}
	check := func(want string) {
		t.Helper()
		for name, d := range daemons {
			if first, err := d.IsFirst(t.Context()); err != nil || first != (name == want) {
				t.Errorf("%s is first: %v, %v, want %s alone", name, first, err, want)
			}
		}
	}
	check("b")
	ok(t, daemons["b"].Close())
	delete(daemons, "b")
	check("c")

	// One that was killed counts until its heartbeat is old.
	for _, dead := range []struct {
		ago  time.Duration
		want string
	}{{core.StaleAfter + 10*time.Second, "c"}, {0, "none"}} {
		s, err := store.Open(t.Context(), address, store.Options{Now: func() time.Time { return time.Now().Add(-dead.ago) }})
		ok(t, err)
		ok(t, s.Update(t.Context(), func(tx *store.Tx) error {
			return tx.Operator().Register(t.Context(), store.Node{ID: "a", Instance: "killed"}, 0)
		}))
		ok(t, s.Close())
		check(dead.want)
	}
}
