package image

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func layerFrom(data []byte) Layer {
	return Layer{Name: "test", Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
}

func TestDerive(t *testing.T) {
	s := open(t, Options{})
	base := writeFile(t, filepath.Join(t.TempDir(), "base.tar"), tarOf(t,
		"bin/", "", "bin/sh", "shell", "etc/", "", "etc/old", "1", "etc/.wh.literal", "kept", "lib", "->usr/lib", "usr/lib/", "", "usr/lib/x", "2"))
	from, err := s.Get(t.Context(), "tar:"+base, GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one := tarOf(t, "etc/.wh.old", "", "lib/y", "3")
	two := zstded(t, tarOf(t, "bin/sh", "other", "new/deep/z", "4"))
	cfg := Config{Env: []string{"A=1"}, User: "app"}
	img, err := s.Derive(t.Context(), "template/x", from, []Layer{layerFrom(one), layerFrom(two)}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	wantFiles(t, img, map[string]string{
		"bin/": "", "bin/sh": "other", "etc/": "", "etc/.wh.literal": "kept", "lib": "->usr/lib", "usr/": "", "usr/lib/": "",
		"usr/lib/x": "2", "usr/lib/y": "3", "new/": "", "new/deep/": "", "new/deep/z": "4",
	})
	if !reflect.DeepEqual(img.Config, cfg) || img.Digest == from.Digest {
		t.Errorf("derived %+v", img)
	}
	again, err := s.Derive(t.Context(), "template/y", from, []Layer{layerFrom(one), layerFrom(two)}, cfg)
	if err != nil || again.Digest != img.Digest {
		t.Errorf("the same again is %v, %v, not %s", again, err, img.Digest)
	}
	other, err := s.Derive(t.Context(), "template/z", from, []Layer{layerFrom(one), layerFrom(two)}, Config{User: "else"})
	if err != nil || other.Digest == img.Digest || other.Size != img.Size {
		t.Errorf("another config is %v, %v", other, err)
	}
	bare, err := s.Derive(t.Context(), "template/bare", img, nil, Config{User: "bare"})
	if err != nil || bare.Config.User != "bare" || bare.Digest == img.Digest {
		t.Errorf("only another config is %v, %v", bare, err)
	}
	wantFiles(t, bare, files(t, img))
	if found, err := s.Derived("template/x"); err != nil || found == nil || found.Digest != img.Digest {
		t.Errorf("found again: %v, %v", found, err)
	}
	if found, err := s.Derived("template/none"); err != nil || found != nil {
		t.Errorf("found what nobody made: %v, %v", found, err)
	}
	if byDigest, err := s.Get(t.Context(), img.Digest, GetOptions{}); err != nil || byDigest.Config.User != "app" {
		t.Errorf("by its digest: %v, %v", byDigest, err)
	}
}

func TestDeriveRefusesBrokenLayers(t *testing.T) {
	s := open(t, Options{})
	from, err := s.Get(t.Context(), "tar:"+writeFile(t, filepath.Join(t.TempDir(), "base.tar"), tarOf(t, "a", "1")), GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{
		"climbs": tarOf(t, "../a", "x"), "cut": tarOf(t, "b", strings.Repeat("x", 4096))[:1000], "not a tar": bytes.Repeat([]byte("x"), 4096),
		"cut compression": zstded(t, tarOf(t, "b", strings.Repeat("x", 4096)))[:50],
	} {
		if img, err := s.Derive(t.Context(), "template/broken", from, []Layer{layerFrom(data)}, Config{}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v, %v", what, img, err)
		}
	}
	if found, err := s.Derived("template/broken"); found != nil || err != nil {
		t.Errorf("something was kept: %v, %v", found, err)
	}
}

// TestDeriveRefusesWhatIsHidden: what a layer puts where the host image shows
// the machine's own directories would never be seen.
func TestDeriveRefusesWhatIsHidden(t *testing.T) {
	s := open(t, Options{HostRoot: fakeHost(t)})
	from := mustGet(t, s, "", GetOptions{})
	for hidden, layer := range map[string][]byte{
		"/usr/local/bin/tool": tarOf(t, "usr/local/bin/tool", "x"),
		"/usr/bin/tool":       tarOf(t, "bin/tool", "x"), // bin is a link
		"/sbin/tool":          tarOf(t, "sbin/tool", "x"),
		"/usr":                tarOf(t, "usr", "a file"),
	} {
		_, err := s.Derive(t.Context(), "template/hidden", from, []Layer{layerFrom(layer)}, Config{})
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Code != sandbox.CodeInvalid || e.Subject != hidden {
			t.Errorf("%s: %v", hidden, err)
		}
	}
	if found, err := s.Derived("template/hidden"); found != nil || err != nil {
		t.Errorf("something was kept: %v, %v", found, err)
	}
	img, err := s.Derive(t.Context(), "template/seen", from, []Layer{layerFrom(tarOf(t, "home/user/tool", "x", "usr/", ""))}, Config{})
	if err != nil || files(t, img)["home/user/tool"] != "x" {
		t.Errorf("%v %v", img, err)
	}
}
