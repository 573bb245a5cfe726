package gvisor

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/sandbox"
)

// Scores that make the host kill programs first when a sandbox reaches its
// memory limit. The end of the kernel or of the guest would end the sandbox.
// See oom_score_adj in proc(5).
const (
	scoreProgram = 1000
	scoreSpared  = 0
)

// setOOMScore sets how much the host prefers to kill the process when memory
// runs out. If it fails, the host decides.
func setOOMScore(pid, score int) {
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
}

// stub is the host process of an address space inside. Other stubs may share
// its memory.
type stub struct {
	pid, score int
	start      uint64
	resident   int64 // pages
	threads    []int // processes of their own
}

// memoryGuard ends programs of a sandbox that has run out of memory.
type memoryGuard struct {
	rec      *record
	stateDir stateDir
	end      func(sandbox.Reason) // ends the sandbox
	ended    <-chan struct{}      // closed when it has ended

	released <-chan struct{} // closed when this process releases it

	mu   sync.Mutex
	idle chan struct{} // closed when watchLimit no longer watches; nil: it never did
	full atomic.Bool   // it waits for a higher limit

	events atomic.Pointer[cgroup.Events] // that watchLimit waits for; nil: it does not yet

	starved atomic.Int64 // when it was last at its limit, in Unix nanoseconds
}

// stubs lists the sandbox's stubs, the oldest first. All others are forked from
// that one.
func (m *memoryGuard) stubs() []stub {
	kernel := strconv.Itoa(m.rec.Kernel.PID)
	var list []stub
	threads := map[string][]int{} // by the stub
	for _, pid := range m.rec.cgroup().Processes() {
		stat, err := processStat(pid)
		if err != nil {
			continue
		}
		if stat[statParent] != kernel {
			threads[stat[statParent]] = append(threads[stat[statParent]], pid)
			continue
		}
		start, _ := strconv.ParseUint(stat[statStart], 10, 64)
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
		if err != nil {
			continue
		}
		score, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			continue
		}
		resident, err := strconv.ParseInt(stat[statResident], 10, 64)
		if err == nil {
			list = append(list, stub{pid, score, start, resident, nil})
		}
	}
	for i, s := range list {
		list[i].threads = threads[strconv.Itoa(s.pid)]
		slices.Sort(list[i].threads)
	}
	slices.SortFunc(list, func(a, b stub) int { return cmp.Or(cmp.Compare(a.start, b.start), a.pid-b.pid) })
	return list
}

// spareGuest makes the host prefer every program to the guest. The guest's
// mapped program file would otherwise make it the largest process of a small
// sandbox.
func (m *memoryGuard) spareGuest() {
	for _, s := range m.stubs() {
		if s.ofGuest() {
			setOOMScore(s.pid, scoreSpared)
		}
	}
}

// ofGuest reports whether the guest's program runs in the stub.
func (s stub) ofGuest() bool {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/maps")
	return guestMapped(string(text))
}

// barren reports whether the stub that all others are forked from has ended. No
// program can be started any more.
func (m *memoryGuard) barren() bool {
	list := m.stubs()
	return len(list) > 0 && list[0].score == scoreSpared
}

// These values define a sandbox that makes no progress for lack of memory: the
// host's page cache is a small share of its memory and was read again between
// two looks, several times in succession.
const (
	lookEvery    = 2 * time.Second
	looks        = 3
	smallShare   = cgroup.SmallShare // divisor of the limit
	leastAgain   = 4 << 10           // pages
	leastProgram = 64                // pages; a smaller stub has no program
	page         = 4 << 10           // bytes
)

// sight is the observed state of one sandbox.
type sight struct {
	read  int64 // file pages that were read again, in total
	times int   // looks without progress
	kills int   // programs that were killed for lack of memory
}

// watchMemory ends the cause of a sandbox's lack of progress. The host kills
// processes only if no memory can be reclaimed, but it can reclaim the pages of
// running programs, which are then read again at once. Such a sandbox could do
// nothing else forever and keep the disk busy. watchMemory returns when no
// sandbox is left.
func (p *Provider) watchMemory() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	seen := map[*Instance]sight{}
	for {
		select {
		case <-tick.C:
		case <-p.quit:
			return
		}
		p.mu.Lock()
		list := slices.Collect(maps.Values(p.instances))
		p.watching = len(list) > 0
		p.mu.Unlock()
		if len(list) == 0 {
			return
		}
		now := make(map[*Instance]sight, len(list))
		for _, in := range list {
			now[in] = in.memory.look(seen[in])
		}
		seen = now
	}
}

// look checks a sandbox and acts if it makes no progress.
func (m *memoryGuard) look(before sight) sight {
	m.watchLimit()
	now := standstill(m.rec.cgroup(), before)
	now.kills = m.killed()
	switch {
	case now.kills > before.kills && m.barren():
		m.endStarved()
	case now.times == looks:
		if ended, busy := m.makeRoom(map[int]bool{}); !ended && !busy {
			m.endStarved()
		}
		now.times = 0
	}
	return now
}

// standstill checks a control group.
func standstill(g *cgroup.Group, before sight) sight {
	read, files, ok := g.Reread()
	if !ok {
		return before
	}
	now := sight{read: read}
	again := now.read - before.read
	if again >= leastAgain && again*page >= files && files < g.MemoryLimit()/smallShare {
		now.times = before.times + 1
	}
	return now
}

const (
	untracedTime = time.Second           // until a program is killed that is not half as large as the largest
	settledTime  = 20 * time.Millisecond // after gVisor's kernel has added a thread to a stub
)

// makeRoom kills the largest program that it has not killed yet, and waits for
// its end. If it kills none, busy reports whether there is one that cannot be
// killed now.
func (m *memoryGuard) makeRoom(killed map[int]bool) (ended, busy bool) {
	seen := map[int]threads{}
	for start := time.Now(); ; time.Sleep(pollFree) {
		list := m.programs(killed)
		for _, s := range list {
			if before, ok := seen[s.pid]; !ok || !slices.Equal(before.pids, s.threads) {
				seen[s.pid] = threads{s.threads, time.Now()}
			}
		}
		large := list
		if time.Since(start) < untracedTime {
			large = slices.DeleteFunc(slices.Clone(list), func(s stub) bool { return s.resident < list[0].resident/2 })
		}
		for _, s := range large {
			if time.Since(seen[s.pid].since) >= settledTime && m.endStub(s.pid, s.threads) {
				killed[s.pid] = true
				return true, false
			}
		}
		if len(list) == 0 || time.Since(start) > 2*untracedTime || isClosed(m.ended) || isClosed(m.released) {
			return false, len(list) > 0
		}
	}
}

// threads are the threads of a stub, and since when it has them.
type threads struct {
	pids  []int
	since time.Time
}

// programs lists the stubs of programs, the largest first, without those that
// were killed. The guest's program is last: it connects a process that attaches,
// and its mapped file, which would not be freed, makes it large.
func (m *memoryGuard) programs(killed map[int]bool) []stub {
	all := m.stubs()
	list := slices.DeleteFunc(all[min(1, len(all)):], func(s stub) bool { // the first has no program
		return s.score != scoreProgram || killed[s.pid] || s.resident <= leastProgram
	})
	slices.SortStableFunc(list, func(a, b stub) int { return cmp.Compare(b.resident, a.resident) })
	for i := 0; i < len(list) && list[0].ofGuest(); i++ {
		list = append(list[1:], list[0])
	}
	return list
}

// killed counts the programs that were killed for lack of memory.
func (m *memoryGuard) killed() int {
	return m.rec.cgroup().MemoryKills() + m.stateDir.starved()
}
