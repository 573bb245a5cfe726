//go:build e2b

package e2b

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// password is the canary of these tests: it must be written down nowhere.
const password = "canary-5f0e1c7d9b"

// guarded starts a registry that lets in who has the password, and returns the
// environment in which programs find an image of it. In the end nothing below
// the daemon's state holds the password.
func (a *atoll) guarded(t *testing.T) []string {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		username, given, _ := r.BasicAuth()
		allowed := username == "me" && given == password || username == "_json_key" && strings.Contains(given, `"`+password+`"`)
		if r.Method == http.MethodGet && !allowed {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	ref := strings.TrimPrefix(server.URL, "http://") + "/mine/app:1"
	parsed, err := name.ParseReference(ref)
	if err == nil {
		err = remote.Write(parsed, guardedImage(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.lacks(t, password) })
	return []string{"E2B_TEST_IMAGE=" + ref, "E2B_TEST_USER=me", "E2B_TEST_PASSWORD=" + password}
}

// guardedImage is an image with a user and a file.
func guardedImage(t *testing.T) v1.Image {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, f := range [][2]string{
		{"etc/passwd", "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"},
		{"home/user/content", "guarded"},
	} {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer.Bytes(), types.DockerUncompressedLayer))
	if err == nil {
		img, err = mutate.ConfigFile(img, configOf(t, img))
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func configOf(t *testing.T, img v1.Image) *v1.ConfigFile {
	t.Helper()
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", runtime.GOARCH
	return cfg
}

// lacks fails if a file of the daemon's holds a secret.
func (a *atoll) lacks(t *testing.T, secret string) {
	t.Helper()
	err := filepath.WalkDir(a.state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // of a sandbox that ends, or not a file
		}
		if info, err := d.Info(); err != nil || info.Size() > 64<<20 {
			return nil // an image that was built before
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s holds the password", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
