package bridgeapi

import (
	"context"
	"net/url"
	"path"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// root is the directory that clients work in, and below which their paths must
// be.
const root = "/workspace"

// maxLinks is how many symbolic links a path may lead through.
const maxLinks = 40

// within returns the clean form of a path, which is taken below root if it is
// relative.
func within(p, what string) (string, error) {
	switch {
	case p == "":
		return "", invalid("%s must not be empty", what)
	case strings.ContainsRune(p, 0):
		return "", invalid("%s must not contain a NUL byte", what)
	case len(p) > bounds.MaxPathLen:
		return "", invalid("%s must not be longer than %d bytes", what, bounds.MaxPathLen)
	}
	if !path.IsAbs(p) {
		p = root + "/" + p
	}
	if p = path.Clean(p); !below(p) {
		return "", outside(what)
	}
	return p, nil
}

func below(p string) bool { return p == root || strings.HasPrefix(p, root+"/") }

// fileOf returns the file that the end of a request's path names. Every segment
// is decoded once.
func fileOf(escaped string) (string, error) {
	if strings.Trim(escaped, "/") == "" {
		return "", invalid("path must not be empty")
	}
	segments := strings.Split(escaped, "/")
	for i, s := range segments {
		var err error
		if segments[i], err = url.PathUnescape(s); err != nil {
			return "", invalid("path is not properly encoded")
		}
	}
	return within("/"+strings.Join(segments, "/"), "path")
}

// follow resolves the symbolic links in a clean path below root. The result
// must be below root too. Elements that do not exist are kept as they are.
func follow(ctx context.Context, files Files, p, what string) (string, error) {
	rest, at := segmentsOf(p), root
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		if !below(next) {
			return "", outside(what)
		}
		rest = rest[1:]
		info, err := files.Stat(ctx, next)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return path.Join(append([]string{next}, rest...)...), nil
		case err != nil:
			return "", err
		case info.Type != sandbox.TypeSymlink:
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", invalid("%s leads through too many symbolic links", what)
		}
		target := info.Target
		if !path.IsAbs(target) {
			target = at + "/" + target
		}
		if target = path.Clean(target); !below(target) {
			return "", outside(what)
		}
		at, rest = root, append(segmentsOf(target), rest...)
	}
	return at, nil
}

// segmentsOf returns the segments of a clean path below root.
func segmentsOf(p string) []string {
	rest := strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
	if rest == "" {
		return nil
	}
	return strings.Split(rest, "/")
}
