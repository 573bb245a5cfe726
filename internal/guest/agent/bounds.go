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

// The number of processes is limited by the control group that the sandbox's
// kernel starts this process in. Two things would be wrong if everything stayed
// there. The guest would be counted and refused with the commands, and a Go
// program that needs a thread and gets none ends. And whoever is inside could
// lift the limit: anybody may make a user namespace, mount the hierarchy there
// and write to it as its owner, and root may start a process in any group that
// it sees. So the guest leaves the group, starts commands in one below it, and
// gives them a control group namespace in which there is nothing above theirs.

const groupsDir = "/sys/fs/cgroup"

// bounds is the control group that commands are started in. The zero value is
// for where there is none.
type bounds struct {
	mu     sync.RWMutex
	own    *os.File // the directory with the limit
	group  *os.File // the one below it that commands are started in
	groups int      // made so far
}

// establish is done once, by root of the sandbox, before any command runs.
func (b *bounds) establish() error {
	path, err := ownGroup()
	if err != nil || path == "/" { // which no limit can be set of
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
	// The directory that this is opened in stays writable after it is
	// unmounted.
	if b.own, err = os.Open(groupsDir + path); err != nil {
		return err
	}
	if b.group, err = b.newGroup(); err != nil {
		return err
	}
	// The namespace begins where its maker is at that time.
	if err := writeIn(b.group, "cgroup.procs", "0"); err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0); errno != 0 {
		return fmt.Errorf("unshare: %w", errno)
	}
	if _, err := top.WriteString("0"); err != nil {
		return err
	}
	// Programs look for these files in their own group, so they must be in the
	// group of the commands.
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

// start calls start with what places a process within the bounds.
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

// startAfresh starts a process in a new group and keeps that if it succeeds:
// root inside can make a group that it is in unfit for others.
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
	return pid, nil
}

// still calls f while no process within the bounds can start another one.
func (b *bounds) still(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group != nil {
		_ = writeIn(b.group, "pids.max", "0")
		defer func() { _ = writeIn(b.group, "pids.max", "max") }()
	}
	f()
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

// ownGroup is the path of this process's control group in the hierarchy.
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

// remountGroups mounts the hierarchy as the namespace of this process shows it.
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
