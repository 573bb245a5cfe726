package template

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
)

// packer writes build files as a tar.
type packer struct {
	ctx   context.Context
	files *Files
	out   *tar.Writer
}

func (p *packer) dir(name string) error {
	entries, err := fs.ReadDir(p.files.root.FS(), name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := p.entry(path.Join(name, e.Name()), e); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(name string, e fs.DirEntry) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	ignored := p.files.Ignored(name)
	if e.IsDir() {
		if ignored && !p.files.keepsBelow() {
			return nil
		}
		if !ignored {
			if err := p.header(name, e, tar.TypeDir, ""); err != nil {
				return err
			}
		}
		return p.dir(name)
	}
	switch {
	case ignored:
		return nil
	case e.Type()&fs.ModeSymlink != 0:
		target, err := p.files.root.Readlink(name)
		if err != nil {
			return err
		}
		return p.header(name, e, tar.TypeSymlink, target)
	case e.Type().IsRegular():
		return p.file(name)
	}
	return nil // ignore sockets and devices
}

func (p *packer) header(name string, e fs.DirEntry, kind byte, target string) error {
	fi, err := e.Info()
	if err != nil {
		return err
	}
	return p.out.WriteHeader(&tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: int64(fi.Mode().Perm()), Format: tar.FormatPAX})
}

func (p *packer) file(name string) error {
	f, err := p.files.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: fi.Size(), Mode: int64(fi.Mode().Perm()), Format: tar.FormatPAX}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.Copy(p.out, io.LimitReader(f, h.Size)); err != nil || n != h.Size {
		return fmt.Errorf("%s changed while it was read", name)
	}
	return nil
}

// keepsBelow reports whether a rule keeps something that another rule ignores,
// so that ignored directories have to be searched.
func (f *Files) keepsBelow() bool {
	for _, r := range f.ignore {
		if r.keep {
			return true
		}
	}
	return false
}
