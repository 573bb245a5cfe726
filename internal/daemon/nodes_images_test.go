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
	for _, n := range []*nodeDaemon{s.a, s.b} {
		n.kill(t)
		n.blobs = bucket
		n.start(t)
	}
	s.start(t)
	box := s.create(t, sandbox.Spec{Name: "one", Image: ref.Name(), Provider: "node-a"})
	shell(t, box, "echo far > /f")
	saved(t, box, "before")
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
