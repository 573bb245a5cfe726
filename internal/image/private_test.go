package image

import (
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// guarded is a registry that wants the canary as password.
func guarded(t *testing.T) *testRegistry {
	reg := newRegistry(t)
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+canary))
	reg.hooks = append(reg.hooks, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.Header.Get("Authorization") == want {
			return false // the test pushes without
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	return reg
}

func as(username, password string) Login {
	return func() (string, string) { return username, password }
}

// TestPrivate: an image that needed a login is stored under its own name, and
// is downloaded again only if it has changed, by a caller who still has the
// login.
func TestPrivate(t *testing.T) {
	ctx := context.Background()
	reg, s := guarded(t), open(t, Options{})
	ref := reg.push(t, "private/app:1", imageOf(t, "linux/amd64", tarOf(t, "base", "b", "old", "x"), tarOf(t, "f", "1", ".wh.old", "")))
	get := func(s *Store, login Login) (*Image, error) { return s.Private(ctx, "mine/1", ref, login) }
	for _, login := range []Login{as("me", "wrong"+canary), as("you", canary)} {
		_, err := get(s, login)
		wantCode(t, err, sandbox.CodeUnauthorized)
		if strings.Contains(err.Error(), canary) {
			t.Errorf("the error contains the password: %v", err)
		}
	}
	img, err := get(s, as("me", canary))
	if err != nil {
		t.Fatal(err)
	}
	wantFiles(t, img, map[string]string{"base": "b", "f": "1"})
	checkConfig(t, img)

	reg.requests()
	again, err := get(s, as("me", canary))
	if err != nil || again.Digest != img.Digest {
		t.Errorf("again it is %+v, %v, not %s", again, err, img.Digest)
	}
	if seen := reg.requests(); count(seen, "/manifests/") == 0 || count(seen, "/blobs/") > 1 { // the config
		t.Errorf("asked for again: %v", seen)
	}
	_, err = get(s, as("me", "no more"))
	wantCode(t, err, sandbox.CodeUnauthorized)

	other, err := get(open(t, Options{}), as("me", canary))
	if err != nil || other.Digest != img.Digest {
		t.Errorf("elsewhere it is %+v, %v, not %s: steps over it would not be found again", other, err, img.Digest)
	}
	reg.push(t, "private/app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "2")))
	if img, err = get(s, as("me", canary)); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, img, map[string]string{"f": "2"})
	grepStore(t, s, canary)

	_, err = s.Private(ctx, "mine/2", "host", as("me", canary))
	wantCode(t, err, sandbox.CodeInvalid)
}

// TestPrivateStaysPrivate simulates an attacker who knows everything about
// another tenant's image except the login: its name, its digests, and with a
// registry that claims to have its layers.
func TestPrivateStaysPrivate(t *testing.T) {
	ctx := context.Background()
	reg, s := guarded(t), open(t, Options{})
	v := imageOf(t, "linux/amd64", tarOf(t, "f", "secret"))
	ref := reg.push(t, "private/app:1", v)
	img, err := s.Private(ctx, "mine/1", ref, as("me", canary))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(ctx, ref, linux)
	wantCode(t, err, sandbox.CodeUnauthorized)
	never := linux
	never.Policy = PolicyNever
	_, err = s.Get(ctx, ref, never)
	wantCode(t, err, sandbox.CodeNotFound)
	manifest, err := v.Digest()
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(ctx, manifest.String(), linux)
	wantCode(t, err, sandbox.CodeNotFound)
	if img.Digest == manifest.String() {
		t.Error("it is known by what the registry calls it")
	}

	his := newRegistry(t)
	theirs := his.push(t, "app:1", v)
	layers, err := v.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	asked := false
	his.hooks = append(his.hooks, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, layer.String()) {
			asked = true
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	})
	if img, err := s.Get(ctx, theirs, linux); err == nil || !asked {
		t.Errorf("the layer of another came from the store: %+v, asked for: %t", img, asked)
	}
	if left, err := os.ReadDir(s.path("blobs", "sha256")); err != nil || len(left) > 0 {
		t.Errorf("layers are left: %v, %v", left, err)
	}
}
