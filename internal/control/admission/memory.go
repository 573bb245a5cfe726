package admission

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns the bytes of free memory and of total memory.
func (g *Gate) Memory() (free, total int64) {
	if g == nil {
		return machineMemory()
	}
	return g.cfg.Memory()
}

// machineMemory returns the memory of the machine, or of this process's control
// group if that has less.
func machineMemory() (free, total int64) {
	free, total = meminfo()
	used, limit := groupMemory("/sys/fs/cgroup")
	if limit > 0 && limit-used < free {
		return limit - used, limit
	}
	return free, total
}

func meminfo() (free, total int64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	figures := map[string]int64{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		figures[name], _ = strconv.ParseInt(kb, 10, 64)
	}
	return figures["MemAvailable"] << 10, figures["MemTotal"] << 10
}

// groupMemory returns the memory that this process's control group (version 2)
// uses, without caches, and its limit. Zero means no limit.
func groupMemory(root string) (used, limit int64) {
	self, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(self)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		dir := filepath.Join(root, name)
		limit = figure(filepath.Join(dir, "memory.max"))
		used = figure(filepath.Join(dir, "memory.current"))
		stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
		for line := range strings.Lines(string(stat)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "inactive_file "); ok {
				cached, _ := strconv.ParseInt(n, 10, 64)
				used -= cached
			}
		}
	}
	return used, limit
}

// figure reads a number; "max" or a missing file is zero.
func figure(path string) int64 {
	text, _ := os.ReadFile(path)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}
