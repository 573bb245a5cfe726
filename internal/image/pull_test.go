package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

var linux = GetOptions{Platform: "linux/amd64"}

// noise is data that does not compress, the same for the same seed.
func noise(seed uint64, n int) string {
	var key [32]byte
	key[0] = byte(seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return string(b)
}

func TestPull(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	v := imageOf(t, "linux/amd64", tarOf(t, "base", "b", "old", "x"), tarOf(t, "f", "1", ".wh.old", ""))
	ref := reg.push(t, "org/app:v1", v)
	phases := map[Phase]bool{}
	var done, total int64
	opts := linux
	opts.Progress = func(p Progress) {
		phases[p.Phase] = true
		if p.Phase == PhaseDownloading && p.Layer == 1 {
			done, total = p.Done, p.Total
		}
		if p.Done > p.Total && p.Total > 0 || p.Layer > p.Layers {
			t.Errorf("progress beyond the end: %+v", p)
		}
	}
	img := mustGet(t, s, ref, opts)
	wantFiles(t, img, map[string]string{"base": "b", "f": "1"})
	checkConfig(t, img)
	if d, _ := v.Digest(); img.Digest != d.String() {
		t.Errorf("digest %s, want %s", img.Digest, d)
	}
	for _, p := range []Phase{PhaseResolving, PhaseDownloading, PhaseBuilding, PhaseReady} {
		if !phases[p] {
			t.Errorf("no progress of %s", p)
		}
	}
	if done != total || total == 0 {
		t.Errorf("layer 1 ended at %d of %d bytes", done, total)
	}

	reg.requests()
	again := mustGet(t, s, ref, linux)
	if got := reg.requests(); len(got) > 0 || again.Digest != img.Digest {
		t.Errorf("a cached image made requests: %v", got)
	}
	mustGet(t, s, ref, GetOptions{Platform: "linux/amd64", Policy: PolicyAlways})
	// The manifest, whether there are signatures by now, and the config.
	if got := reg.requests(); count(got, "/manifests/") != 2 || count(got, ".sig") != 1 || count(got, "/blobs/") != 1 {
		t.Errorf("an unchanged image made requests: %v", got)
	}
}

func TestTagThatMoves(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	ref := reg.push(t, "app:latest", imageOf(t, "linux/amd64", tarOf(t, "f", "1")))
	one := mustGet(t, s, ref, linux)
	reg.push(t, "app:latest", imageOf(t, "linux/amd64", tarOf(t, "f", "2")))
	if got := mustGet(t, s, ref, linux); got.Digest != one.Digest {
		t.Error("policy missing asked again")
	}
	two := mustGet(t, s, ref, GetOptions{Platform: "linux/amd64", Policy: PolicyAlways})
	wantFiles(t, two, map[string]string{"f": "2"})
	// The old one has no name now, but stays until it is pruned.
	if old, err := s.Inspect(context.Background(), one.Digest); err != nil || len(old.Names) != 0 {
		t.Errorf("the old image: %v, %v", old, err)
	}
	report, err := s.Prune(context.Background(), PruneOptions{})
	if err != nil || len(report.Images) != 1 || report.Images[0] != one.Digest {
		t.Errorf("pruned %v, %v", report, err)
	}
	mustGet(t, s, two.Digest, GetOptions{})
}

// Damage of the disk is not noticed. An image that is removed and pulled again is whole.
func TestDamagedImageIsPulledAgain(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	ref := reg.push(t, "org/app:v1", imageOf(t, "linux/amd64", tarOf(t, "f", noise(1, 64<<10))))
	img := mustGet(t, s, ref, linux)
	path := s.rootfsPath(img.Layers[0])
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, len(whole)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, mustGet(t, s, ref, linux), map[string]string{"f": noise(1, 64<<10)})
}

func TestDigestIsVerified(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	v := imageOf(t, "linux/amd64", tarOf(t, "f", "1"))
	reg.push(t, "app:1", v)
	d, _ := v.Digest()
	pinned := reg.host + "/app@" + d.String()
	wantFiles(t, mustGet(t, s, pinned, linux), map[string]string{"f": "1"})

	other, _ := imageOf(t, "linux/amd64", tarOf(t, "f", "evil")).RawManifest()
	reg.hooks = append(reg.hooks, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/sha256:") {
			return false
		}
		w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
		w.Header().Set("Docker-Content-Digest", d.String()) // it lies
		_, _ = w.Write(other)
		return true
	})
	_, err := open(t, Options{}).Get(context.Background(), pinned, linux)
	wantCode(t, err, sandbox.CodeInvalid, "does not match the requested digest")
}

