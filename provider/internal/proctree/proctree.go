// Package proctree measures the resource use of processes of this machine and
// their descendants through /proc. It is for machines without control groups.
package proctree

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc. Linux guarantees programs 100 per second.
const tick = 10 * time.Millisecond

// Sum is the total resource usage of several processes.
type Sum struct {
	CPU     time.Duration // of running processes and of the children they have reaped
	Memory  int64         // bytes; shared memory is counted proportionally
	Threads int64
}

// process is an entry of the process table.
type process struct {
	parent, threads int
	ticks, pages    int64
}

// Measure adds up processes and their descendants. Missing processes count as
// zero.
func Measure(roots ...int) (Sum, error) {
	table, err := processes()
	if err != nil {
		return Sum{}, err
	}
	children := map[int][]int{}
	for pid, p := range table {
		children[p.parent] = append(children[p.parent], pid)
	}
	var sum Sum
	seen := map[int]bool{}
	for queue := roots; len(queue) > 0; queue = queue[1:] {
		pid := queue[0]
		p, ok := table[pid]
		if !ok || seen[pid] {
			continue
		}
		seen[pid] = true
		sum.CPU += time.Duration(p.ticks) * tick
		sum.Threads += int64(p.threads)
		sum.Memory += memory(pid, p)
		queue = append(queue, children[pid]...)
	}
	return sum, nil
}

func processes() (map[int]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	table := map[int]process{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended
		}
		if p, ok := parse(string(b)); ok {
			table[pid] = p
		}
	}
	return table, nil
}

// parse parses /proc/PID/stat. The name of the program, in parentheses, may
// contain any bytes. A zombie uses no memory.
func parse(stat string) (process, bool) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 22 {
		return process{}, false
	}
	number := func(i int) int64 { // i as in proc(5), where the state is field 3
		n, _ := strconv.ParseInt(f[i-3], 10, 64)
		return n
	}
	return process{
		parent: int(number(4)), threads: int(number(20)),
		ticks: number(14) + number(15) + number(16) + number(17), pages: number(24),
	}, true
}

// memory returns the proportional share if it may be read; only the owner may.
func memory(pid int, p process) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if s, ok := strings.CutPrefix(line, "Pss:"); ok {
				kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(s), "kB")), 10, 64)
				if err == nil {
					return kb << 10
				}
			}
		}
	}
	return p.pages * int64(os.Getpagesize())
}
