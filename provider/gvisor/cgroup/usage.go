package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CPU returns the processor time that the group has used, negative if unknown.
func (g *Group) CPU() time.Duration {
	switch {
	case g == nil:
		return -1
	case g.Version == 2:
		if n := g.Statistic(CPU, "cpu.stat", "usage_usec"); n >= 0 {
			return time.Duration(n) * time.Microsecond
		}
		return -1
	}
	return time.Duration(g.Figure(account, "cpuacct.usage"))
}

// Memory returns the group's memory use in bytes, without the page cache that
// the host can reclaim. It is negative if unknown.
func (g *Group) Memory() int64 {
	if g == nil {
		return -1
	}
	idle := "total_inactive_file"
	if g.Version == 2 {
		idle = "inactive_file"
	}
	n := g.Charged()
	if n < 0 {
		return -1
	}
	return max(0, n-max(0, g.Statistic(Memory, "memory.stat", idle)))
}

// Figure reads a file of a controller that contains one number. It is negative if
// there is none.
func (g *Group) Figure(ctl, file string) int64 {
	if !g.Has(ctl) {
		return -1
	}
	b, err := os.ReadFile(filepath.Join(g.Dirs[ctl], file))
	if err != nil {
		return -1
	}
	return number(string(b))
}

// Statistic reads one line of a file of names and numbers. It is negative if there
// is none.
func (g *Group) Statistic(ctl, file, name string) int64 {
	if !g.Has(ctl) {
		return -1
	}
	b, err := os.ReadFile(filepath.Join(g.Dirs[ctl], file))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, name+" "); ok {
			return number(s)
		}
	}
	return -1
}

// number parses a number of the kernel, negative if it is none.
func number(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
