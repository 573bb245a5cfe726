package agent

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// account is the user and groups that a command runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	name     string // empty if it has none
	home     string
}

// self is the user and groups that the guest runs as.
type self struct {
	root bool
	account
}

// whoAmI reads the guest's user and groups. They never change.
func whoAmI() self {
	s := self{root: os.Geteuid() == 0, account: account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}}
	groups, err := os.Getgroups()
	if err != nil || os.Geteuid() != os.Getuid() || os.Getegid() != os.Getgid() {
		s.gid = noID // a value that no group has
	}
	for _, g := range groups {
		s.groups = append(s.groups, uint32(g))
	}
	return s
}

// credential returns what a command must switch to in order to run as acc, or
// nil if it need not switch. Without root, commands can only run as the guest's
// user.
func (s *self) credential(acc account) (*syscall.Credential, error) {
	switch {
	case !s.root && acc.uid != s.uid && acc.uid != 0:
		return nil, &startError{code: 126, message: "only root can run commands as another user"}
	case !s.root, acc.uid == s.uid && acc.gid == s.gid && slices.Equal(acc.groups, s.groups):
		return nil, nil
	}
	return &syscall.Credential{Uid: acc.uid, Gid: acc.gid, Groups: acc.groups}, nil
}

// accounts resolves users with the sandbox's own files. It caches results until
// these files change.
type accounts struct {
	mu    sync.Mutex
	stamp [2]fileStamp
	known map[string]account
}

// fileStamp detects changes of a file.
type fileStamp struct {
	ino          uint64
	size         int64
	mtime, ctime syscall.Timespec
}

var accountFiles = [2]string{"/etc/passwd", "/etc/group"}

const (
	maxAccounts = 64        // cached
	noID        = 1<<32 - 1 // never valid: chown(2) takes it as "unchanged"
)

func stampOf(path string) (s fileStamp) {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) == nil {
		s = fileStamp{ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
	}
	return s
}

// lookup resolves "user", "uid", "user:group" or "uid:gid"; empty is root.
func (a *accounts) lookup(spec string) (account, error) {
	stamp := [2]fileStamp{stampOf(accountFiles[0]), stampOf(accountFiles[1])}
	a.mu.Lock()
	defer a.mu.Unlock()
	if acc, ok := a.known[spec]; ok && a.stamp == stamp {
		return acc, nil
	}
	passwd, err := readSmall(accountFiles[0])
	if err != nil {
		return account{}, err
	}
	group, err := readSmall(accountFiles[1])
	if err != nil {
		return account{}, err
	}
	acc, err := resolveAccount(spec, passwd, group)
	if err != nil {
		return account{}, err
	}
	if a.known == nil || a.stamp != stamp || len(a.known) >= maxAccounts {
		a.known = map[string]account{}
	}
	a.stamp = stamp
	a.known[spec] = acc
	return acc, nil
}

// readSmall reads a file that is under the control of the sandbox: it may be of
// any type and size. A missing file counts as empty.
func readSmall(path string) ([]byte, error) {
	const most = 4 << 20
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil //nolint:nilerr // Without the file, numbers still work.
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		syscall.Close(fd)
		return nil, errors.New(path + " is not a regular file")
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, errors.New(path + " cannot be read")
	}
	return b, nil
}

// resolveAccount resolves spec with the content of the files, as container
// engines do. A number needs no entry. If a group is given, it is the only
// group; otherwise the user's supplementary groups are looked up.
func resolveAccount(spec string, passwd, group []byte) (account, error) {
	user, grp, named := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	acc := account{home: "/"}
	uid, isNum := parseID(user)
	found := false
	entries(passwd, func(f []string) bool {
		if len(f) < 4 || (f[0] != user && (!isNum || f[2] != user)) {
			return true
		}
		u, ok1 := parseID(f[2])
		g, ok2 := parseID(f[3])
		if !ok1 || !ok2 {
			return true
		}
		acc.uid, acc.gid, acc.name, found = u, g, f[0], true
		if len(f) > 5 && strings.HasPrefix(f[5], "/") {
			acc.home = f[5]
		}
		return false
	})
	switch {
	case !found && !isNum && user == "root": // an image without /etc/passwd
		acc.name, acc.home = "root", "/root"
	case !found && !isNum:
		return account{}, errors.New("no such user: " + quote(user))
	case !found:
		acc.uid = uid
		if uid == 0 {
			acc.name, acc.home = "root", "/root"
		}
	}
	if named {
		gid, err := resolveGroup(grp, group)
		if err != nil {
			return account{}, err
		}
		acc.gid, acc.groups = gid, []uint32{gid}
		return acc, nil
	}
	acc.groups = memberships(acc.name, acc.gid, group)
	return acc, nil
}

func resolveGroup(name string, group []byte) (uint32, error) {
	gid, isNum := parseID(name)
	found := false
	entries(group, func(f []string) bool {
		if len(f) < 3 || f[0] != name {
			return true
		}
		if g, ok := parseID(f[2]); ok {
			gid, found = g, true
		}
		return !found
	})
	if !found && !isNum {
		return 0, errors.New("no such group: " + quote(name))
	}
	return gid, nil
}

// memberships returns the groups of a user, the primary group first.
func memberships(name string, gid uint32, group []byte) []uint32 {
	const most = 1024
	groups := []uint32{gid}
	if name == "" {
		return groups
	}
	entries(group, func(f []string) bool {
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), name) {
			return true
		}
		if g, ok := parseID(f[2]); ok && !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
		return len(groups) < most
	})
	return groups
}

// entries calls f with the fields of each line until it returns false.
func entries(b []byte, f func([]string) bool) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if !f(strings.Split(string(line), ":")) {
			return
		}
	}
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != noID
}

// quote makes a name safe in a message.
func quote(s string) string {
	if len(s) > 80 {
		s = s[:30] + "..." + s[len(s)-50:] // the last part of a path says most
	}
	return strconv.Quote(s)
}
