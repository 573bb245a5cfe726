package gvisor

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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
// So the group may use a reserve above its limit, while this process ends one
// program, lends the group a little more memory, and waits for the program's
// memory. Version 2 slows the group down meanwhile. When the reserve is used up,
// too, version 1 lets page faults wait and refuses the kernel other memory, for
// which the kernel may end; version 2 kills processes. If no program has the
// memory, gVisor's kernel is stopped until it has a higher limit.
const (
	lent      = 32 << 20        // bytes that are lent first
	mostLent  = 512 << 20       // and if no program is left
	freeTime  = 5 * time.Second // without any memory being freed
	freeStep  = 256 << 10       // bytes; a smaller change is none
	busyTries = 5               // to kill a program that gVisor's kernel has not set up
	pollFree  = 5 * time.Millisecond

	atLimitTime = 100 * time.Millisecond
	pollFull    = 100 * time.Millisecond // also between two calls of uncache
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
	g := m.rec.cgroup()
	if m.idle != nil && !isClosed(m.idle) {
		if e := m.events.Load(); e != nil && (e.limit != g.memoryLimit() || g.charged() >= e.limit) {
			e.stop() // it waits for another limit, or cannot know that it is above this one
		}
		return
	}
	limit := m.limit()
	if limit <= 0 || !g.has(ctlMemory) || isClosed(m.released) || isClosed(m.ended) {
		return
	}
	lock, err := m.box.lockStarved()
	if err != nil {
		return
	}
	// A process that was killed may have lent memory, and one of an older version
	// has set no reserve.
	_ = g.giveBack(limit)
	if g.waitAtLimit(true) != nil {
		lock.Close()
		return // the host kills processes
	}
	idle := make(chan struct{})
	m.idle = idle
	go func() {
		defer close(idle)
		defer lock.Close()
		m.serveLimit(g)
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

// serveLimit returns when the sandbox has ended or is released, or when the host
// has no events of its group.
func (m *memoryGuard) serveLimit(g *cgroup) {
	for {
		events, err := g.limitEvents()
		if err != nil {
			return
		}
		m.events.Store(events)
		goOn := m.serveEvents(g, events)
		events.Close()
		if !goOn {
			return
		}
	}
}

// serveEvents makes room if the sandbox is at its limit, and then waits for an
// event. It returns false if the sandbox has ended or is released.
func (m *memoryGuard) serveEvents(g *cgroup, events *limitEvents) bool {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-m.ended:
		case <-m.released:
		case <-over:
		}
		events.stop()
	}()
	for m.starves(g) {
		m.starving()
		if g.version == 1 {
			m.box.addStarved()
		}
		done := m.relieve(g)
		m.starving()
		if !done && !m.waitFull(g) {
			return false
		}
	}
	if limit := m.limit(); limit > 0 && g.memoryLimit() > limit && !m.settle(g, limit) {
		defer time.AfterFunc(lookEvery, events.stop).Stop() // it still needs what was lent
	}
	if events.limit == g.memoryLimit() {
		_ = events.await()
	}
	return !isClosed(m.ended) && !isClosed(m.released)
}

// waitFull stops gVisor's kernel until a sandbox whose memory cannot be freed has
// a higher limit, unless what is lent suffices for now. It returns false if the
// sandbox ends or is released before.
func (m *memoryGuard) waitFull(g *cgroup) bool {
	if !g.atLimit() {
		return true
	}
	m.full.Store(true) // until Resize
	slog.Warn("the memory of a sandbox is full of data that no program holds; it waits for a higher limit", "sandbox", m.rec.ID)
	var resume func(goOn bool)
	for was := g.memoryLimit(); m.full.Load() && g.memoryLimit() <= was; {
		if resume == nil {
			resume = m.hold()
		}
		select {
		case <-m.ended:
		case <-m.released:
		case <-time.After(pollFull):
			continue
		}
		if resume != nil {
			resume(false)
		}
		return false
	}
	m.full.Store(false)
	if resume != nil {
		resume(true)
	}
	return true
}

