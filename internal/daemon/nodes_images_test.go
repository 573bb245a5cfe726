package daemon_test

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
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
