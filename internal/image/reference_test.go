package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestReferences(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for ref, want := range map[string]string{
		"":                                "host",
		"host":                            "host",
		"debian":                          "debian:latest",
		"debian:12":                       "debian:12",
		"docker.io/debian":                "debian:latest",
		"oci":                             "docker.io/library/oci:latest",
		"docker.io/library/debian:12":     "debian:12",
		"index.docker.io/library/x":       "x:latest",
		"docker://debian:12":              "debian:12",
		"org/app":                         "org/app:latest",
		"ghcr.io/org/app:v1":              "ghcr.io/org/app:v1",
		"localhost:5000/app":              "localhost:5000/app:latest",
		"debian@sha256:" + hash:           "debian@sha256:" + hash,
		"debian:12@sha256:" + hash:        "debian@sha256:" + hash,
		"sha256:" + hash:                  "sha256:" + hash,
		"dir:/a/../b":                     "dir:/b",
		"tar:/x:y.tar":                    "tar:/x:y.tar",
		"oci:/d":                          "oci:/d",
		"oci:/d:tag":                      "oci:/d:tag",
		"oci:/d:docker.io/library/a:b":    "oci:/d:docker.io/library/a:b",
		"docker-archive:/f.tar:app:1":     "docker-archive:/f.tar:app:1",
		"docker-archive:/f.tar":           "docker-archive:/f.tar",
		"registry.example.com:443/a/b/c:": "",
		"UPPER":                           "",
		"./dir":                           "",
		"/dir":                            "",
		"a b":                             "",
		"a\x00b":                          "",
		"a\nb":                            "",
		"debian@sha256:12":                "",
		"debian@md5:" + hash:              "",
		"dir:":                            "",
		"oci::tag":                        "",
		"docker-daemon:debian":            "",
		"https://example.com/x":           "",
		"file:///etc/passwd":              "",
		"-v":                              "",
		"a/../b":                          "",
		strings.Repeat("a", 5000):         "",
	} {
		r, err := parseReference(ref)
		if want == "" {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || len(err.Error()) > 400 {
				t.Errorf("%q: got %v, %v", clip(ref), r, err)
			}
			continue
		}
		if err != nil || r.name != want {
			t.Errorf("%q: got %+v, %v; want %q", ref, r, err, want)
		}
	}
}

func TestReferenceHints(t *testing.T) {
	for ref, hint := range map[string]string{"Debian": "lower case", "./rootfs": "dir:./rootfs", "debian@sha1:12": "@sha256:", "a b": "debian:12"} {
		_, err := parseReference(ref)
		var e *sandbox.Error
		if !errors.As(err, &e) || !strings.Contains(e.Hint, hint) {
			t.Errorf("%q: %v has not the hint %q", ref, err, hint)
		}
	}
}

// FuzzReference checks that the name of a parsed reference parses to the same
// reference, and that nothing panics.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"", "debian:12", "oci:/d:t", "a@sha256:", "docker-archive:x:y:z", "sha256:00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		r, err := parseReference(ref)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatal(err)
			}
			return
		}
		again, err := parseReference(r.name)
		if err != nil || again.name != r.name || again.kind != r.kind {
			t.Fatalf("%q is %q, which is %+v, %v", ref, r.name, again, err)
		}
	})
}
