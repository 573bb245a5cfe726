package policyset

import (
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// locals are the prefixes of references that do not name a registry. These are
// compared literally.
var locals = []string{"template:", "oci:", "docker-archive:", "dir:", "tar:"}

// IsLocal reports whether a reference or pattern does not name a registry.
func IsLocal(ref string) bool {
	return ref == "host" || slices.ContainsFunc(locals, func(l string) bool { return strings.HasPrefix(ref, l) })
}

// anyMayRun reports whether one of an image's names matches a pattern.
func anyMayRun(pattern string, names []string) bool {
	return slices.ContainsFunc(names, func(ref string) bool { return mayRun(pattern, ref) })
}

// mayRun reports whether an image matches a pattern. Repository and tag are
// compared separately: "debian:5000/x" is not a tag of debian, and
// "docker.io/library/host" is not the image called host. A pattern for templates
// matches those of other tenants only if it has a "/", as in "template:*/*".
func mayRun(pattern, ref string) bool {
	if pattern == "*" {
		return true
	}
	if IsLocal(ref) {
		if rest, ok := strings.CutPrefix(ref, "template:"); ok && !strings.Contains(rest, ":") {
			ref += ":latest"
		}
		if rest, ok := strings.CutPrefix(pattern, "template:"); ok && !strings.Contains(rest, ":") {
			pattern += ":*"
		}
		if strings.HasPrefix(ref, "template:") && strings.Contains(ref, "/") != strings.Contains(pattern, "/") {
			return false
		}
		return IsLocal(pattern) && matchText(pattern, ref)
	}
	_, digest, pinned := strings.Cut(ref, "@")
	if strings.HasPrefix(ref, "sha256:") {
		digest, pinned = ref, true
	}
	if strings.HasPrefix(pattern, "sha256:") {
		return pinned && pattern == digest
	}
	return !IsLocal(pattern) && digest != ref && mayFetch(pattern, ref)
}

// mayFetch is mayRun for images in registries. A pattern without a tag matches
// every tag and digest.
func mayFetch(pattern, ref string) bool {
	parsed, err := name.ParseReference(strings.TrimPrefix(ref, "docker://"))
	if err != nil {
		return false // an invalid reference cannot be pulled
	}
	repo, version, sign := pattern, "*", ""
	if i := strings.LastIndexByte(pattern, '@'); i >= 0 {
		repo, version, sign = pattern[:i], pattern[i+1:], "@"
	} else if i := strings.LastIndexByte(pattern, ':'); i > strings.LastIndexByte(pattern, '/') {
		repo, version, sign = pattern[:i], pattern[i+1:], ":"
	}
	_, byDigest := parsed.(name.Digest)
	if sign == ":" && byDigest || sign == "@" && !byDigest || !matchText(version, parsed.Identifier()) {
		return false
	}
	full := strings.TrimPrefix(parsed.Context().Name(), "index.")
	names := []string{full}
	if short, ok := strings.CutPrefix(full, "docker.io/"); ok {
		names = append(names, short, strings.TrimPrefix(short, "library/"))
	}
	return slices.ContainsFunc(names, func(n string) bool { return matchText(repo, n) })
}
