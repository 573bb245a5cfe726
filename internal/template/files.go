package template

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// epoch is the modification time of all copied files, so that a layer depends
// only on their content.
var epoch = time.Unix(0, 0).UTC()

// ignoreFile lists, in the root of the build files, which files to ignore.
const ignoreFile = ".dockerignore"

// Files are the files of a build, in a directory. The caller closes the root.
type Files struct {
	root   *os.Root
	ignore []ignoreRule
}

// NewFiles reads the ignore file of a directory. A nil root means no files.
func NewFiles(root *os.Root) (*Files, error) {
	f := &Files{root: root}
	if root == nil {
		return f, nil
	}
	in, err := root.Open(ignoreFile)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, invalid(ignoreFile, "cannot be read: %v", err)
	}
	defer in.Close()
	lines := bufio.NewScanner(io.LimitReader(in, MaxDescription))
	for lines.Scan() {
		rule, err := parseIgnore(lines.Text())
		if err != nil {
			return nil, err
		}
		if rule.pattern != "" {
			f.ignore = append(f.ignore, rule)
		}
	}
	return f, lines.Err()
}

// ignoreRule is a line of the ignore file. The last rule that matches a file or
// one of its parent directories decides.
type ignoreRule struct {
	pattern string
	keep    bool // the line begins with '!'
}

func parseIgnore(line string) (ignoreRule, error) {
	line = strings.TrimSpace(line)
	if line == "" || strings.HasPrefix(line, "#") {
		return ignoreRule{}, nil
	}
	body, keep := strings.CutPrefix(line, "!")
	pattern, err := inContext(body)
	if err != nil || pattern == "." {
		return ignoreRule{}, invalid(ignoreFile, "%q is not a pattern", clip(line))
	}
	if _, err := path.Match(strings.ReplaceAll(pattern, "**", "*"), ""); err != nil {
		return ignoreRule{}, invalid(ignoreFile, "%q is not a pattern", clip(line))
	}
	return ignoreRule{pattern, keep}, nil
}

// Ignored reports whether a clean relative name is ignored.
func (f *Files) Ignored(name string) bool {
	ignored := false
	for _, r := range f.ignore {
		for at := name; at != "."; at = path.Dir(at) {
			if match(strings.Split(r.pattern, "/"), strings.Split(at, "/")) {
				ignored = !r.keep
				break
			}
		}
	}
	return ignored
}

// match compares a pattern with a name element by element; "**" matches any
// number of elements.
func match(pattern, name []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for i := range len(name) + 1 {
				if match(pattern[1:], name[i:]) {
					return true
				}
			}
			return false
		}
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], name[0]); err != nil || !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	return len(name) == 0
}

// source is a file or directory that a copy step names.
type source struct {
	name string
	dir  bool
}