func TestPolicyNever(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64"))
	reg.requests()
	_, err := s.Get(context.Background(), ref, GetOptions{Policy: PolicyNever})
	wantCode(t, err, sandbox.CodeNotFound)
	if got := reg.requests(); len(got) > 0 {
		t.Errorf("requests were made: %v", got)
	}
	_, err = s.Get(context.Background(), ref, GetOptions{Policy: "sometimes"})
	wantCode(t, err, sandbox.CodeInvalid, "sometimes")
}

func TestPlatforms(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	add := func(idx v1.ImageIndex, platform string, what mutate.Appendable) v1.ImageIndex {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		return mutate.AppendManifests(idx, mutate.IndexAddendum{Add: what, Descriptor: v1.Descriptor{Platform: p}})
	}
	index = add(index, "unknown/unknown", imageOf(t, "unknown/unknown", tarOf(t, "f", "attestation")))
	for _, p := range []string{"linux/arm64/v8", "linux/amd64/v3", "linux/amd64", "windows/amd64"} {
		index = add(index, p, imageOf(t, p, tarOf(t, "f", p)))
	}
	ref := reg.push(t, "app:multi", index)
	for platform, want := range map[string]string{"linux/amd64": "linux/amd64", "linux/arm64": "linux/arm64/v8", "linux/amd64/v3": "linux/amd64/v3"} {
		wantFiles(t, mustGet(t, s, ref, GetOptions{Platform: platform}), map[string]string{"f": want})
	}
	_, err := s.Get(context.Background(), ref, GetOptions{Platform: "linux/s390x"})
	wantCode(t, err, sandbox.CodeNotFound, "linux/s390x")
	var e *sandbox.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "linux/arm64/v8") || strings.Contains(e.Hint, "unknown") {
		t.Errorf("the hint does not list what there is: %q", e.Hint)
	}
	single := reg.push(t, "app:arm", imageOf(t, "linux/arm64", tarOf(t, "f", "1")))
	_, err = s.Get(context.Background(), single, linux)
	wantCode(t, err, sandbox.CodeNotFound, "linux/amd64")

	nested := v1.ImageIndex(mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index}))
	wantFiles(t, mustGet(t, s, reg.push(t, "app:nested", nested), linux), map[string]string{"f": "linux/amd64"})
	for range 4 {
		nested = mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: nested})
	}
	_, err = s.Get(context.Background(), reg.push(t, "app:deep", nested), linux)
	wantCode(t, err, sandbox.CodeInvalid, "too many")
}

// TestCutTransfersAreResumed makes the registry cut every transfer, and checks
// that no byte is sent twice.
func TestCutTransfersAreResumed(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	const size = 3 << 20
	v := imageOf(t, "linux/amd64", tarOf(t, "f", noise(1, size)))
	ref := reg.push(t, "app:1", v)
	layer := layerOf(t, v)
	var sent atomic.Int64
	var ranges atomic.Int32
	reg.hooks = append(reg.hooks, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, layer.digest) {
			return false
		}
		start := 0
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &start); err == nil {
			ranges.Add(1)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(layer.data)-1, len(layer.data)))
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(layer.data)-start))
		if start > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		n, _ := w.Write(layer.data[start:min(start+size/4, len(layer.data))])
		sent.Add(int64(n))
		return true // net/http cuts the connection, because bytes are missing
	})
	img := mustGet(t, s, ref, linux)
	if got := files(t, img)["f"]; got != noise(1, size) {
		t.Error("the file is not what was pushed")
	}
	if sent.Load() != int64(len(layer.data)) || ranges.Load() < 3 {
		t.Errorf("%d bytes were sent for a blob of %d, in %d ranges", sent.Load(), len(layer.data), ranges.Load())
	}
	if left, _ := os.ReadDir(s.path("partial")); len(left) > 0 {
		t.Error("a partial blob stays")
	}
}

type blob struct {
	digest string
	data   []byte
}

