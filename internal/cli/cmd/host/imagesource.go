package host

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// archive matches names of files, which nobody gives to an image of a registry.
var archive = regexp.MustCompile(`\.(tar|tgz|tzst|tar\.[a-z0-9]+)$`)

// imageSource puts the type before the name of a file or directory, if it has
// none. A missing file is reported when it is read.
func imageSource(source string) string {
	kind, _, typed := strings.Cut(source, ":")
	switch kind {
	case "tar", "dir", "docker-archive", "oci":
		if typed {
			return source
		}
	}
	info, err := os.Stat(source)
	switch {
	case err != nil && archive.MatchString(source):
		return "tar:" + source
	case err != nil:
		return source
	case info.IsDir():
		if _, err := os.Stat(filepath.Join(source, "oci-layout")); err == nil {
			return "oci:" + source
		}
		return "dir:" + source
	case holdsManifest(source):
		return "docker-archive:" + source
	}
	return "tar:" + source
}

// holdsManifest reports whether an archive is what docker save writes: it has a
// manifest.json at its top.
func holdsManifest(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	in := bufio.NewReader(f)
	var from io.Reader = in
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		if from, err = gzip.NewReader(in); err != nil {
			return false
		}
	}
	for entries := tar.NewReader(from); ; {
		h, err := entries.Next()
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return false
		}
		if path.Clean(h.Name) == "manifest.json" {
			return true
		}
	}
}