// sources resolves a source of a copy step, which is a name or a pattern.
func (f *Files) sources(s *Step, pattern string) ([]source, error) {
	clean, _ := inContext(pattern) // the step was validated
	if f.root == nil {
		return nil, s.invalid("%q: the build has no files", clip(pattern))
	}
	names := []string{clean}
	if strings.ContainsAny(clean, `*?[\`) {
		var err error
		if names, err = fs.Glob(f.root.FS(), clean); err != nil {
			return nil, s.invalid("%q is not a pattern", clip(pattern))
		}
	}
	var found []source
	for _, name := range names {
		if name != "." && f.Ignored(name) {
			continue
		}
		stat := f.root.Stat
		if s.Keep {
			stat = f.root.Lstat
		}
		fi, err := stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, s.invalid("%q cannot be read: %v", clip(name), pathError(err))
		}
		found = append(found, source{name, fi.IsDir()})
	}
	if len(found) == 0 {
		return nil, s.invalid("%q: no such file among the build's files", clip(pattern))
	}
	return found, nil
}

// pathError returns the error without the directory on this machine.
func pathError(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// owner is the owner of copied files.
type owner struct{ uid, gid int }

// writeCopy writes the files of a copy step as an image layer. dest is
// absolute; with a trailing slash it is a directory.
func (f *Files) writeCopy(w *tar.Writer, s *Step, dest string, own owner) error {
	dir := strings.HasSuffix(dest, "/")
	c := &copier{files: f, w: w, step: s, own: own}
	for _, pattern := range s.Args[:len(s.Args)-1] {
		all, err := f.sources(s, pattern)
		if err != nil {
			return err
		}
		into := dir || s.Keep && len(all) > 1
		if len(all) > 1 && !into {
			return s.invalid("the destination of several files must end with a slash: %q", clip(dest))
		}
		for _, src := range all {
			switch {
			case src.dir && s.Keep && len(all) > 1:
				err = c.tree(src.name, path.Join(dest, path.Base(src.name)))
			case src.dir: // its content, as Docker does
				err = c.tree(src.name, dest)
			case into:
				err = c.one(src.name, path.Join(dest, path.Base(src.name)), !s.Keep)
			default:
				err = c.one(src.name, dest, !s.Keep)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// copier copies build files to a layer.
type copier struct {
	files *Files
	w     *tar.Writer
	step  *Step
	own   owner
	count int // number of members written
}

// tree copies the content of a directory. Parent directories are created when
// the layer is applied; an empty directory is written as a member.
func (c *copier) tree(from, to string) error {
	before := c.count
	if err := c.below(from, to); err != nil || c.count > before || path.Clean(to) == "/" {
		return err
	}
	return c.one(from, path.Clean(to), true)
}

func (c *copier) below(from, to string) error {
	return fs.WalkDir(c.files.root.FS(), from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return c.step.invalid("%q cannot be read: %v", clip(name), pathError(err))
		}
		if name == from {
			return nil
		}
		if c.files.Ignored(name) {
			// A later rule may keep something below this directory.
			return nil
		}
		rel := strings.TrimPrefix(name, from+"/")
		if from == "." {
			rel = name
		}
		return c.one(name, path.Join(to, rel), false)
	})
}

// one copies a file, an empty directory or a symbolic link. follow follows a
// link in the last element, for named sources.
func (c *copier) one(from, to string, follow bool) error {
	stat := c.files.root.Lstat
	if follow {
		stat = c.files.root.Stat
	}
	fi, err := stat(from)
	if err != nil {
		return c.step.invalid("%q cannot be read: %v", clip(from), pathError(err))
	}
	if strings.HasPrefix(path.Base(to), ".wh.") {
		return c.step.invalid("%q: an image layer cannot hold names that begin with .wh.", clip(from))
	}
	c.count++
	h := &tar.Header{
		Name: strings.TrimPrefix(to, "/"), Mode: int64(fi.Mode().Perm()), Uid: c.own.uid, Gid: c.own.gid, ModTime: epoch, Format: tar.FormatPAX,
	}
	if c.step.Chmod != 0 {
		h.Mode = int64(c.step.Chmod)
	}
	switch fi.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		if c.step.Chmod != 0 {
			h.Mode = int64(c.step.Chmod | c.step.Chmod&0o444>>2) // readable means enterable
		}
		return c.w.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = c.files.root.Readlink(from); err != nil {
			return c.step.invalid("%q cannot be read: %v", clip(from), pathError(err))
		}
		return c.w.WriteHeader(h)
	case 0:
		return c.regular(from, h)
	}
	return c.step.invalid("%q is neither a file nor a directory nor a link", clip(from))
}

func (c *copier) regular(from string, h *tar.Header) error {
	in, err := c.files.root.Open(from)
	if err != nil {
		return c.step.invalid("%q cannot be read: %v", clip(from), pathError(err))
	}
	defer in.Close()
	fi, err := in.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return c.step.invalid("%q changed while it was copied", clip(from))
	}
	h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	if err := c.w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(c.w, io.LimitReader(in, h.Size))
	if err == nil && n != h.Size {
		err = fmt.Errorf("%q changed while it was copied", clip(from))
	}
	return err
}
