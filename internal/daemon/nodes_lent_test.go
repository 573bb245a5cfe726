package daemon_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/eventtype"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// filesTar writes a tar of files: names and contents.
func filesTar(t *testing.T, pairs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		ok(t, w.WriteHeader(&tar.Header{Name: pairs[i], Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(pairs[i+1]))}))
		_, err := w.Write([]byte(pairs[i+1]))
		ok(t, err)
	}
	ok(t, w.Close())
	return b.Bytes()
}

func imagesOf(t *testing.T, m *daemontest.Machine) *image.Store {
	t.Helper()
	s, err := image.Open(filepath.Join(m.Dir, "images"), image.Options{})
	ok(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// importBase gives an image of a tar a name on a machine.
func importBase(t *testing.T, m *daemontest.Machine) *image.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "base.tar")
	ok(t, os.WriteFile(path, filesTar(t, "bin/sh", strings.Repeat("shell ", 1<<16)), 0o600))
	img, err := imagesOf(t, m).Import(t.Context(), "tar:"+path, "base:1", image.GetOptions{})
	ok(t, err)
	return img
}

func build(t *testing.T, c *atoll.Client, name string) string {
	t.Helper()
	made, err := c.BuildTemplate(t.Context(), bytes.NewReader(filesTar(t, "Dockerfile", "FROM base:1\nCOPY f /f\nENV A=1\n", "f", "far")), atoll.BuildOptions{Name: name})
	ok(t, err)
	return made.Image
}

// imagesOn lists the images of a node.
func imagesOn(t *testing.T, n *nodeDaemon) []*image.Image {
	t.Helper()
	all, err := imagesOf(t, n.m).List(t.Context())
	ok(t, err)
	return all
}

// sent counts the images that were sent to a node.
func sent(t *testing.T, n *nodeDaemon) (count int) {
	t.Helper()
	for e, err := range n.client(t).Events(t.Context(), sandbox.EventQuery{Ops: []string{"image.import"}}) {
		ok(t, err)
		if e.Type == eventtype.Done {
			count++
		}
	}
	return count
}

// A template that was built through the control daemon, and an image that was
// imported there, start sandboxes on every node, which gets them once. A node that
// has one is chosen for it. A snapshot of such a sandbox starts on the other node.
func TestNodesLendImages(t *testing.T) {
	s := newIsleWith(t, t.TempDir(), true)
	base := importBase(t, s.m)
	digest := build(t, s.Client, "tools")

	for range 2 {
		if got := s.create(t, sandbox.Spec{Image: "template:tools", Provider: "node-b"}); got.Info().Provider != "node-b" {
			t.Errorf("made: %+v", got.Info())
		}
	}
	all := imagesOn(t, s.b)
	if len(all) != 1 || len(all[0].Names) != 0 || !slices.Equal(all[0].Config.Env, []string{"A=1"}) || all[0].Digest == digest || len(imagesOn(t, s.a)) != 0 || sent(t, s.b) != 1 {
		t.Fatalf("b has the images %+v after %d were sent, and a has %+v; want the template's, sent once, without a name", all, sent(t, s.b), imagesOn(t, s.a))
	}
	says(t, s, "b", all[0].Digest)
	if got := s.create(t, sandbox.Spec{Image: "template:tools"}); got.Info().Provider != "node-b" { // a has more memory
		t.Errorf("placed on %s, want it on b, which has the image", got.Info().Provider)
	}
	if sent(t, s.b) != 1 {
		t.Error("it was sent again")
	}

	sb := s.create(t, sandbox.Spec{Name: "one", Image: "template:tools", Provider: "node-b"})
	shell(t, sb, "echo kept > /f")
	saved(t, sb, "before")
	if out := shell(t, s.create(t, sandbox.Spec{Snapshot: "before", Provider: "node-a"}), "cat /f"); out != "kept\n" {
		t.Errorf("on the other node: %q", out)
	}
	if got := imagesOn(t, s.a); len(got) != 1 || got[0].Digest != all[0].Digest {
		t.Errorf("a has %+v, want the image of the snapshot, %s", got, all[0].Digest)
	}

	for _, ref := range []string{"base:1", base.Digest} {
		s.create(t, sandbox.Spec{Image: ref, Provider: "node-a"})
	}
	if n := sent(t, s.a); n != 2 {
		t.Errorf("%d images were sent to a, want the template's and the imported one", n)
	}
	// The owner of the machine may use its files.
	path := filepath.Join(t.TempDir(), "other.tar")
	ok(t, os.WriteFile(path, filesTar(t, "x", "y"), 0o600))
	s.create(t, sandbox.Spec{Image: "tar:" + path, Provider: "node-a"})

	// What was removed on the node is sent again.
	for _, n := range imagesOn(t, s.a) {
		_ = imagesOf(t, s.a.m).Remove(t.Context(), n.Digest) // those that snapshots need stay
	}
	s.create(t, sandbox.Spec{Image: "base:1", Provider: "node-a"})
}

