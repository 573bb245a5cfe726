package coreutils

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
)

func writeFlags(more bool) int {
	if more {
		return os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	return os.O_WRONLY | os.O_CREATE | os.O_TRUNC
}

// into returns where an operand goes: below dest if that is a directory.
func into(p *kernel.Proc, name, dest string) string {
	if info, err := p.K.FS.Stat(p.Cred, p.Path(dest), true); err == nil && info.Type == memfs.Dir {
		return strings.TrimSuffix(dest, "/") + "/" + path.Base(name)
	}
	return dest
}

// pairs runs f for every operand but the last, which is the destination.
func pairs(p *kernel.Proc, args []string, f func(from, to string) error) int {
	if len(args) < 2 {
		p.Errorf("missing operand")
		return 1
	}
	dest := args[len(args)-1]
	return each(p, args[:len(args)-1], func(name string) error { return f(name, into(p, name, dest)) })
}

func mode(text string, old uint32) (uint32, bool) {
	if n, err := strconv.ParseUint(text, 8, 13); err == nil {
		return uint32(n), true
	}
	i := strings.IndexAny(text, "+-=")
	if i < 0 {
		return 0, false
	}
	var who, bits uint32
	for _, c := range text[:i] {
		who |= map[rune]uint32{'u': 0o700, 'g': 0o070, 'o': 0o007, 'a': 0o777}[c]
	}
	if who == 0 {
		who = 0o777
	}
	for _, c := range text[i+1:] {
		b, ok := map[rune]uint32{'r': 0o444, 'w': 0o222, 'x': 0o111}[c]
		if !ok {
			return 0, false
		}
		bits |= b
	}
	switch text[i] {
	case '+':
		return old | who&bits, true
	case '-':
		return old &^ (who & bits), true
	}
	return old&^who | who&bits, true
}

func chmod(p *kernel.Proc) int {
	if len(p.Args) < 3 {
		p.Errorf("missing operand")
		return 1
	}
	return each(p, p.Args[2:], func(name string) error {
		info, err := p.K.FS.Stat(p.Cred, p.Path(name), true)
		if err != nil {
			return err
		}
		m, ok := mode(p.Args[1], info.Mode)
		if !ok {
			return errors.New("invalid mode")
		}
		return p.K.FS.Chmod(p.Cred, p.Path(name), m)
	})
}

func chown(p *kernel.Proc) int {
	if len(p.Args) < 3 {
		p.Errorf("missing operand")
		return 1
	}
	user, group, has := strings.Cut(p.Args[1], ":")
	uid, err := strconv.ParseUint(user, 10, 32)
	if err != nil {
		p.Errorf("invalid user: %s", user)
		return 1
	}
	return each(p, p.Args[2:], func(name string) error {
		info, err := p.K.FS.Stat(p.Cred, p.Path(name), false)
		if err != nil {
			return err
		}
		to := memfs.Cred{UID: uint32(uid), GID: info.GID}
		if has {
			gid, err := strconv.ParseUint(group, 10, 32)
			if err != nil {
				return err
			}
			to.GID = uint32(gid)
		}
		return p.K.FS.Chown(p.Cred, p.Path(name), to)
	})
}

func cp(p *kernel.Proc) int {
	opts, args, ok := options(p, "rRaf", "")
	if !ok {
		return 1
	}
	tree := opts['r'] != "" || opts['R'] != "" || opts['a'] != ""
	return pairs(p, args, func(from, to string) error { return copyTree(p, p.Path(from), p.Path(to), tree) })
}

func copyTree(p *kernel.Proc, from, to string, tree bool) error {
	info, err := p.K.FS.Stat(p.Cred, from, !tree)
	if err != nil {
		return err
	}
	switch {
	case info.Type == memfs.Symlink:
		return p.K.FS.Symlink(p.Cred, info.Target, to)
	case info.Type == memfs.Dir && !tree:
		return errors.New("omitting directory")
	case info.Type == memfs.Dir:
		if err := p.K.FS.Mkdir(p.Cred, to, info.Mode); err != nil && !errors.Is(err, syscall.EEXIST) {
			return err
		}
		names, err := p.K.FS.Names(p.Cred, from)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := copyTree(p, from+"/"+name, to+"/"+name, tree); err != nil {
				return err
			}
		}
		return nil
	}
	r, err := p.Open(from, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := p.Open(to, writeFlags(false), info.Mode)
	if err != nil {
		return err
	}
	defer w.Close()
	return copyTo(p.File(w), p.File(r))
}

// ddOptions are dd's operands.
type ddOptions struct {
	in, out           string
	bs, count         int64
	skip, seek        int64
	notrunc, counting bool
}

func ddParse(args []string) (o ddOptions, err error) {
	o.bs = 512
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		number := func() int64 {
			unit := int64(1)
			if n := len(value); n > 0 {
				if u, ok := map[byte]int64{'k': 1 << 10, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}[value[n-1]]; ok {
					unit, value = u, value[:n-1]
				}
			}
			n, e := strconv.ParseInt(value, 10, 64)
			if e != nil || n < 0 {
				err = fmt.Errorf("invalid number %q", value)
			}
			return n * unit
		}
		switch name {
		case "if":
			o.in = value
		case "of":
			o.out = value
		case "bs":
			o.bs = number()
		case "count":
			o.count, o.counting = number(), true
		case "skip":
			o.skip = number()
		case "seek":
			o.seek = number()
		case "conv":
			o.notrunc = strings.Contains(value, "notrunc")
		case "status":
		default:
			err = fmt.Errorf("unrecognized operand %q", a)
		}
	}
	if err == nil && (o.bs < 1 || o.bs > 1<<30) {
		err = errors.New("invalid block size")
	}
	return o, err
}

