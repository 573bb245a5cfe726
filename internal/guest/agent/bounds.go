package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/spawn"
)

// The sandbox's kernel starts this process in a control group that limits the
// number of processes. The guest must not stay there, for two reasons. It would
// count towards the limit, and a Go program that cannot create a thread
// crashes. And a process in the sandbox could lift the limit: any user can
// create a user namespace, mount the hierarchy there and write to it as its
// owner, and root can start a process in any group that it can see. So the
// guest leaves the group, starts commands in a group below it, and gives them a
// control group namespace whose root is that group.

const groupsDir = "/sys/fs/cgroup"

// bounds is the control group that commands start in. The zero value is for
// kernels without control groups.
type bounds struct {
	mu     sync.RWMutex
	own    *os.File // the directory with the limit
	group  *os.File // the group below it that commands start in
	groups int      // created so far
}

// establish runs once, as the sandbox's root, before any command.
func (b *bounds) establish() error {
	path, err := ownGroup()
	if err != nil || path == "/" { // the root group has no limit
		return err
	}
	if err := remountGroups(0); err != nil {
		return err
	}
	top, err := os.OpenFile(groupsDir+"/cgroup.procs", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer top.Close()
	// This open directory stays writable after the hierarchy is unmounted.
	if b.own, err = os.Open(groupsDir + path); err != nil {
		return err
	}
	if b.group, err = b.newGroup(); err != nil {
		return err
	}
	// The root of a new namespace is the group of the process that creates it.
	if err := writeIn(b.group, "cgroup.procs", "0"); err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0); errno != 0 {
		return fmt.Errorf("unshare: %w", errno)
	}
	if _, err := top.WriteString("0"); err != nil {
		return err
	}
	// Programs read these files in their own group, so the controllers must be
	// enabled for the commands' group.
	if err := writeIn(b.own, "cgroup.subtree_control", "+cpu +memory +pids +cpuset"); err != nil {
		return err
	}
	return remountGroups(unix.MS_RDONLY)
}

func (b *bounds) newGroup() (*os.File, error) {
	b.groups++
	name := "commands" + strconv.Itoa(b.groups)
	if err := unix.Mkdirat(int(b.own.Fd()), name, 0o755); err != nil {
		return nil, fmt.Errorf("making a control group: %w", err)
	}
	fd, err := unix.Openat(int(b.own.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a control group: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// start calls start with attr set to place the process in the group.
func (b *bounds) start(attr *spawn.Attr, start func() (int, error)) (int, error) {
	b.mu.RLock()
	if b.group == nil {
		defer b.mu.RUnlock()
		return start()
	}
	attr.InCgroup, attr.Cgroup = true, int(b.group.Fd())
	pid, err := start()
	b.mu.RUnlock()
	if err != syscall.EAGAIN && err != syscall.EBUSY {
		return pid, err
	}
	return b.startAfresh(attr, start)
}

// startAfresh starts a process in a new group and keeps that group on success.
// Root in the sandbox can make the current group unusable.
func (b *bounds) startAfresh(attr *spawn.Attr, start func() (int, error)) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fresh, err := b.newGroup()
	if err != nil {
		return 0, err
	}
	attr.Cgroup = int(fresh.Fd())
	pid, err := start()
	if err != nil {
		fresh.Close()
		_ = unix.Unlinkat(int(b.own.Fd()), fresh.Name(), unix.AT_REMOVEDIR)
		return pid, err
	}
	b.group.Close()
	b.group = fresh
	_ = b.copyLimits() // for programs that read them
	return pid, nil
}

// show copies the limits of the sandbox to the commands' group, where programs
// read them.
func (b *bounds) show() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group == nil {
		return nil
	}
	return b.copyLimits()
}

func (b *bounds) copyLimits(names ...string) error {
	if names == nil {
		names = []string{"cpu.max", "memory.max", "pids.max"}
	}
	for _, name := range names {
		limit, err := readIn(b.own, name)
		if err == nil {
			err = writeIn(b.group, name, limit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// still runs f while processes in the group cannot fork.
func (b *bounds) still(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group != nil {
		_ = writeIn(b.group, "pids.max", "0")
		defer func() { _ = b.copyLimits("pids.max") }()
	}
	f()
}

func readIn(dir *os.File, name string) (string, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("reading %s of a control group: %w", name, err)
	}
	defer unix.Close(fd)
	b := make([]byte, 64) // two numbers
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", fmt.Errorf("reading %s of a control group: %w", name, err)
	}
	return string(b[:n]), nil
}

func writeIn(dir *os.File, name, text string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(text))
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("writing %s of a control group: %w", name, err)
	}
	return nil
}

// ownGroup returns the path of this process's control group in the hierarchy.
func ownGroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if group, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(group), nil
		}
	}
	return "", errors.New("no control group")
}

// remountGroups mounts the hierarchy as this process's namespace shows it.
func remountGroups(flags uintptr) error {
	if err := unix.Unmount(groupsDir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting %s: %w", groupsDir, err)
	}
	flags |= unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("cgroup", groupsDir, "cgroup2", flags, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", groupsDir, err)
	}
	return nil
}