// says waits until the control daemon knows that a node has an image.
func says(t *testing.T, s *isle, node, digest string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		n, err := s.Admin().Node(t.Context(), node)
		ok(t, err)
		if n.Load != nil && slices.Contains(n.Load.Images, digest) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the node says %+v, want that it has %s", n.Load, digest)
		}
	}
}

// Another tenant gets neither a template nor the image that a build made, by no
// name, and no node is sent anything for it. What is public it gets.
func TestAttackNodesLentImages(t *testing.T) {
	s := newIsleWith(t, t.TempDir(), true)
	importBase(t, s.m)
	tenant := func(name string) *atoll.Client {
		k, err := s.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: name, Verbs: []string{"admin"}})
		ok(t, err)
		return daemontest.Bearer(t, s.d, k.Token)
	}
	acme, rival := tenant("acme"), tenant("rival")
	digest := build(t, acme, "tools")
	for _, ref := range []string{"template:tools", "template:acme/tools", digest} {
		_, err := rival.Create(t.Context(), sandbox.Spec{Image: ref, Provider: "node-b"}, atoll.CreateOptions{})
		wantCode(t, err, sandbox.CodeNotFound)
		if e, _ := errors.AsType[*sandbox.Error](err); strings.HasPrefix(e.Message, e.Op) {
			t.Errorf("%s: the message of the node says the operation again: %s", ref, e.Message)
		}
	}
	_, err := rival.Create(t.Context(), sandbox.Spec{Image: "tar:/etc/passwd", Provider: "node-b"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeDenied)
	if len(imagesOn(t, s.a))+len(imagesOn(t, s.b)) != 0 {
		t.Fatalf("nodes have %+v and %+v", imagesOn(t, s.a), imagesOn(t, s.b))
	}
	for _, ref := range []string{"template:tools", digest} {
		_, err = acme.Create(t.Context(), sandbox.Spec{Image: ref, Provider: "node-b"}, atoll.CreateOptions{})
		ok(t, err)
	}
	// That the node has it now helps nobody.
	for _, ref := range []string{"template:tools", "template:acme/tools", digest} {
		_, err := rival.Create(t.Context(), sandbox.Spec{Image: ref, Provider: "node-b"}, atoll.CreateOptions{})
		wantCode(t, err, sandbox.CodeNotFound)
	}
	_, err = acme.PublishTemplate(t.Context(), "tools")
	ok(t, err)
	_, err = rival.Create(t.Context(), sandbox.Spec{Image: "template:acme/tools", Provider: "node-a"}, atoll.CreateOptions{})
	ok(t, err)
	_, err = rival.Create(t.Context(), sandbox.Spec{Image: "base:1", Provider: "node-a"}, atoll.CreateOptions{}) // as on the machine itself
	ok(t, err)
}

// An image that a registry gives to the owner of the machine alone reaches nodes for
// the owner alone.
func TestAttackNodesLoginImage(t *testing.T) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	reg := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, given := r.BasicAuth(); !given || user != "me" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(reg.Close)
	host := strings.TrimPrefix(reg.URL, "http://")
	docker := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(docker, "config.json"), []byte(`{"auths":{"`+host+`":{"auth":"`+base64.StdEncoding.EncodeToString([]byte("me:secret"))+`"}}}`), 0o600))
	t.Setenv("DOCKER_CONFIG", docker)
	ref, err := name.ParseReference(host + "/team/private:1")
	ok(t, err)
	img, err := random.Image(1<<10, 2)
	ok(t, err)
	ok(t, remote.Write(ref, img, remote.WithAuth(&authn.Basic{Username: "me", Password: "secret"})))
	digest, err := img.Digest()
	ok(t, err)

	s := newIsle(t)
	k, err := s.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"admin"}})
	ok(t, err)
	others := daemontest.Bearer(t, s.d, k.Token)
	refuse := func() {
		t.Helper()
		for _, asked := range []string{ref.Name(), ref.Context().Name() + "@" + digest.String(), digest.String()} {
			if _, err := others.Create(t.Context(), sandbox.Spec{Image: asked, Provider: "node-b"}, atoll.CreateOptions{}); !slices.Contains([]sandbox.Code{sandbox.CodeDenied, sandbox.CodeUnauthorized, sandbox.CodeNotFound}, sandbox.CodeOf(err)) {
				t.Errorf("%s without the login: %v", asked, err)
			}
		}
	}
	refuse()
	s.create(t, sandbox.Spec{Image: ref.Name(), Provider: "node-b"})
	if all := imagesOn(t, s.b); len(all) != 1 || len(all[0].Names) != 0 || all[0].Digest == digest.String() {
		t.Errorf("b has %+v, want the image under a digest that only its content gives", all)
	}
	refuse()
}

