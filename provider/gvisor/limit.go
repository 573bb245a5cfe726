package gvisor

import (
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
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
	lent      = cgroup.MinReserve // bytes that are lent first
	mostLent  = cgroup.MaxReserve // and if no program is left
	freeTime  = 5 * time.Second   // without any memory being freed
	freeStep  = 256 << 10         // bytes; a smaller change is none
	busyTries = 5                 // to kill a program that gVisor's kernel has not set up
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
	if m.stateDir.held() {
		if f, err := m.lockHeld(); err == nil {
			f.Close()
		}
	}
	g := m.rec.cgroup()
	if m.idle != nil && !isClosed(m.idle) {
		if e := m.events.Load(); e != nil && (e.Limit != g.MemoryLimit() || g.Charged() >= e.Limit) {
			e.Stop() // it waits for another limit, or cannot know that it is above this one
		}
		return
	}
	limit := m.limit()
	if limit <= 0 || !g.Has(cgroup.Memory) || isClosed(m.released) || isClosed(m.ended) {
		return
	}
	lock, err := m.stateDir.lockStarved()
	if err != nil {
		return
	}
	// A process that was killed may have lent memory, and one of an older version
	// has set no reserve, or has frozen the group.
	_ = g.GiveBack(limit)
	_ = g.Thaw()
	if g.WaitAtLimit(true) != nil {
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
			_ = g.WaitAtLimit(false) // without this process nobody would make room
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
func (m *memoryGuard) serveLimit(g *cgroup.Group) {
	for {
		events, err := g.Events()
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
func (m *memoryGuard) serveEvents(g *cgroup.Group, events *cgroup.Events) bool {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-m.ended:
		case <-m.released:
		case <-over:
		}
		events.Stop()
	}()
	for m.starves(g) {
		m.starving()
		if g.Version == 1 {
			m.stateDir.addStarved()
		}
		done := m.relieve(g)
		m.starving()
		if !done && !m.waitFull(g) {
			return false
		}
	}
	if limit := m.limit(); limit > 0 && g.MemoryLimit() > limit && !m.settle(g, limit) {
		defer time.AfterFunc(lookEvery, events.Stop).Stop() // it still needs what was lent
	}
	if events.Limit == g.MemoryLimit() {
		_ = events.Await()
	}
	return !isClosed(m.ended) && !isClosed(m.released)
}

// waitFull stops gVisor's kernel until a sandbox whose memory cannot be freed has
// a higher limit, unless what is lent suffices for now. It returns false if the
// sandbox ends or is released before.
func (m *memoryGuard) waitFull(g *cgroup.Group) bool {
	if !g.AtLimit() {
		return true
	}
	m.full.Store(true) // until Resize
	slog.Warn("the memory of a sandbox is full of data that no program holds; it waits for a higher limit", "sandbox", m.rec.ID)
	var resume func(goOn bool)
	for was := g.MemoryLimit(); m.full.Load() && g.MemoryLimit() <= was; {
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
func (m *memoryGuard) starves(g *cgroup.Group) bool {
	if g.Version == 1 && (g.AtLimit() || !m.uncache(g)) {
		return g.AtLimit()
	}
	for range int(atLimitTime / pollFree) {
		if at := g.AtLimit(); at == (g.Version == 1) {
			return at
		}
		time.Sleep(pollFree)
	}
	return g.AtLimit()
}

// uncache makes the host give back its cache of files in a group of version 1
// that is above its limit for that: its events do not tell the cache from other
// memory. It reports whether the group was.
func (m *memoryGuard) uncache(g *cgroup.Group) bool {
	limit, held := m.limit(), g.Held()
	if limit <= 0 || held >= limit || g.Charged() < limit {
		return false
	}
	// The host gives back what is above a limit before it sets it.
	if g.Uncache((limit+held)/2, limit) == nil {
		m.settle(g, limit)
	}
	return true
}

// relieve ends programs until the sandbox needs no more than its limit. It
// returns false if that does not suffice.
func (m *memoryGuard) relieve(g *cgroup.Group) bool {
	killed := map[int]bool{}
	tries := busyTries
	for extra := int64(lent); ; {
		limit := m.limit()
		if limit <= 0 {
			return true
		}
		// Resize may have set a higher limit and not recorded it yet.
		if limit+extra > g.MemoryLimit() && g.Lend(limit+extra) != nil {
			return m.settle(g, limit)
		}
		ended, busy := false, false
		if rest, _ := m.stateDir.rest(); rest == awake { // while tasks are paused, it frees nothing
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
func (m *memoryGuard) freed(g *cgroup.Group, limit, extra int64) bool {
	least := g.Held()
	for end := time.Now().Add(freeTime); time.Now().Before(end); {
		select {
		case <-m.ended:
			return true
		case <-m.released:
			return true
		case <-time.After(pollFree):
		}
		held := g.Held()
		switch {
		case held < enough(limit):
			return true
		case held > limit+extra/2 && g.AtLimit():
			return false
		case held < least-freeStep:
			least, end = held, time.Now().Add(freeTime)
		}
	}
	return least <= limit
}

// settle ends a loan. If the limit was changed meanwhile, the new one is set:
// Resize sets the group's limit again after it has recorded it.
func (m *memoryGuard) settle(g *cgroup.Group, limit int64) bool {
	for {
		if limit > 0 && g.GiveBack(limit) != nil {
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
	m.stateDir.addStarved()
	m.end(sandbox.ReasonMemory)
}

// limit returns the memory limit of the sandbox in bytes, zero if there is none.
func (m *memoryGuard) limit() int64 {
	r, err := m.stateDir.load()
	if err != nil {
		r = m.rec
	}
	return withDefaults(r.Spec.Resources).Memory
}

// The file fileStarved grows whenever the sandbox reaches its limit, or a program
// is ended for that. The process that ends programs holds its lock.

func (d stateDir) lockStarved() (*os.File, error) {
	f, err := os.OpenFile(d.path(fileStarved), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (d stateDir) addStarved() {
	f, err := os.OpenFile(d.path(fileStarved), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return // the host's counter still tells most
	}
	_, _ = f.Write([]byte{'.'})
	f.Close()
}

func (d stateDir) starved() int {
	var st unix.Stat_t
	if unix.Stat(d.path(fileStarved), &st) != nil {
		return 0
	}
	return int(st.Size)
}

// enough returns the memory of a group with this limit below which enough was
// freed.
func enough(limit int64) int64 { return limit - 2*limit/smallShare }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
