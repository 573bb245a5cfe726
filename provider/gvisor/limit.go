package gvisor

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// At its memory limit a sandbox must not lose its kernel, which has its files,
// or the stub that all others are forked from. But the host would kill them: the
// content of a memfd, of a pipe or of shared memory is in the kernel's own
// memory, which is freed only a little after the end of the program that holds
// it. Until then the host kills everything else.
//
// So at the limit the host lets the group wait (version 1) or slows it down
// (version 2). This process ends one program, lends the group a little memory
// so that its kernel can notice that, and waits for the program's memory.
const (
	lent     = 32 << 20        // bytes that are lent first
	mostLent = 512 << 20       // and if no program is left
	freeTime = 5 * time.Second // without any memory being freed
	freeStep = 256 << 10       // bytes; a smaller change is none
	pollFree = 5 * time.Millisecond
	pollFull = 100 * time.Millisecond
)

// watchLimit makes room in the sandbox whenever it is at its memory limit, until
// it has ended or this process releases it. It does nothing if this or another
// process already does that; look tries again.
func (m *memoryGuard) watchLimit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.idle != nil && !isClosed(m.idle) || isClosed(m.released) || isClosed(m.ended) {
		return
	}
	limit := m.limit()
	if limit <= 0 {
		return
	}
	lock, err := m.box.lockStarved()
	if err != nil {
		return
	}
	g := m.rec.cgroup()
	events, err := g.limitEvents()
	if err != nil {
		lock.Close()
		return // the host kills processes
	}
	if g.memoryLimit() > limit { // lent by a process that was killed
		_ = g.giveBack(limit)
	}
	idle := make(chan struct{})
	m.idle = idle
	go func() {
		defer close(idle)
		defer lock.Close()
		defer events.Close()
		m.serveLimit(g, events)
		if !m.full.Load() { // else the host would kill the kernel
			_ = g.waitAtLimit(false) // without this process nobody would make room
		}
	}()
}

// stopWatching waits until watchLimit no longer watches. The sandbox was
// released.
func (m *memoryGuard) stopWatching() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.idle != nil {
		<-m.idle
	}
}

func (m *memoryGuard) serveLimit(g *cgroup, events *os.File) {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-m.ended:
		case <-m.released:
		case <-over:
		}
		_ = events.SetReadDeadline(time.Unix(1, 0))
	}()
	buf := make([]byte, 4096)
	for {
		if g.atLimit() && !m.relieve(g) && !m.waitFull(g) {
			return
		}
		if _, err := events.Read(buf); err != nil {
			return
		}
		if g.version == 1 {
			m.box.addStarved()
		}
	}
}

// waitFull waits until a sandbox whose memory cannot be freed has a higher limit.
// It returns false if the sandbox ends or is released before.
func (m *memoryGuard) waitFull(g *cgroup) bool {
	if g.version == 2 { // it would not wait
		m.endStarved()
		return false
	}
	slog.Warn("the memory of a sandbox is full of data that no program holds; it waits for a higher limit", "sandbox", m.rec.ID)
	m.full.Store(true)
	for g.atLimit() {
		select {
		case <-m.ended:
			return false
		case <-m.released:
			return false
		case <-time.After(pollFull):
		}
	}
	m.full.Store(false)
	return true
}

// relieve ends programs until the sandbox needs no more than its limit. It
// returns false if that does not suffice.
func (m *memoryGuard) relieve(g *cgroup) bool {
	killed := map[int]bool{}
	for extra := int64(lent); ; {
		limit := m.limit()
		if limit <= 0 {
			return true
		}
		// Resize may have set a higher limit and not recorded it yet.
		if limit+extra > g.memoryLimit() && g.lend(limit+extra) != nil {
			return m.settle(g, limit)
		}
		rest, _ := m.box.rest()
		ended := rest == awake && m.makeRoom(killed) // while tasks are paused, it frees nothing
		if m.freed(g, limit, extra) {
			return m.settle(g, limit)
		}
		if ended {
			continue
		}
		// Those that were killed may still be in a system call that needs memory.
		most := min(limit, mostLent, memoryFigures()["MemAvailable"]<<10/2)
		if extra >= most {
			_ = m.settle(g, limit)
			return false
		}
		extra = min(2*extra, most)
	}
}