// starves reports whether the sandbox is at its limit to stay. With version 2 it
// is there for a moment whenever the host must give back its cache of files.
func (m *memoryGuard) starves(g *cgroup) bool {
	if g.version == 1 && (g.atLimit() || !m.uncache(g)) {
		return g.atLimit()
	}
	for range int(atLimitTime / pollFree) {
		if at := g.atLimit(); at == (g.version == 1) {
			return at
		}
		time.Sleep(pollFree)
	}
	return g.atLimit()
}

// uncache makes the host give back its cache of files in a group of version 1
// that is above its limit for that: its events do not tell the cache from other
// memory. It reports whether the group was.
func (m *memoryGuard) uncache(g *cgroup) bool {
	limit, held := m.limit(), g.held()
	if limit <= 0 || held >= limit || g.charged() < limit {
		return false
	}
	// The host gives back what is above a limit before it sets it.
	below := amount((limit+held)/2, "")
	if os.WriteFile(filepath.Join(g.dirs[ctlMemory], "memory.limit_in_bytes"), []byte(below), 0) == nil && g.lend(limit) == nil {
		m.settle(g, limit)
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

// reserve returns how much more than its limit a group may use before the host
// kills its processes (version 2) or refuses it memory (version 1). With version
// 2 it is slowed down above its limit, the more the larger the share is.
func reserve(limit int64) int64 { return min(max(lent, limit/smallShare), mostLent) }

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
	return hard - min(max(lent, hard/(smallShare+1)), mostLent)
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

// limitEvents returns the events after which the group may be at its limit, or,
// with version 1, have used up its reserve.
func (g *cgroup) limitEvents() (*limitEvents, error) {
	dir, limit := g.dirs[ctlMemory], g.memoryLimit()
	if g.version == 2 {
		return pollChanges(filepath.Join(dir, "memory.events"), limit)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	e := &limitEvents{File: os.NewFile(uintptr(fd), dir), limit: limit}
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

// limitEvents are the events of a group that may have reached its limit.
type limitEvents struct {
	*os.File          // becomes readable
	source   *os.File // of version 2: what it polls
	limit    int64    // bytes
}

// pollChanges returns the changes of a file of a control group. It does not use
// inotify, of which a user has only 128 instances by default.
func pollChanges(name string, limit int64) (*limitEvents, error) {
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
	e := &limitEvents{os.NewFile(uintptr(fd), name), source, limit}
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

// stop makes await return.
func (e *limitEvents) stop() { _ = e.SetReadDeadline(time.Unix(1, 0)) }

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

// atLimit reports whether the group is at its limit and the host's cache of files
// is none of it. With version 2, where the host gives it back, it may be a small
// share.
func (g *cgroup) atLimit() bool {
	if !g.has(ctlMemory) {
		return false
	}
	limit := g.memoryLimit()
	least := limit
	if g.version == 2 {
		least = almost(limit)
	}
	return limit > 0 && g.charged() >= limit && g.held() >= least
}

// refuses reports whether the group had used up its reserve, so that the host may
// have refused it memory for system calls and signals. It does so with version 1,
// where only programs wait.
func (g *cgroup) refuses() bool {
	return g != nil && g.version == 1 && g.figure(ctlMemory, "memory.failcnt") > 0
}

// charged returns the group's memory in bytes, negative if unknown.
func (g *cgroup) charged() int64 {
	if g.version == 2 {
		return g.figure(ctlMemory, "memory.current")
	}
	return g.figure(ctlMemory, "memory.usage_in_bytes")
}

// held is charged without the host's cache of files.
func (g *cgroup) held() int64 {
	cached := []string{"total_active_file", "total_inactive_file"}
	if g.version == 2 {
		cached = []string{"active_file", "inactive_file"}
	}
	n := g.charged()
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