func layerOf(t *testing.T, img v1.Image) blob {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	d, err := layers[len(layers)-1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[len(layers)-1].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return blob{d.String(), data}
}

// TestResumeAfterFailure leaves a partial blob behind and resumes it in the
// next Get.
func TestResumeAfterFailure(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	v := imageOf(t, "linux/amd64", tarOf(t, "f", noise(2, 1<<20)))
	ref := reg.push(t, "app:1", v)
	layer := layerOf(t, v)
	var broken atomic.Bool
	var from atomic.Value
	broken.Store(true)
	reg.hooks = append(reg.hooks, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, layer.digest) {
			return false
		}
		if !broken.Load() {
			from.CompareAndSwap(nil, r.Header.Get("Range"))
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(layer.data))
			return true
		}
		if r.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(layer.data)))
		_, _ = w.Write(layer.data[:100_000])
		return true
	})
	_, err := s.Get(context.Background(), ref, linux)
	wantCode(t, err, sandbox.CodeUnavailable, "503")
	broken.Store(false)
	if got := files(t, mustGet(t, s, ref, linux))["f"]; got != noise(2, 1<<20) {
		t.Error("the file is not what was pushed")
	}
	if got, _ := from.Load().(string); !strings.HasPrefix(got, "bytes=100000-") {
		t.Errorf("the second Get asked for %q", got)
	}
}

// TestAttackRegistriesThatLie is the table of what a registry may do with a blob.
func TestAttackRegistriesThatLie(t *testing.T) {
	serve := func(w http.ResponseWriter, r *http.Request, data []byte) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
	flipped := func(data []byte) []byte {
		d := bytes.Clone(data)
		d[len(d)/2] ^= 1
		return d
	}
	for _, c := range []struct {
		name  string
		serve func(n int32, layer []byte, w http.ResponseWriter, r *http.Request)
		code  sandbox.Code // "" is success
	}{
		{"corrupted", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) { serve(w, r, flipped(l)) }, sandbox.CodeInvalid},
		{"corrupted once", func(n int32, l []byte, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				l = flipped(l)
			}
			serve(w, r, l)
		}, ""},
		{"too long", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(append(bytes.Clone(l), make([]byte, 1<<20)...))
		}, sandbox.CodeInvalid},
		{"too short", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) { _, _ = w.Write(l[:10]) }, sandbox.CodeUnavailable},
		{"the wrong range", func(n int32, l []byte, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w.Header().Set("Content-Length", fmt.Sprint(len(l)))
				_, _ = w.Write(l[:1000])
				return
			}
			if r.Header.Get("Range") != "" {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(l)-1, len(l)))
				w.WriteHeader(http.StatusPartialContent)
			}
			_, _ = w.Write(l)
		}, ""},
		{"no ranges", func(n int32, l []byte, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(l)))
			if n == 1 {
				l = l[:1000]
			}
			_, _ = w.Write(l)
		}, ""},
		{"range not satisfiable", func(n int32, l []byte, w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(l)))
			if n == 1 {
				l = l[:1000]
			}
			_, _ = w.Write(l)
		}, ""},
		{"errors twice", func(n int32, l []byte, w http.ResponseWriter, r *http.Request) {
			if n <= 2 {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			serve(w, r, l)
		}, ""},
		{"too many requests", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusTooManyRequests)
		}, sandbox.CodeUnavailable},
		{"gone", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNotFound) }, sandbox.CodeNotFound},
		{"forbidden", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, canary)
		}, sandbox.CodeDenied},
		{"stalled", func(n int32, l []byte, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w.Header().Set("Content-Length", fmt.Sprint(len(l)))
				_, _ = w.Write(l[:1000])
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return
			}
			serve(w, r, l)
		}, ""},
		{"stalled for ever", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, sandbox.CodeUnavailable},
		{"a redirect to cloud metadata", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest?sig="+canary, http.StatusTemporaryRedirect)
		}, sandbox.CodeDenied},
		{"a redirect to plain HTTP elsewhere", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://mirror.example/blob?sig="+canary, http.StatusTemporaryRedirect)
		}, sandbox.CodeDenied},
		{"a redirect to a file", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/shadow", http.StatusTemporaryRedirect)
		}, sandbox.CodeUnavailable},
		{"a redirect loop", func(_ int32, l []byte, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}, sandbox.CodeUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg, s := newRegistry(t), open(t, Options{StallTimeout: 200 * time.Millisecond})
			v := imageOf(t, "linux/amd64", tarOf(t, "f", noise(3, 20_000)))
			ref := reg.push(t, "app:1", v)
			layer := layerOf(t, v)
			var n atomic.Int32
			reg.hooks = append(reg.hooks, func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, layer.digest) {
					return false
				}
				c.serve(n.Add(1), layer.data, w, r)
				return true
			})
			img, err := s.Get(context.Background(), ref, linux)
			if c.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				if files(t, img)["f"] != noise(3, 20_000) {
					t.Error("the file is not what was pushed")
				}
				return
			}
			wantCode(t, err, c.code)
			if strings.Contains(err.Error(), canary) {
				t.Errorf("%q shows what it should not", err)
			}
			if _, err := os.Stat(s.blobPath(layer.digest[7:])); err == nil {
				t.Error("a bad blob was kept")
			}
		})
	}
}

