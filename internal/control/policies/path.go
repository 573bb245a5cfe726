package policies

import (
	"path/filepath"
	"slices"
	"strings"
)

// realPath follows the symbolic links of a path as far as it exists. A path
// with ".." becomes "/", because "link/.." may lead anywhere.
func realPath(name string) string {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "/"
	}
	dir, rest := filepath.Clean(name), ""
	for {
		if found, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(found, rest)
		}
		if dir == "/" {
			return filepath.Clean(name)
		}
		dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest)
	}
}
