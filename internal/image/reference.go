package image

import (
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/atoll-run/atoll/sandbox"
)

// maxReference is the maximum length of a reference in bytes.
const maxReference = 4096

// kind is the kind of a reference.
type kind int

const (
	kindHost kind = iota
	kindRegistry
	kindLayout  // oci:
	kindArchive // docker-archive:
	kindDir
	kindTar
	kindDigest // an image in the store, by its digest
)

// reference is a parsed reference.
type reference struct {
	kind kind
	name string         // the familiar form, used as its recorded name
	path string         // absolute, of local sources
	tag  string         // of oci: and docker-archive:
	repo name.Reference // of a registry
}

// Regular expressions are compiled on first use, because every process of a
// sandbox starts as this program.
var foreignRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(docker-daemon|containers-storage|oci-archive|sif|ostree|atomic|docker-tarfile|file|https?|containerd):`)
})

// Names of registries and repositories, as in Docker. The library accepts more,
// such as "a/../b", which would end up in a URL.
var (
	registryRE = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)
	})
	repositoryRE = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*$`)
	})
)

// takenRE matches repositories whose short form would be parsed as another kind
// of reference.
var takenRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(oci|dir|tar|docker-archive|sha256|docker-daemon|containers-storage|oci-archive|sif|ostree|atomic|docker-tarfile|file|https?|containerd)$`)
})

// Name returns the name under which the store records an image, such as
// "debian:latest" for "docker.io/library/debian". An invalid reference stays as
// it is.
func Name(ref string) string {
	r, err := parseReference(ref)
	if err != nil {
		return ref
	}
	return r.name
}

// parseReference parses a reference of any kind.
func parseReference(ref string) (*reference, error) {
	const op = "image.reference"
	switch {
	case ref == "" || ref == "host":
		return &reference{kind: kindHost, name: "host"}, nil
	case len(ref) > maxReference || strings.ContainsFunc(ref, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return nil, fail(sandbox.CodeInvalid, op, "", "", "an image reference that is too long or has control characters")
	}
	if h, ok := digestHex(ref); ok {
		return &reference{kind: kindDigest, name: "sha256:" + h}, nil
	}
	for prefix, k := range map[string]kind{"oci:": kindLayout, "docker-archive:": kindArchive, "dir:": kindDir, "tar:": kindTar} {
		if rest, ok := strings.CutPrefix(ref, prefix); ok {
			return parseLocal(ref, prefix, rest, k)
		}
	}
	if m := foreignRE().FindString(ref); m != "" {
		return nil, fail(sandbox.CodeInvalid, op, ref, "save the image with docker save and use docker-archive:FILE, or push it to a registry",
			"references with %s are not supported", m)
	}
	r, err := name.ParseReference(strings.TrimPrefix(ref, "docker://"))
	if err != nil || !registryRE().MatchString(r.Context().RegistryStr()) || !repositoryRE().MatchString(r.Context().RepositoryStr()) {
		return nil, fail(sandbox.CodeInvalid, op, ref, referenceHint(ref), "not an image reference")
	}
	return &reference{kind: kindRegistry, name: familiar(r), repo: r}, nil
}

// parseLocal parses a reference to a local source, without its prefix.
func parseLocal(ref, prefix, rest string, k kind) (*reference, error) {
	r := &reference{kind: k, path: rest}
	if k == kindLayout || k == kindArchive {
		r.path, r.tag, _ = strings.Cut(rest, ":")
	}
	if r.path == "" {
		return nil, fail(sandbox.CodeInvalid, "image.reference", ref, "write "+prefix+"PATH", "the path is missing")
	}
	abs, err := filepath.Abs(r.path)
	if err != nil {
		return nil, internal("image.reference", ref, err)
	}
	r.path, r.name = abs, prefix+abs
	if r.tag != "" {
		r.name += ":" + r.tag
	}
	return r, nil
}

func referenceHint(ref string) string {
	switch {
	case strings.ToLower(ref) != ref:
		return "repository names are lower case"
	case strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, "."):
		return "for a directory write dir:" + ref + ", for a tar of a root file system tar:" + ref
	case strings.Contains(ref, "@") && !strings.Contains(ref, "@sha256:"):
		return "a digest is written @sha256: and 64 hexadecimal digits"
	}
	return `for example "debian:12", "ghcr.io/org/app:v1" or "host"`
}

// familiar returns the short form of a reference, as in Docker.
func familiar(r name.Reference) string {
	repo := r.Context().RepositoryStr()
	if reg := r.Context().RegistryStr(); reg != name.DefaultRegistry {
		repo = reg + "/" + repo
	} else if short := strings.TrimPrefix(repo, "library/"); takenRE().MatchString(short) {
		repo = "docker.io/" + repo // "oci:latest" would be a layout
	} else {
		repo = short
	}
	if d, ok := r.(name.Digest); ok {
		return repo + "@" + d.DigestStr()
	}
	return repo + ":" + r.Identifier()
}
