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
// (version 2, which kills only above a reserve). This process ends one program,
// lends the group a little memory so that its kernel can notice that, and waits
// for the program's memory. If no program has the memory, the group waits for a
// higher limit: version 1 does that by itself, version 2 is frozen.
const (
	lent      = 32 << 20        // bytes that are lent first
	mostLent  = 512 << 20       // and if no program is left
	freeTime  = 5 * time.Second // without any memory being freed
	freeStep  = 256 << 10       // bytes; a smaller change is none
	busyTries = 5               // to kill a program that gVisor's kernel has not set up
	pollFree  = 5 * time.Millisecond

	atLimitTime = 100 * time.Millisecond
	pollFull    = 100 * time.Millisecond
)

// watchLimit makes room in the sandbox whenever it is at its memory limit, until
// it has ended or this process releases it. It does nothing if this or another
// process already does that; look tries again.
func (m *memoryGuard) watchLimit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.box.held() {
		if f, err := m.lockHeld(); err == nil {
			f.Close()
		}
	}
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
	if g.has(ctlMemory) {
		// A process that was killed may have lent memory or frozen the group.
		if g.memoryLimit() > limit {
			_ = g.giveBack(limit)
		}
		_ = g.freeze(false)
	}
	if err != nil {
		lock.Close()
		return // the host kills processes
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

func (m *memoryGuard) serveLimit(g *cgroup, events *limitEvents) {
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
	for {
		for g.starves() {
			m.starving()
			done := m.relieve(g)
			m.starving()
			if !done && !m.waitFull(g) {
				return
			}
		}
		if events.await() != nil {
			return
		}
		if g.version == 1 {
			m.box.addStarved()
		}
	}
}

// waitFull waits until a sandbox whose memory cannot be freed has a higher limit,
// unless what is lent suffices for now. It returns false if the sandbox ends or is
// released before.
func (m *memoryGuard) waitFull(g *cgroup) bool {
	if !g.atLimit() {
		return true
	}
	if g.freeze(true) != nil { // it would not wait
		m.endStarved()
		return false
	}
	slog.Warn("the memory of a sandbox is full of data that no program holds; it waits for a higher limit", "sandbox", m.rec.ID)
	m.full.Store(true) // until Resize
	for was := g.memoryLimit(); m.full.Load() && g.memoryLimit() <= was && (g.version == 2 || g.atLimit()); {
		select {
		case <-m.ended:
			return false
		case <-m.released:
			return false
		case <-time.After(pollFull):
		}
	}
	m.full.Store(false)
	if g.freeze(false) != nil {
		m.endStarved()
		return false
	}
	return true
}

// relieve ends programs until the sandbox needs no more than its limit. It
// returns false if that does not suffice.
func (m *memoryGuard) relieve(g *cgroup) bool {
	killed := map[int]bool{}
	tries := busyTries
	for extra := int64(lent); ; {
		limit := m.limit()
		if limit <= 0 {
			return true
		}
		// Resize may have set a higher limit and not recorded it yet.
		if limit+extra > g.memoryLimit() && g.lend(limit+extra) != nil {
			return m.settle(g, limit)
		}
		ended, busy := false, false
		if rest, _ := m.box.rest(); rest == awake { // while tasks are paused, it frees nothing
			ended, busy = m.makeRoom(killed)
		}
		if m.freed(g, limit, extra) && m.settle(g, limit) {
			return true
		}
		if ended {
			continue
		}
		// Those that were killed may still be in a system call that needs memory.
		most := min(limit, mostLent, memoryFigures()["MemAvailable"]<<10/2)
		if extra >= most && (!busy || tries == 0) {
			_ = m.settle(g, limit)
			return false
		}
		if extra >= most {
			tries--
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
		case held < enough(limit):
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

// starving records that the sandbox is at its limit now.
func (m *memoryGuard) starving() { m.starved.Store(time.Now().UnixNano()) }

// short reports whether calls may fail because the sandbox was at its limit a
// moment ago: its kernel gets no memory, or the program of the call is killed.
func (m *memoryGuard) short() bool { return time.Since(time.Unix(0, m.starved.Load())) < freeTime }

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

// almost returns the memory from which a group with this limit is at it, if it
// uses all of it, and enough the memory below which enough was freed.
func almost(limit int64) int64 { return limit - limit/smallShare }
func enough(limit int64) int64 { return limit - 2*limit/smallShare }

// reserve returns how much more than its limit a group of version 2 may use
// before the host kills its processes. Above its limit it is slowed down, the
// more the larger the share is.
func reserve(limit int64) int64 { return min(max(lent, limit/smallShare), mostLent) }

// hardLimit returns the memory at which version 2 kills processes.
func hardLimit(limit int64) int64 {
	if limit < 0 {
		return limit
	}
	return limit + reserve(limit)
}

// lend sets the memory limit of the group.
func (g *cgroup) lend(limit int64) error {
	_, err := g.change(limits{memory: limit})
	return err
}

// giveBack ends a loan, unless the group still needs it.
func (g *cgroup) giveBack(limit int64) error {
	if g.held() > limit {
		return unix.EBUSY // version 2 would kill its processes
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

// freeze stops all processes of a group of version 2, or lets them go on. They
// can be killed meanwhile.
func (g *cgroup) freeze(on bool) error {
	if g.version != 2 {
		return nil
	}
	value := "0"
	if on {
		value = "1"
	}
	return os.WriteFile(filepath.Join(g.dirs[ctlMemory], "cgroup.freeze"), []byte(value), 0)
}

// limitEvents returns the events after which the group may be at its limit.
func (g *cgroup) limitEvents() (*limitEvents, error) {
	if !g.has(ctlMemory) {
		return nil, errors.ErrUnsupported
	}
	dir := g.dirs[ctlMemory]
	if g.version == 2 {
		return pollChanges(filepath.Join(dir, "memory.events"))
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
	e := &limitEvents{File: os.NewFile(uintptr(fd), "memory.oom_control")}
	arm := strconv.Itoa(fd) + " " + strconv.Itoa(int(control.Fd()))
	if err = os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(arm), 0); err == nil {
		err = g.waitAtLimit(true)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// limitEvents are the events of a group that may have reached its limit.
type limitEvents struct {
	*os.File          // becomes readable
	source   *os.File // of version 2: what it polls
}

// pollChanges returns the changes of a file of a control group. It does not use
// inotify, of which a user has only 128 instances by default.
func pollChanges(name string) (*limitEvents, error) {
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
	e := &limitEvents{os.NewFile(uintptr(fd), name), source}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *limitEvents) Close() {
	e.File.Close()
	if e.source != nil {
		e.source.Close()
	}
}

// await waits for an event.
func (e *limitEvents) await() error {
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

// atLimit reports whether the group waits at its limit, or is slowed down there
// and the host's cache of files is only a small share of its memory.
func (g *cgroup) atLimit() bool {
	if !g.has(ctlMemory) {
		return false
	}
	if g.version == 1 {
		return strings.Contains(readCounters(filepath.Join(g.dirs[ctlMemory], "memory.oom_control")), "under_oom 1")
	}
	limit := g.memoryLimit()
	return limit > 0 && g.figure(ctlMemory, "memory.current") >= limit && g.held() >= almost(limit)
}

// refuses reports whether the group was at its limit while the host refused it
// memory for system calls and signals. It does so with version 1, where only
// programs wait.
func (g *cgroup) refuses() bool {
	if g.version != 1 || !g.has(ctlMemory) {
		return false
	}
	limit := g.memoryLimit()
	return limit > 0 && g.figure(ctlMemory, "memory.max_usage_in_bytes") >= limit
}

// starves reports whether the group is at its limit to stay. With version 2 it
// is there for a moment whenever the host must give back its cache of files.
func (g *cgroup) starves() bool {
	if g.version == 2 {
		for range int(atLimitTime / pollFree) {
			if !g.atLimit() {
				return false
			}
			time.Sleep(pollFree)
		}
	}
	return g.atLimit()
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