func dd(p *kernel.Proc) int {
	o, err := ddParse(p.Args[1:])
	if err != nil {
		p.Errorf("%v", err)
		return 1
	}
	r, w := io.Reader(p.Stream(0)), io.Writer(p.Stream(1))
	if o.in != "" {
		f, err := p.Open(o.in, os.O_RDONLY, 0)
		if err != nil {
			return complain(p, o.in, err)
		}
		defer f.Close()
		r = p.File(f)
		if h, ok := kernel.Regular(f); ok {
			_, _ = h.Seek(o.skip*o.bs, io.SeekStart) // Not negative: it cannot fail.
		}
	}
	if o.out != "" {
		f, err := p.Open(o.out, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return complain(p, o.out, err)
		}
		defer f.Close()
		w = p.File(f)
		if h, ok := kernel.Regular(f); ok {
			if !o.notrunc {
				err = h.Truncate(o.seek * o.bs)
			}
			_, _ = h.Seek(o.seek*o.bs, io.SeekStart) // Not negative: it cannot fail.
		}
		if err != nil {
			return complain(p, o.out, err)
		}
	}
	return ddCopy(p, o, r, w)
}

func ddCopy(p *kernel.Proc, o ddOptions, r io.Reader, w io.Writer) int {
	buf := make([]byte, o.bs)
	var blocks, total int64
	for !o.counting || blocks < o.count {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return complain(p, "writing", err)
			}
			total += int64(n)
			blocks++
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return complain(p, "reading", err)
		}
	}
	fmt.Fprintf(p.Stream(2), "%d records\n%d bytes copied\n", blocks, total)
	return 0
}

func ln(p *kernel.Proc) int {
	opts, args, ok := options(p, "sfn", "")
	if !ok {
		return 1
	}
	return pairs(p, args, func(from, to string) error {
		if opts['f'] != "" {
			_ = p.K.FS.Remove(p.Cred, p.Path(to), false) // If it is not there, so much the better.
		}
		if opts['s'] != "" {
			return p.K.FS.Symlink(p.Cred, from, p.Path(to))
		}
		return p.K.FS.Link(p.Cred, p.Path(from), p.Path(to))
	})
}

func ls(p *kernel.Proc) int {
	opts, args, ok := options(p, "aA1ld", "")
	if !ok {
		return 1
	}
	if len(args) == 0 {
		args = []string{"."}
	}
	show := func(name, full string) error {
		if opts['l'] == "" {
			_, err := fmt.Fprintln(p.Stream(1), name)
			return err
		}
		info, err := p.K.FS.Stat(p.Cred, full, false)
		if err == nil {
			_, err = fmt.Fprintf(p.Stream(1), "%c%04o %d %d %d %d %s\n", "-dlpc"[info.Type], info.Mode, info.Nlink, info.UID, info.GID, info.Size, name)
		}
		return err
	}
	return each(p, args, func(name string) error {
		full := p.Path(name)
		info, err := p.K.FS.Stat(p.Cred, full, true)
		if err != nil || info.Type != memfs.Dir || opts['d'] != "" {
			if _, lerr := p.K.FS.Stat(p.Cred, full, false); lerr != nil {
				return lerr
			}
			return show(name, full)
		}
		names, err := p.K.FS.Names(p.Cred, full)
		for _, n := range names {
			if strings.HasPrefix(n, ".") && opts['a'] == "" && opts['A'] == "" {
				continue
			}
			if err := show(n, full+"/"+n); err != nil {
				return err
			}
		}
		return err
	})
}

