package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the reserve, in bytes, and the divisor of a limit that gives it. The
// same divisor gives what is a small share of a limit.
const (
	MinReserve = 32 << 20
	MaxReserve = 512 << 20
	SmallShare = 16
)

// reserve returns how much more than its limit a group may use before the host
// kills its processes (version 2) or refuses it memory (version 1). With version
// 2 it is slowed down above its limit, the more the larger the share is.
func reserve(limit int64) int64 { return min(max(MinReserve, limit/SmallShare), MaxReserve) }

// hardLimit returns the limit and the reserve.
func hardLimit(limit int64) int64 {
	if limit < 0 {
		return limit
	}
	return limit + reserve(limit)
}

// softLimit returns the limit that has a hard limit.
func softLimit(hard int64) int64 {
	if hard < 0 {
		return hard
	}
	return hard - min(max(MinReserve, hard/(SmallShare+1)), MaxReserve)
}

// Lend sets the memory limit of the group, in bytes.
func (g *Group) Lend(limit int64) error {
	_, err := g.Change(Limits{Memory: limit})
	return err
}

// GiveBack ends a loan, unless the group still needs it.
func (g *Group) GiveBack(limit int64) error {
	if g.Held() > limit {
		return unix.EBUSY // version 2 would kill its processes
	}
	return g.Lend(limit)
}

// WaitAtLimit says whether a group of version 1 waits at its limit. Otherwise
// the host kills its processes.
func (g *Group) WaitAtLimit(on bool) error {
	if g.Version != 1 {
		return nil
	}
	value := "0"
	if on {
		value = "1"
	}
	return os.WriteFile(filepath.Join(g.Dirs[Memory], "memory.oom_control"), []byte(value), 0)
}

// Thaw lets a group of version 2 go on. Former versions of Atoll froze groups whose
// memory was full.
func (g *Group) Thaw() error {
	if g.Version != 2 {
		return nil
	}
	return os.WriteFile(filepath.Join(g.anyDir(), "cgroup.freeze"), []byte("0"), 0)
}

// Uncache makes the host give back its cache of files in a group of version 1: for
// a moment it sets a lower hard limit, in bytes, which the host accepts only when
// the group uses less.
func (g *Group) Uncache(hard, limit int64) error {
	if err := os.WriteFile(filepath.Join(g.Dirs[Memory], "memory.limit_in_bytes"), []byte(Amount(hard, "")), 0); err != nil {
		return err
	}
	return g.Lend(limit)
}

// Events returns the events after which the group may be at its limit, or,
// with version 1, have used up its reserve.
func (g *Group) Events() (*Events, error) {
	dir, limit := g.Dirs[Memory], g.MemoryLimit()
	if g.Version == 2 {
		return pollChanges(filepath.Join(dir, "memory.events"), limit)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	e := &Events{File: os.NewFile(uintptr(fd), dir), Limit: limit}
	for _, name := range []string{"memory.usage_in_bytes", "memory.oom_control"} {
		if err := arm(dir, name, fd, limit); err != nil {
			e.Close()
			return nil, err
		}
	}
	return e, nil
}

// arm makes a group of version 1 signal an event of a file. The limit matters to
// memory.usage_in_bytes only.
func arm(dir, name string, fd int, limit int64) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	return os.WriteFile(filepath.Join(dir, "cgroup.event_control"), fmt.Appendf(nil, "%d %d %d", fd, f.Fd(), limit), 0)
}

// Events are the events of a group that may have reached its limit. Await is
// called by one goroutine, Stop by any. The owner closes them.
type Events struct {
	*os.File          // becomes readable
	source   *os.File // of version 2: what it polls
	Limit    int64    // of the group when they were asked for, in bytes
}

// pollChanges returns the changes of a file of a control group. It does not use
// inotify, of which a user has only 128 instances by default.
func pollChanges(name string, limit int64) (*Events, error) {
	source, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		source.Close()
		return nil, err
	}
	if err = unix.SetNonblock(fd, true); err == nil { // so that Go waits for it with a deadline
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(source.Fd()), &unix.EpollEvent{Events: unix.EPOLLPRI | unix.EPOLLET})
	}
	e := &Events{os.NewFile(uintptr(fd), name), source, limit}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Close ends the events.
func (e *Events) Close() {
	e.File.Close()
	if e.source != nil {
		e.source.Close()
	}
}

// Stop makes Await return.
func (e *Events) Stop() { _ = e.SetReadDeadline(time.Unix(1, 0)) }

// Await waits for an event.
func (e *Events) Await() error {
	if e.source == nil {
		_, err := e.Read(make([]byte, 8))
		return err
	}
	conn, err := e.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), make([]unix.EpollEvent, 1), 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// MemoryLimit returns the limit in bytes, negative if there is none. With version
// 1, which rounds the hard limit to pages, it may be a page less.
func (g *Group) MemoryLimit() int64 {
	if g.Version == 2 {
		return g.Figure(Memory, "memory.high")
	}
	return softLimit(g.Figure(Memory, "memory.limit_in_bytes"))
}

// AtLimit reports whether the group is at its limit and the host's cache of files
// is none of it. With version 2, where the host gives it back, it may be a small
// share.
func (g *Group) AtLimit() bool {
	if !g.Has(Memory) {
		return false
	}
	limit := g.MemoryLimit()
	least := limit
	if g.Version == 2 {
		least = almost(limit)
	}
	return limit > 0 && g.Charged() >= limit && g.Held() >= least
}

// Refuses reports whether the group has been at a limit, so that the host may have
// refused it memory for system calls and signals. It does so with version 1, where
// only programs wait.
func (g *Group) Refuses(limit int64) bool {
	return g != nil && g.Version == 1 && limit > 0 && g.Figure(Memory, "memory.max_usage_in_bytes") >= limit
}

// Charged returns the group's memory in bytes, negative if unknown.
func (g *Group) Charged() int64 {
	if g.Version == 2 {
		return g.Figure(Memory, "memory.current")
	}
	return g.Figure(Memory, "memory.usage_in_bytes")
}

// Held is Charged without the host's cache of files.
func (g *Group) Held() int64 {
	cached := []string{"total_active_file", "total_inactive_file"}
	if g.Version == 2 {
		cached = []string{"active_file", "inactive_file"}
	}
	n := g.Charged()
	for _, name := range cached {
		n -= max(0, g.Statistic(Memory, "memory.stat", name))
	}
	return n
}

// almost returns the memory from which a group with this limit is at it, if it
// uses all of it.
func almost(limit int64) int64 { return limit - limit/SmallShare }

// Reread returns how many pages of files the host has read again, because it had
// given them back, and the bytes of files that the group has in memory.
func (g *Group) Reread() (pages, files int64, ok bool) {
	if !g.Has(Memory) {
		return 0, 0, false
	}
	text, err := os.ReadFile(filepath.Join(g.Dirs[Memory], "memory.stat"))
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(text)) {
		switch name, n, _ := strings.Cut(line, " "); name {
		case "workingset_refault_file":
			pages = number(n)
		case "active_file", "inactive_file":
			files += number(n)
		}
	}
	return pages, files, true
}
