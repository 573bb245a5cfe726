package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// hostSource is the host image: a read-only view of the machine's toolchain.
// Its file system contains only directories and a small /etc, partly generated
// and partly copied from an allow-list. The toolchain itself is bind-mounted.
// Nothing is copied from /home, /root, /var, /srv, /run or /tmp, and no file
// that is not world-readable. Files in /etc that may contain tokens (profile,
// gitconfig, pip.conf, npmrc, environment, …) are left out or generated.
type hostSource struct{ root string }

// hostDirs are the directories of the host image.
var hostDirs = []struct {
	name string
	mode int64
	uid  int
}{
	{"dev", 0o755, 0},
	{"etc", 0o755, 0},
	{"home", 0o755, 0},
	{"home/user", 0o755, userID},
	{"media", 0o755, 0},
	{"mnt", 0o755, 0},
	{"opt", 0o755, 0},
	{"proc", 0o555, 0},
	{"root", 0o700, 0},
	{"run", 0o755, 0},
	{"run/lock", 0o1777, 0},
	{"srv", 0o755, 0},
	{"sys", 0o555, 0},
	{"tmp", 0o1777, 0},
	{"usr", 0o755, 0},
	{"var", 0o755, 0},
	{"var/cache", 0o755, 0},
	{"var/lib", 0o755, 0},
	{"var/log", 0o755, 0},
	{"var/tmp", 0o1777, 0},
	{"workspace", 0o755, 0},
}

// userID is the unprivileged user of the host image, in addition to nobody.
const userID = 1000

// hostLinks are symbolic links of the host image.
var hostLinks = map[string]string{
	"var/run": "/run", "var/lock": "/run/lock", "etc/mtab": "/proc/mounts",
}

// hostTop are top-level directories with programs, or links to them.
// Directories are bind-mounted.
var hostTop = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec"}

// hostFiles are generated.
var hostFiles = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
		"user:x:1000:1000:user:/home/user:/bin/bash\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
	"etc/hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
	"etc/hostname":      "atoll\n",
	"etc/resolv.conf":   "",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
	"etc/shells":        "/bin/sh\n/bin/bash\n",
	"etc/profile":       "[ -n \"$BASH\" ] && [ -n \"$PS1\" ] && [ -r /etc/bash.bashrc ] && . /etc/bash.bashrc\numask 022\n",
	"etc/bash.bashrc":   "[ -z \"$PS1\" ] && return\nPS1='\\u@\\h:\\w\\$ '\n",
}

// hostEtc lists what is copied from the host's /etc. The first path element may
// contain one "*". Directories are copied recursively.
var hostEtc = []string{
	// The dynamic linker and what names the system.
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "os-release", "lsb-release", "*-release", "debian_version",
	// Links in /usr lead here.
	"alternatives",
	// Tables that libraries read.
	"localtime", "timezone", "mime.types", "magic", "magic.mime", "protocols", "services", "rpc", "ethertypes", "networks", "host.conf",
	"locale.alias", "locale.conf", "inputrc", "terminfo", "fonts",
	// Trust, without keys.
	"ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates/extracted",
	"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "crypto-policies",
	// Configuration of language toolchains that does not work without.
	"python3", "python3.*", "perl", "java*-openjdk", "java-*-openjdk", "java", "maven/m2.conf", "maven/logging",
	"ImageMagick-*", "R", "ghostscript", "texmf",
}