// freed waits for the memory of a killed program, while the group may use extra
// bytes above its limit. It returns false if it uses them, or needs them.
func (m *memoryGuard) freed(g *cgroup, limit, extra int64) bool {
	least := g.held()
	for end := time.Now().Add(freeTime); time.Now().Before(end); {
		select {
		case <-m.ended:
			return true
		case <-m.released:
			return true
		case <-time.After(pollFree):
		}
		held := g.held()
		switch {
		case held < slowFrom(limit):
			return true
		case held > limit+extra/2 && g.atLimit():
			return false
		case held < least-freeStep:
			least, end = held, time.Now().Add(freeTime)
		}
	}
	return least <= limit
}

// settle ends a loan. If the limit was changed meanwhile, the new one is set:
// Resize sets the group's limit again after it has recorded it.
func (m *memoryGuard) settle(g *cgroup, limit int64) bool {
	for {
		if limit > 0 && g.giveBack(limit) != nil {
			return isClosed(m.ended) || isClosed(m.released)
		}
		now := m.limit()
		if now == limit {
			return true
		}
		limit = now
	}
}

// endStarved ends a sandbox whose memory cannot be freed.
func (m *memoryGuard) endStarved() {
	m.box.addStarved()
	m.end(sandbox.ReasonMemory)
}

// limit returns the memory limit of the sandbox in bytes, zero if there is none.
func (m *memoryGuard) limit() int64 {
	r, err := m.box.load()
	if err != nil {
		r = m.rec
	}
	return withDefaults(r.Spec.Resources).Memory
}

// The file fileStarved grows whenever the sandbox reaches its limit, or a program
// is ended for that. The process that ends programs holds its lock.

func (b box) lockStarved() (*os.File, error) {
	f, err := os.OpenFile(b.path(fileStarved), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (b box) addStarved() {
	f, err := os.OpenFile(b.path(fileStarved), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return // the host's counter still tells most
	}
	_, _ = f.Write([]byte{'.'})
	f.Close()
}

func (b box) starved() int {
	var st unix.Stat_t
	if unix.Stat(b.path(fileStarved), &st) != nil {
		return 0
	}
	return int(st.Size)
}

// slowFrom returns the memory from which version 2 slows a group down: it must
// not reach its limit before this process has made room.
func slowFrom(limit int64) int64 {
	if limit < 0 {
		return limit
	}
	return limit - limit/smallShare
}

// lend sets the memory limit of the group.
func (g *cgroup) lend(limit int64) error {
	_, err := g.change(limits{memory: limit})
	return err
}

// giveBack ends a loan, unless the group still needs it.
func (g *cgroup) giveBack(limit int64) error {
	if g.held() > limit {
		return unix.EBUSY // else version 2 would kill its processes
	}
	return g.lend(limit)
}

// waitAtLimit says whether a group of version 1 waits at its limit. Otherwise
// the host kills its processes.
func (g *cgroup) waitAtLimit(on bool) error {
	if g.version != 1 {
		return nil
	}
	value := "0"
	if on {
		value = "1"
	}
	return os.WriteFile(filepath.Join(g.dirs[ctlMemory], "memory.oom_control"), []byte(value), 0)
}

// limitEvents returns a file that can be read whenever the group may have
// reached its limit.
func (g *cgroup) limitEvents() (f *os.File, err error) {
	if !g.has(ctlMemory) {
		return nil, errors.ErrUnsupported
	}
	dir := g.dirs[ctlMemory]
	if g.version == 2 {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, err
		}
		f = os.NewFile(uintptr(fd), "memory.events")
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, "memory.events"), unix.IN_MODIFY); err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f = os.NewFile(uintptr(fd), "memory.oom_control")
	arm := strconv.Itoa(fd) + " " + strconv.Itoa(int(control.Fd()))
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(arm), 0); err != nil {
		f.Close()
		return nil, err
	}
	if err := g.waitAtLimit(true); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// atLimit reports whether the group waits at its limit, or is slowed down.
func (g *cgroup) atLimit() bool {
	if !g.has(ctlMemory) {
		return false
	}
	if g.version == 1 {
		return strings.Contains(readCounters(filepath.Join(g.dirs[ctlMemory], "memory.oom_control")), "under_oom 1")
	}
	high := g.figure(ctlMemory, "memory.high")
	return high > 0 && g.held() >= high
}

// held returns the group's memory in bytes without the host's cache of files.
func (g *cgroup) held() int64 {
	usage, cached := "memory.usage_in_bytes", []string{"total_active_file", "total_inactive_file"}
	if g.version == 2 {
		usage, cached = "memory.current", []string{"active_file", "inactive_file"}
	}
	n := g.figure(ctlMemory, usage)
	for _, name := range cached {
		n -= max(0, g.statistic(ctlMemory, "memory.stat", name))
	}
	return n
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
