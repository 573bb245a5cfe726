package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

// answers are what a registry says in one pull, each as the content of a digest:
// the tag leads to the first.
type answers map[string][]byte

func (a answers) read(_ context.Context, d v1.Descriptor) ([]byte, error) {
	data, ok := a[d.Digest.Hex]
	if !ok {
		return nil, fail(sandbox.CodeNotFound, "image.pull", "x", "", "no such blob")
	}
	return data, nil
}

// FuzzRegistryAnswers: for any index, manifest and config of a registry, the
// image consists only of content that matches its digest, within the limits, or
// the pull fails. DIGEST-2 and DIGEST-3 stand for the digests of the second and
// third answer.
func FuzzRegistryAnswers(f *testing.F) {
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("a", 64) + `"]},"config":{"Env":["A=b"],"Cmd":["sh"],"WorkingDir":"../x","User":"1"}}`
	manifest := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":9,"digest":"sha256:DIGEST-3"},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":1,"digest":"sha256:` + strings.Repeat("b", 64) + `"}]}`
	index := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":9,"digest":"sha256:DIGEST-2","platform":{"os":"linux","architecture":"amd64"}}]}`
	f.Add(index, manifest, config)
	f.Add(strings.Replace(manifest, "DIGEST-3", "DIGEST-2", 1), config, "")
	f.Add(index, strings.Replace(manifest, `"size":1`, `"size":-1`, 1), config)
	f.Add(strings.Replace(index, "image.manifest", "image.index", 1), index, config)
	f.Fuzz(func(t *testing.T, first, second, third string) {
		digest := func(text string) string {
			sum := sha256.Sum256([]byte(text))
			return hex.EncodeToString(sum[:])
		}
		second = strings.ReplaceAll(second, "DIGEST-3", digest(third))
		first = strings.ReplaceAll(strings.ReplaceAll(first, "DIGEST-2", digest(second)), "DIGEST-3", digest(third))
		have := answers{digest(first): []byte(first), digest(second): []byte(second), digest(third): []byte(third)}
		limits := Limits{Manifest: 1 << 20, Layers: 10, Download: 1 << 30}
		r, err := newResolver("x", "linux/amd64", limits, have.read)
		if err != nil {
			t.Fatal(err)
		}
		d := v1.Descriptor{MediaType: types.OCIImageIndex, Digest: v1.Hash{Algorithm: "sha256", Hex: digest(first)}}
		res, err := r.resolve(t.Context(), d, []byte(first))
		r.signatures(t.Context(), "sha256:"+digest(first), []byte(first))
		if err == nil {
			var c *content
			if c, err = r.content(res); err == nil {
				checkContent(t, c, limits)
			}
		}
		var known *sandbox.Error
		if err != nil && (!errors.As(err, &known) || known.Code == sandbox.CodeInternal) {
			t.Errorf("an error without a code: %v", err)
		}
	})
}

func checkContent(t *testing.T, c *content, limits Limits) {
	var total int64
	for _, l := range c.layers {
		if l.size < 0 {
			t.Errorf("a layer of %d bytes", l.size)
		}
		total += l.size
	}
	if len(c.layers) > limits.Layers || total > limits.Download {
		t.Errorf("%d layers of %d bytes", len(c.layers), total)
	}
	if w := c.config.Workdir; w != "" && w != filepath.Clean("/"+w) {
		t.Errorf("the working directory is %q", w)
	}
	for _, text := range append(append([]string{c.config.User, c.config.Workdir}, c.config.Cmd...), c.config.Env...) {
		if strings.ContainsRune(text, 0) {
			t.Errorf("there is a NUL byte in %q", text)
		}
	}
}

// FuzzDockerArchive reads anything as an archive of docker save.
func FuzzDockerArchive(f *testing.F) {
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("a", 64) + `"]}}`
	list, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"a:1"}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(tarOf(f, "manifest.json", string(list), "config.json", config, "layer.tar", ""), "")
	f.Add(tarOf(f, "manifest.json", strings.Replace(string(list), "config.json", "../../etc/passwd", 1)), "a:1")
	f.Fuzz(func(t *testing.T, text []byte, tag string) {
		path := filepath.Join(t.TempDir(), "x.tar")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		limits := Limits{Manifest: 1 << 20, Layers: 10, Download: 1 << 30, Entries: 1000}
		r, err := newResolver("x", "linux/amd64", limits, nil)
		if err != nil {
			t.Fatal(err)
		}
		idx, err := indexTar(t.Context(), file, limits)
		if err == nil {
			var c *content
			if c, err = (&archiveSource{path: path, tag: tag}).content(r, idx); err == nil {
				checkContent(t, c, limits)
			}
		}
		var known *sandbox.Error
		if err != nil && !errors.As(err, &known) {
			t.Errorf("an error without a code: %v", fmt.Sprint(err))
		}
	})
}