// hostNever matches names that are never copied.
var hostNever = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^private$|\.(key|p12|pfx|jks|keytab|bak|orig|git)$|~$|password|secret|credential|token`)
})

// matches reports whether name matches pattern, in which "*" matches any text.
// It is ten times as fast as path.Match; every Get of the host image makes
// about ten thousand comparisons.
func matches(pattern, name string) bool {
	prefix, suffix, star := strings.Cut(pattern, "*")
	return name == pattern || star && len(name) >= len(prefix)+len(suffix) && strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix)
}

// hostDeref are copied as files if they are links into hostStores, because they
// must exist on every distribution.
var hostDeref = []string{"os-release", "localtime", "ssl/certs/ca-certificates.crt", "ssl/cert.pem", "pki/tls/cert.pem", "pki/tls/certs/ca-bundle.crt"}

// hostStores are the targets of such links on distributions that keep these
// files outside /usr.
var hostStores = []string{"/var/lib/ca-certificates/", "/nix/store/", "/gnu/store/", "/etc/static/"}

const (
	hostMaxFile  = 4 << 20  // bytes of one copied file
	hostMaxTotal = 32 << 20 // bytes of all
)

// config returns the configuration of commands. The locale is C.UTF-8: UTF-8
// characters, everything else as in C. It is set with LC_CTYPE, because with
// LANG the C library opens a dozen more files whenever a program starts.
func (h *hostSource) config() Config {
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if h.isDir("usr/local/go/bin") {
		dirs = append(dirs, "/usr/local/go/bin")
	}
	return Config{Env: []string{"PATH=" + strings.Join(dirs, ":"), "LC_CTYPE=C.UTF-8"}, Workdir: "/"}
}

func (h *hostSource) path(name string) string { return path.Join(h.root, name) }

func (h *hostSource) isDir(name string) bool {
	fi, err := os.Lstat(h.path(name))
	return err == nil && fi.IsDir()
}

// binds returns the bind mounts.
func (h *hostSource) binds() []Bind {
	var binds []Bind
	for _, name := range append([]string{"usr", "opt"}, hostTop...) {
		if h.isDir(name) {
			binds = append(binds, Bind{Source: h.path(name), Target: "/" + name})
		}
	}
	return binds
}

// stamp covers the version of the lists above and all copied files.
func (h *hostSource) stamp(ctx context.Context) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "host %d %q\n", recordVersion, h.root)
	for _, b := range h.binds() {
		fmt.Fprintf(sum, "%q\n", b.Target)
	}
	for _, name := range hostTop {
		target, _ := os.Readlink(h.path(name))
		fmt.Fprintf(sum, "%q %q\n", name, target)
	}
	fmt.Fprintln(sum, h.config().Env)
	dir := h.path("etc")
	view := etcView{
		lstat:   func(name string) (fs.FileInfo, error) { return os.Lstat(dir + "/" + name) },
		readDir: func(name string) ([]fs.DirEntry, error) { return os.ReadDir(dir + "/" + name) },
	}
	err := view.each(ctx, func(name string, fi fs.FileInfo) error {
		if fi != nil { // a link changes only together with its directory
			stampFile(sum, name, fi)
		}
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// etcView is /etc, accessed by path, which is fast, or through an os.Root,
// which is safe.
type etcView struct {
	lstat   func(name string) (fs.FileInfo, error)
	readDir func(name string) ([]fs.DirEntry, error)
}

// each calls f for every file that may be copied, with its name in /etc,
// parents first. fi is nil for a symbolic link.
func (v etcView) each(ctx context.Context, f func(name string, fi fs.FileInfo) error) error {
	top, err := v.readDir(".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, pattern := range hostEtc {
		if err := ctx.Err(); err != nil {
			return err
		}
		first, rest, deep := strings.Cut(pattern, "/")
		for _, e := range top {
			if !matches(first, e.Name()) {
				continue
			}
			name, typ := e.Name(), e.Type()
			if deep {
				name += "/" + rest
				fi, err := v.lstat(name)
				if err != nil {
					continue
				}
				typ = fi.Mode().Type()
			}
			if err := v.walk(name, typ, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// walk calls f for name and everything below it. Files that are not
// world-readable are left out.
func (v etcView) walk(name string, typ fs.FileMode, f func(string, fs.FileInfo) error) error {
	if typ == fs.ModeSymlink {
		return f(name, nil) // the target is not copied
	}
	if hostNever().MatchString(path.Base(name)) {
		return nil
	}
	fi, err := v.lstat(name)
	if err != nil {
		return nil //nolint:nilerr // missing or not readable: not copied
	}
	switch mode := fi.Mode(); {
	case mode.IsRegular() && mode.Perm()&0o004 != 0 && fi.Size() <= hostMaxFile:
		return f(name, fi)
	case !mode.IsDir() || mode.Perm()&0o005 != 0o005:
		return nil
	}
	if err := f(name, fi); err != nil {
		return err
	}
	entries, err := v.readDir(name)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	for _, e := range entries {
		if err := v.walk(name+"/"+e.Name(), e.Type(), f); err != nil {
			return err
		}
	}
	return nil
}

func (h *hostSource) load(context.Context, *job) (*content, error) {
	open := func(ctx context.Context) (io.ReadCloser, error) {
		return tarStream(func(w *tar.Writer) error { return h.write(ctx, w) }), nil
	}
	return &content{
		config: h.config(), binds: h.binds(), literal: true,
		layers: []layerBlob{{open: open}},
	}, nil
}

// write writes the skeleton as a tar. Copied files keep their times, and other
// times are 0, so that equal machines have equal images.
func (h *hostSource) write(ctx context.Context, w *tar.Writer) error {
	t := &hostWriter{w: w, seen: map[string]bool{}, left: hostMaxTotal}
	for _, d := range hostDirs {
		_ = t.put(&tar.Header{Typeflag: tar.TypeDir, Name: d.name, Mode: d.mode, Uid: d.uid, Gid: d.uid}, nil)
	}
	for _, name := range slices.Sorted(maps.Keys(hostLinks)) {
		_ = t.put(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: hostLinks[name]}, nil)
	}
	for _, name := range slices.Sorted(maps.Keys(hostFiles)) {
		_ = t.put(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(hostFiles[name]))
	}
	for _, name := range hostTop {
		h.writeTop(t, name)
	}
	if t.err != nil {
		return t.err
	}
	etc, err := os.OpenRoot(h.path("etc"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer etc.Close()
	view := etcView{
		lstat:   etc.Lstat,
		readDir: func(name string) ([]fs.DirEntry, error) { return fs.ReadDir(etc.FS(), name) },
	}
	return view.each(ctx, func(name string, fi fs.FileInfo) error { return h.writeEtc(t, etc, name, fi) })
}

// writeTop writes /bin and similar names as they are on the host: a link, a
// mount point, or nothing.
func (h *hostSource) writeTop(t *hostWriter, name string) {
	if h.isDir(name) {
		_ = t.put(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, nil)
	} else if target, err := os.Readlink(h.path(name)); err == nil {
		_ = t.put(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, nil)
	}
}

// writeEtc copies a file of /etc.
func (h *hostSource) writeEtc(t *hostWriter, etc *os.Root, name string, fi fs.FileInfo) error {
	hdr := &tar.Header{Typeflag: tar.TypeReg, Name: "etc/" + name, Mode: 0o644}
	if fi == nil {
		target, err := etc.Readlink(name)
		if err != nil {
			return nil //nolint:nilerr // removed meanwhile
		}
		if data, ok := h.deref(name, target); ok {
			return t.put(hdr, data)
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, target
		return t.put(hdr, nil)
	}
	hdr.Mode, hdr.ModTime = int64(fi.Mode().Perm()&^0o022), fi.ModTime()
	if fi.IsDir() {
		hdr.Typeflag = tar.TypeDir
		return t.put(hdr, nil)
	}
	if data, ok := readPublic(etc, name); ok {
		return t.put(hdr, data)
	}
	return nil
}

// readPublic reads a world-readable regular file.
func readPublic(root *os.Root, name string) ([]byte, bool) {
	f, st, err := openRegular(root, name)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	if st.Mode&0o004 == 0 {
		return nil, false
	}
	data, err := io.ReadAll(io.LimitReader(f, hostMaxFile+1))
	return data, err == nil && len(data) <= hostMaxFile
}

// deref returns the content of a file of hostDeref that is a link into
// hostStores, which the sandbox cannot see.
func (h *hostSource) deref(name, target string) ([]byte, bool) {
	if !slices.Contains(hostDeref, name) {
		return nil, false
	}
	full := target
	if !path.IsAbs(target) {
		full = path.Join("/etc", path.Dir(name), target)
	}
	full = path.Clean(full)
	if !slices.ContainsFunc(hostStores, func(dir string) bool { return strings.HasPrefix(full, dir) }) {
		return nil, false
	}
	root, err := os.OpenRoot(h.root)
	if err != nil {
		return nil, false
	}
	defer root.Close()
	return readPublic(root, strings.TrimPrefix(full, "/"))
}

// hostWriter writes the skeleton. If two files have the same name, the first
// one is used; generated files come first. It stores its first error.
type hostWriter struct {
	w    *tar.Writer
	seen map[string]bool
	left int64
	err  error
}

func (t *hostWriter) put(hdr *tar.Header, data []byte) error {
	if t.err != nil || t.seen[hdr.Name] {
		return t.err
	}
	t.seen[hdr.Name] = true
	if t.left -= int64(len(data)); t.left < 0 {
		return nil
	}
	if hdr.ModTime.IsZero() {
		hdr.ModTime = time.Unix(0, 0)
	}
	hdr.Format, hdr.Size = tar.FormatPAX, int64(len(data))
	if t.err = t.w.WriteHeader(hdr); t.err == nil {
		_, t.err = io.Copy(t.w, bytes.NewReader(data))
	}
	return t.err
}
