//go:build e2b

package e2b

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
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
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// password is the canary of these tests: it must not be stored anywhere.
const password = "canary-5f0e1c7d9b"

// guarded starts a registry that requires the password, and returns the
// environment in which programs find an image of it. At the end, no file below
// the daemon's state may contain the password.
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

// awsRegion is the region of the AWS keys.
const awsRegion = "eu-west-1"

// startECR starts a server that exchanges AWS keys, the user's name and the
// password, for a login to the registry, and returns its address. It accepts a
// request if signing it again gives the same signature.
func startECR(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Amz-Target") != "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken" || !signedWell(r, body) {
			http.Error(w, `{"__type":"InvalidSignatureException"}`, http.StatusBadRequest)
			return
		}
		token := base64.StdEncoding.EncodeToString([]byte("me:" + password))
		_ = json.NewEncoder(w).Encode(map[string]any{"authorizationData": []map[string]any{{"authorizationToken": token, "expiresAt": 1.7e9}}})
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func signedWell(r *http.Request, body []byte) bool {
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || time.Since(at).Abs() > 5*time.Minute {
		return false
	}
	again, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+r.Host+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return false
	}
	for _, name := range []string{"Content-Type", "X-Amz-Date", "X-Amz-Target"} {
		again.Header.Set(name, r.Header.Get(name))
	}
	sum := sha256.Sum256(body)
	keys := aws.Credentials{AccessKeyID: "me", SecretAccessKey: password}
	err = v4.NewSigner().SignHTTP(r.Context(), keys, again, hex.EncodeToString(sum[:]), "ecr", awsRegion, at)
	return err == nil && again.Header.Get("Authorization") == r.Header.Get("Authorization")
}

// guardedImage returns an image with a user and a file.
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

// lacks fails if a file of the daemon contains a secret.
func (a *atoll) lacks(t *testing.T, secret string) {
	t.Helper()
	err := filepath.WalkDir(a.state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // of an ending sandbox, or not a file
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