func TestAuthentication(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "private/app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "1")))
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+canary))
	reg.hooks = append(reg.hooks, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == want {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	_, err := open(t, Options{}).Get(context.Background(), ref, linux)
	wantCode(t, err, sandbox.CodeUnauthorized)

	// As Docker users have it: a config.json, and a credential helper.
	for what, setup := range map[string]func(dir string){
		"config": func(dir string) {
			writeFile(t, dir+"/config.json", []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, reg.host, strings.TrimPrefix(want, "Basic "))))
		},
		"helper": func(dir string) {
			writeFile(t, dir+"/config.json", []byte(fmt.Sprintf(`{"credHelpers":{%q:"atolltest"}}`, reg.host)))
			helper := writeFile(t, dir+"/docker-credential-atolltest", []byte("#!/bin/sh\necho '{\"Username\":\"me\",\"Secret\":\""+canary+"\"}'\n"))
			if err := os.Chmod(helper, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("DOCKER_CONFIG", dir)
			setup(dir)
			s := openAt(t, t.TempDir(), Options{Keychain: authn.DefaultKeychain})
			wantFiles(t, mustGet(t, s, ref, linux), map[string]string{"f": "1"})
			grepStore(t, s, canary)
		})
	}
}

// grepStore fails if a secret was written anywhere in the store.
func grepStore(t *testing.T, s *Store, secret string) {
	t.Helper()
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s holds a secret", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTokens pulls from a registry that hands out bearer tokens.
func TestTokens(t *testing.T) {
	reg, s := newRegistry(t), open(t, Options{})
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "1")))
	reg.hooks = append(reg.hooks, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			_, _ = io.WriteString(w, `{"token":"t0ken"}`)
			return true
		}
		if r.Header.Get("Authorization") == "Bearer t0ken" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, reg.host))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	wantFiles(t, mustGet(t, s, ref, linux), map[string]string{"f": "1"})
}

func TestUnreachable(t *testing.T) {
	dead := httptest.NewServer(nil)
	host := strings.TrimPrefix(dead.URL, "http://")
	dead.Close()
	_, err := open(t, Options{}).Get(context.Background(), host+"/app:1", linux)
	wantCode(t, err, sandbox.CodeUnavailable, "cannot reach "+host)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = open(t, Options{}).Get(ctx, host+"/app:1", linux)
	wantCode(t, err, sandbox.CodeCanceled)
}

// TestPlainHTTP serves under a name that is not a loopback address: without
// TLS it is refused, unless it was allowed.
func TestPlainHTTP(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "1")))
	for _, host := range []string{"registry.local:5000", "10.1.2.3:5000"} {
		dial := transportTo(reg.Listener.Addr().String())
		_, err := open(t, Options{Transport: dial}).Get(context.Background(), host+"/app:1", linux)
		wantCode(t, err, sandbox.CodeDenied)
		wantFiles(t, mustGet(t, open(t, Options{Transport: dial, PlainHTTP: []string{host}}), host+"/app:1", linux), map[string]string{"f": "1"})
	}
}

// TestConcurrentGets gets one image many times at once. Its blobs are
// transferred once.
func TestConcurrentGets(t *testing.T) {
	reg, dir := newRegistry(t), t.TempDir()
	shared := tarOf(t, "base", noise(4, 500_000))
	one := reg.push(t, "app:1", imageOf(t, "linux/amd64", shared, tarOf(t, "f", "1")))
	two := reg.push(t, "app:2", imageOf(t, "linux/amd64", shared, tarOf(t, "f", "2")))
	reg.requests()
	stores := []*Store{openAt(t, dir, Options{}), openAt(t, dir, Options{})}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			ref, want := one, "1"
			if i%3 == 0 {
				ref, want = two, "2"
			}
			img, err := stores[i%2].Get(context.Background(), ref, linux)
			if err != nil {
				t.Error(err)
				return
			}
			if got := files(t, img)["f"]; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, p := range reg.requests() {
		if seen[p]++; seen[p] > 1 {
			t.Errorf("%s was asked for %d times", p, seen[p])
		}
	}
}

