package agent

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// procStat is the content of /proc/PID/stat.
type procStat struct {
	pid, ppid, session int
	dead               bool
	name               string
	start              int64 // clock ticks since boot
}

// processes lists the processes that this process can see, except itself. The
// list is empty without /proc.
func processes() []procStat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	self := os.Getpid()
	list := make([]procStat, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		if b, err := os.ReadFile("/proc/" + name + "/stat"); err == nil {
			// gVisor reports process number 0 for a process that has just ended. kill(0)
			// would signal our own group.
			if st, ok := parseStat(b); ok && st.pid == pid {
				list = append(list, st)
			}
		}
	}
	return list
}

// parseStat parses /proc/PID/stat. The process chooses its name, which may
// contain any bytes, so the fields are counted from the last parenthesis.
func parseStat(b []byte) (procStat, bool) {
	pid, err := strconv.Atoi(string(b[:max(0, bytes.IndexByte(b, ' '))]))
	end := bytes.LastIndexByte(b, ')')
	f := bytes.Fields(b[end+1:])
	if err != nil || end < 0 || len(f) < 20 {
		return procStat{}, false
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	start, err3 := strconv.ParseInt(string(f[19]), 10, 64)
	dead := f[0][0] == 'Z' || f[0][0] == 'X'
	_, name, _ := bytes.Cut(b[:end], []byte{'('})
	st := procStat{pid: pid, ppid: ppid, session: session, dead: dead, name: string(name), start: start}
	return st, err1 == nil && err2 == nil && err3 == nil
}

// killTree ends every process of the command's sessions and every descendant,
// including those in other sessions. It finds and stops all of them before it
// kills any, because orphans become children of process 1.
func (p *proc) killTree() {
	if p.pid <= 1 {
		return
	}
	if len(processes()) == 0 { // there is no /proc
		_ = p.killGroup(syscall.SIGKILL)
		return
	}
	found := map[int]bool{p.pid: true}
	killAll(p.within, func(all []procStat) []procStat { return below(all, found, p.inSession) })
}

// inSession reports whether a process is in a session of the command.
func (p *proc) inSession(q procStat) bool { return q.session == p.group || q.session == p.pid }

// tree lists every process of the command's sessions and every descendant.
func (p *proc) tree() []procStat {
	if p.pid <= 1 {
		return nil
	}
	return below(processes(), map[int]bool{p.pid: true}, p.inSession)
}

// killRest ends the processes of a command that has ended: those of its sessions,
// those that were listed while it ran, and their descendants.
func (p *proc) killRest(listed []procStat) {
	started := make(map[int]int64, len(listed))
	for _, q := range listed {
		if q.pid != p.pid {
			started[q.pid] = q.start
		}
	}
	found := map[int]bool{}
	killAll(p.within, func(all []procStat) []procStat {
		return below(all, found, func(q procStat) bool {
			start, ok := started[q.pid]
			return ok && start == q.start || q.session == p.group
		})
	})
}

// killDescendants ends every descendant of this process.
func killDescendants() {
	self := os.Getpid()
	killAll(&bounds{}, func(all []procStat) []procStat {
		return below(all, map[int]bool{self: true}, func(procStat) bool { return false })
	})
}

// below adds to found, and returns, the processes for which also is true or
// that descend from one that is found.
func below(all []procStat, found map[int]bool, also func(procStat) bool) []procStat {
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !found[p.pid] && (found[p.ppid] || also(p)) {
				found[p.pid], grown = true, true
			}
		}
	}
	return slices.DeleteFunc(all, func(p procStat) bool { return !found[p.pid] })
}

// killAll kills the processes that choose returns until it returns none.
func killAll(within *bounds, choose func([]procStat) []procStat) {
	const rounds = 500
	h := hunt{choose: choose, stopped: map[int]bool{}}
	for h.rounds < rounds && h.round() {
		if h.rounds > 3 && h.fresh > 0 {
			// They fork faster than they are found. Prevent forks in the group
			// meanwhile.
			within.still(func() {
				for h.rounds < rounds && h.round() {
				}
			})
		}
	}
}

// hunt is one attempt to kill the processes that choose returns.
type hunt struct {
	choose  func([]procStat) []procStat
	stopped map[int]bool
	rounds  int
	fresh   int // processes that the last round saw for the first time
}

// round stops new processes, because stopped processes cannot fork, and kills
// all when it finds no new ones. It reports whether any is alive.
func (h *hunt) round() bool {
	h.rounds++
	h.fresh = 0
	alive := h.choose(processes())
	alive = slices.DeleteFunc(alive, func(p procStat) bool { return p.dead })
	if len(alive) == 0 {
		return false
	}
	for _, p := range alive {
		if !h.stopped[p.pid] && syscall.Kill(p.pid, syscall.SIGSTOP) == nil {
			h.stopped[p.pid] = true
			h.fresh++
		}
	}
	if h.fresh > 0 && h.rounds%50 != 0 {
		return true
	}
	for _, p := range alive {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	time.Sleep(time.Duration(min(h.rounds, 20)) * time.Millisecond) // they need processor time to exit
	return true
}