// Only the owner of a node, and keys of its tenant default that may write, send it
// images. What is changed or incomplete is refused, and leaves nothing; so does a
// sender that ends.
func TestAttackImportImage(t *testing.T) {
	n := newNode(t, 32<<30)
	source := daemontest.New(t)
	importBase(t, source)
	lent, err := imagesOf(t, source).Lend(t.Context(), "base:1", func(image.Provenance) bool { return true })
	ok(t, err)
	var whole bytes.Buffer
	ok(t, lent.Write(t.Context(), &whole))
	owner := n.client(t)
	for tenant, verbs := range map[string][]string{"other": {"admin"}, "": {"read", "exec"}} {
		k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: verbs})
		ok(t, err)
		wantCode(t, daemontest.Bearer(t, n.d, k.Token).ImportImage(t.Context(), lent.Digest(), bytes.NewReader(whole.Bytes())), sandbox.CodeDenied)
	}
	empty := func(what string) {
		t.Helper()
		if all := imagesOn(t, n); len(all) != 0 {
			t.Errorf("%s left %+v", what, all)
		}
		for _, dir := range []string{"tmp", "rootfs", "images"} {
			left, err := os.ReadDir(filepath.Join(n.m.Dir, "images", dir))
			if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) != 0 {
				t.Errorf("%s left %v in %s, %v", what, left, dir, err)
			}
		}
	}
	for _, at := range []int{600, whole.Len() / 2, whole.Len() - 3000} {
		bad := bytes.Clone(whole.Bytes())
		bad[at] ^= 1
		wantCode(t, owner.ImportImage(t.Context(), lent.Digest(), bytes.NewReader(bad)), sandbox.CodeInvalid)
		wantCode(t, owner.ImportImage(t.Context(), lent.Digest(), bytes.NewReader(whole.Bytes()[:at])), sandbox.CodeInvalid)
		empty("what is not the image")
	}
	wantCode(t, owner.ImportImage(t.Context(), "sha256:"+strings.Repeat("0", 64), bytes.NewReader(whole.Bytes())), sandbox.CodeInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(whole.Bytes()[:whole.Len()/2])
		cancel()
	}()
	if err := owner.ImportImage(ctx, lent.Digest(), r); err == nil {
		t.Error("a half was taken")
	}
	n.kill(t) // waits for its requests
	n.start(t)
	empty("a sender that ended")
	ok(t, n.client(t).ImportImage(t.Context(), lent.Digest(), bytes.NewReader(whole.Bytes())))
	if all := imagesOn(t, n); len(all) != 1 || all[0].Digest != lent.Digest() {
		t.Errorf("there are %+v", all)
	}
}

// A snapshot whose image is not on this machine, because it was made on another one
// or the image was removed, starts with what the registry has under its digest.
func TestSnapshotFetchesImage(t *testing.T) {
	reg := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(reg.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(reg.URL, "http://") + "/team/app:1")
	ok(t, err)
	push := func() string {
		t.Helper()
		img, err := random.Image(1<<10, 2)
		ok(t, err)
		ok(t, remote.Write(ref, img))
		digest, err := img.Digest()
		ok(t, err)
		return digest.String()
	}
	digest := push()
	n := newNode(t, 32<<30)
	sb := create(t, n.client(t), sandbox.Spec{Name: "one", Image: ref.Name()})
	shell(t, sb, "echo kept > /f")
	_, err = sb.Snapshot(t.Context(), durable.SnapshotRequest{Name: "before"})
	ok(t, err)
	ok(t, sb.Destroy(t.Context()))
	for _, dir := range []string{"images", "refs", "rootfs"} {
		ok(t, os.RemoveAll(filepath.Join(n.m.Dir, "images", dir)))
		ok(t, os.Mkdir(filepath.Join(n.m.Dir, "images", dir), 0o700))
	}
	push() // the tag means another image now
	if out := shell(t, create(t, n.client(t), sandbox.Spec{Snapshot: "before"}), "cat /f"); out != "kept\n" {
		t.Errorf("its files are %q", out)
	}
	if all := imagesOn(t, n); len(all) != 1 || all[0].Digest != digest {
		t.Errorf("there are %+v, want the image of the snapshot, %s", all, digest)
	}
}