// TestAttackHostileManifests is the table of what a manifest or config may say.
func TestAttackHostileManifests(t *testing.T) {
	layer := gzipped(t, tarOf(t, "f", "1"))
	for _, c := range []struct {
		name   string
		change func(m *v1.Manifest, cfg *v1.ConfigFile)
		code   sandbox.Code
		limits Limits
	}{
		{name: "fewer diffIDs", change: func(_ *v1.Manifest, cfg *v1.ConfigFile) { cfg.RootFS.DiffIDs = nil }, code: sandbox.CodeInvalid},
		{name: "a wrong diffID", change: func(m *v1.Manifest, cfg *v1.ConfigFile) {
			cfg.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
		}, code: sandbox.CodeInvalid},
		{name: "a negative size", change: func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size = -1 }, code: sandbox.CodeExhausted},
		{name: "a size of 2^63-1", change: func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size = 1<<63 - 1 }, code: sandbox.CodeExhausted},
		{name: "a smaller size", change: func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size -= 5 }, code: sandbox.CodeInvalid},
		{name: "another digest algorithm", change: func(m *v1.Manifest, _ *v1.ConfigFile) {
			m.Layers[0].Digest = v1.Hash{Algorithm: "sha512", Hex: strings.Repeat("0", 128)}
		}, code: sandbox.CodeInvalid},
		{name: "many layers", change: func(m *v1.Manifest, cfg *v1.ConfigFile) {
			for range 600 {
				m.Layers = append(m.Layers, m.Layers[0])
				cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, cfg.RootFS.DiffIDs[0])
			}
		}, code: sandbox.CodeExhausted},
		{name: "an artifact", change: func(m *v1.Manifest, _ *v1.ConfigFile) {
			m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json"
		}, code: sandbox.CodeInvalid},
		{name: "a huge config", change: func(m *v1.Manifest, _ *v1.ConfigFile) { m.Config.Size = 1 << 40 }, code: sandbox.CodeExhausted},
		{name: "a config beyond the limit", change: func(_ *v1.Manifest, cfg *v1.ConfigFile) { cfg.Author = strings.Repeat("x", 2000) }, limits: Limits{Manifest: 1500}, code: sandbox.CodeExhausted},
		{name: "NUL in the command", change: func(_ *v1.Manifest, cfg *v1.ConfigFile) { cfg.Config.Cmd = []string{"a\x00b"} }, code: sandbox.CodeInvalid},
		{name: "an absurd user", change: func(_ *v1.Manifest, cfg *v1.ConfigFile) { cfg.Config.User = strings.Repeat("u", 4096) }, code: sandbox.CodeInvalid},
		{name: "a climbing working directory", change: func(_ *v1.Manifest, cfg *v1.ConfigFile) { cfg.Config.WorkingDir = "../../../etc" }},
		{name: "useless variables and signals", change: func(_ *v1.Manifest, cfg *v1.ConfigFile) {
			cfg.Config.Env, cfg.Config.StopSignal = []string{"", "=x", "NOVALUE", "A=1"}, "; rm -rf /"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg, s := newRegistry(t), open(t, Options{Limits: c.limits})
			img, err := mutate.Append(imageOf(t, "linux/amd64"), mutate.Addendum{Layer: static.NewLayer(layer, types.DockerLayer)})
			if err != nil {
				t.Fatal(err)
			}
			m, err := img.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			m, cfg = m.DeepCopy(), cfg.DeepCopy()
			sum, _, _ := v1.SHA256(bytes.NewReader(tarOf(t, "f", "1")))
			cfg.RootFS.DiffIDs = []v1.Hash{sum}
			c.change(m, cfg)
			ref := reg.host + "/app:1"
			reg.serveRaw(t, m, cfg, layer)
			got, err := s.Get(context.Background(), ref, linux)
			if c.code != "" {
				wantCode(t, err, c.code)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if w := got.Config.Workdir; !strings.HasPrefix(w, "/") || strings.Contains(w, "..") {
				t.Errorf("workdir %q", w)
			}
			if strings.Contains(got.Config.StopSignal, "rm") || len(got.Config.Env) > 2 {
				t.Errorf("config %+v", got.Config)
			}
		})
	}
}