func mkdir(p *kernel.Proc) int {
	opts, args, ok := options(p, "p", "m")
	if !ok {
		return 1
	}
	perm := 0o777 &^ p.Umask
	if m, ok := opts['m']; ok {
		if perm, ok = mode(m, perm); !ok {
			p.Errorf("invalid mode %s", m)
			return 1
		}
	}
	return each(p, args, func(name string) error {
		if opts['p'] == "" {
			return p.K.FS.Mkdir(p.Cred, p.Path(name), perm)
		}
		return mkdirAll(p, p.Path(name), perm)
	})
}

func mkdirAll(p *kernel.Proc, dir string, perm uint32) error {
	info, err := p.K.FS.Stat(p.Cred, dir, true)
	switch {
	case err == nil && info.Type == memfs.Dir:
		return nil
	case err == nil:
		return syscall.ENOTDIR
	case !errors.Is(err, syscall.ENOENT):
		return err
	}
	if err := mkdirAll(p, path.Dir(strings.TrimRight(dir, "/")), 0o777&^p.Umask); err != nil {
		return err
	}
	if err := p.K.FS.Mkdir(p.Cred, dir, perm); err != nil && !errors.Is(err, syscall.EEXIST) {
		return err
	}
	return nil
}

func mkfifo(p *kernel.Proc) int {
	return each(p, p.Args[1:], func(name string) error { return p.K.FS.Mkfifo(p.Cred, p.Path(name), 0o666&^p.Umask) })
}

func mv(p *kernel.Proc) int {
	_, args, ok := options(p, "f", "")
	if !ok {
		return 1
	}
	return pairs(p, args, func(from, to string) error { return p.K.FS.Rename(p.Cred, p.Path(from), p.Path(to), false) })
}

func readlink(p *kernel.Proc) int {
	return each(p, p.Args[1:], func(name string) error {
		info, err := p.K.FS.Stat(p.Cred, p.Path(name), false)
		if err == nil && info.Type != memfs.Symlink {
			err = syscall.EINVAL
		}
		if err == nil {
			_, err = fmt.Fprintln(p.Stream(1), info.Target)
		}
		return err
	})
}

func rm(p *kernel.Proc) int {
	opts, args, ok := options(p, "rRf", "")
	if !ok {
		return 1
	}
	if len(args) == 0 && opts['f'] != "" {
		return 0
	}
	return each(p, args, func(name string) error {
		var err error
		if opts['r'] != "" || opts['R'] != "" {
			err = p.K.FS.RemoveAll(p.Cred, p.Path(name))
		} else {
			err = p.K.FS.Remove(p.Cred, p.Path(name), false)
		}
		if opts['f'] != "" && errors.Is(err, syscall.ENOENT) {
			return nil
		}
		return err
	})
}

func rmdir(p *kernel.Proc) int {
	return each(p, p.Args[1:], func(name string) error { return p.K.FS.Remove(p.Cred, p.Path(name), true) })
}

func sha256sum(p *kernel.Proc) int {
	return inputs(p, p.Args[1:], func(name string, r io.Reader) error {
		h := sha256.New()
		err := copyTo(h, r)
		if err == nil {
			_, err = fmt.Fprintf(p.Stream(1), "%x  %s\n", h.Sum(nil), name)
		}
		return err
	})
}

func touch(p *kernel.Proc) int {
	return each(p, p.Args[1:], func(name string) error {
		err := p.K.FS.Chtimes(p.Cred, p.Path(name), time.Now())
		if errors.Is(err, syscall.ENOENT) {
			var f kernel.File
			if f, err = p.Open(name, os.O_WRONLY|os.O_CREATE, 0o666); err == nil {
				f.Close()
			}
		}
		return err
	})
}
