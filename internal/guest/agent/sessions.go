package agent

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// procStat is what /proc says about one process.
type procStat struct {
	pid, ppid, session int
	dead               bool
}

// processes lists what lives in this process's view, but for itself. Without
// /proc it is empty.
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
			if st, ok := parseStat(b); ok {
				list = append(list, st)
			}
		}
	}
	return list
}

// parseStat reads a line of /proc/pid/stat. The name in it is the program's
// own choice and may hold anything, so that the fields are counted from the
// last parenthesis.
func parseStat(b []byte) (procStat, bool) {
	pid, err := strconv.Atoi(string(b[:max(0, bytes.IndexByte(b, ' '))]))
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if err != nil || len(f) < 4 {
		return procStat{}, false
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	dead := f[0][0] == 'Z' || f[0][0] == 'X'
	return procStat{pid: pid, ppid: ppid, session: session, dead: dead}, err1 == nil && err2 == nil
}

// killSession ends every process of a session: what a command started, unless
// it moved to another one.
func killSession(sid int) {
	if sid <= 1 {
		return // -1 would be everybody
	}
	_ = syscall.Kill(-sid, syscall.SIGKILL) // nearly always the whole of it
	killAll(func(all []procStat) []procStat {
		var in []procStat
		for _, p := range all {
			if p.session == sid {
				in = append(in, p)
			}
		}
		return in
	})
}

// killDescendants ends every process below this one.
func killDescendants() {
	self := os.Getpid()
	killAll(func(all []procStat) []procStat {
		below := map[int]bool{self: true}
		for grown := true; grown; {
			grown = false
			for _, p := range all {
				if below[p.ppid] && !below[p.pid] {
					below[p.pid], grown = true, true
				}
			}
		}
		var in []procStat
		for _, p := range all {
			if below[p.pid] {
				in = append(in, p)
			}
		}
		return in
	})
}

// killAll kills what choose finds until it finds nothing. A fork bomb makes
// processes faster than they can be killed one by one, so that they are
// stopped first: who is stopped does not fork.
func killAll(choose func([]procStat) []procStat) {
	const rounds = 500
	stopped := map[int]bool{}
	for round := range rounds {
		fresh, alive := 0, 0
		chosen := choose(processes())
		for _, p := range chosen {
			if p.dead {
				continue
			}
			alive++
			if !stopped[p.pid] && syscall.Kill(p.pid, syscall.SIGSTOP) == nil {
				stopped[p.pid] = true
				fresh++
			}
		}
		switch {
		case alive == 0:
			return
		case fresh > 0 && round < rounds/2:
			continue
		}
		for _, p := range chosen {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		clear(stopped)
		time.Sleep(time.Duration(min(round, 20)) * time.Millisecond) // they need the processor to die
	}
}
