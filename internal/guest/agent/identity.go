package agent

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The files that give a sandbox its name. Images leave them to the runtime.
const (
	fileHosts    = "/etc/hosts"
	fileHostname = "/etc/hostname"
	fileResolv   = "/etc/resolv.conf"
)

// identity writes the files of a sandbox's name. Only process 1 of a sandbox
// uses it: other products have their own.
type identity struct {
	root  string // of the files; empty in a sandbox
	named bool   // this guest has written the files
}

// ownName marks the line of /etc/hosts that has the sandbox's name. The line is
// replaced with every new name. Everything else in the file stays.
const ownName = "# this sandbox"

const localhost = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// write brings the files up to date for a host name. It leaves mounted files
// alone, and a name that a program has put in place of the sandbox's. The
// sandbox works without these files, so failures do not matter: the image may
// have no writable /etc.
func (i *identity) write(host string) {
	mounts := mountPoints(i.root)
	hosts, _ := readSmall(i.root + fileHosts)
	former := formerName(hosts)
	if !mounted(i.root+fileHosts, mounts) && (former != "" || !i.named) {
		if text := hostsWith(hosts, host); !bytes.Equal(text, hosts) {
			_ = replaceFile(i.root+fileHosts, text)
		}
	}
	hostname, _ := readSmall(i.root + fileHostname)
	present := strings.TrimSpace(string(hostname))
	ours := present == "" || present == former || former == "" && !i.named
	if ours && present != host && !mounted(i.root+fileHostname, mounts) {
		_ = replaceFile(i.root+fileHostname, []byte(host+"\n"))
	}
	if _, err := os.Lstat(i.root + fileResolv); errors.Is(err, fs.ErrNotExist) {
		_ = replaceFile(i.root+fileResolv, nil) // the provider adds the name server
	}
	i.named = true
}

// formerName returns the name in the marked line of a hosts file.
func formerName(hosts []byte) string {
	for line := range strings.Lines(string(hosts)) {
		if f := strings.Fields(line); isOwnName(line) && len(f) > 1 {
			return f[1]
		}
	}
	return ""
}

func isOwnName(line string) bool { return strings.HasSuffix(strings.TrimSpace(line), ownName) }

// hostsWith returns a hosts file with host in the marked line, and with
// localhost. A name that the file has already is not added.
func hostsWith(old []byte, host string) []byte {
	var b strings.Builder
	own, local, named := "", false, false
	for line := range strings.Lines(string(old)) {
		if isOwnName(line) {
			continue
		}
		entry, _, _ := strings.Cut(line, "#")
		names := strings.Fields(entry)
		local = local || slices.Contains(names, "localhost")
		named = named || slices.Contains(names, host)
		b.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			b.WriteByte('\n')
		}
	}
	if !named {
		own = "127.0.1.1\t" + host + "\t" + ownName + "\n"
	}
	if local {
		return []byte(b.String() + own)
	}
	return []byte(localhost + b.String() + own)
}

// mountPoints returns where file systems are mounted below a root directory.
func mountPoints(root string) []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] != "/" && strings.HasPrefix(f[4], root+"/") {
			points = append(points, f[4])
		}
	}
	return points
}

// mounted reports whether a file is, or is in, one of these mounts.
func mounted(name string, points []string) bool {
	dir, err := filepath.EvalSymlinks(path.Dir(name))
	if err != nil {
		return false
	}
	file := path.Join(dir, path.Base(name))
	return slices.ContainsFunc(points, func(p string) bool { return file == p || strings.HasPrefix(file, p+"/") })
}

// replaceFile writes a file as a whole. It keeps the mode of an existing one,
// and replaces a link, whose target may not be writable.
func replaceFile(name string, content []byte) error {
	if err := os.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := uint32(0o644)
	var st unix.Stat_t
	if unix.Lstat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		mode = st.Mode & 0o777
	}
	tmp, err := os.CreateTemp(path.Dir(name), ".atoll-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, unix.Fchmod(int(tmp.Fd()), mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
