package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryOf returns the proportional set size in bytes of the processes for
// which is returns true, and of all their descendants. Shared memory is divided
// equally among the processes that share it.
func memoryOf(is func(pid int, cmdline string) bool) (int64, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	parent, roots := map[int]int{}, map[int]bool{}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		parent[pid] = parentIn(string(stat))
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		roots[pid] = is(pid, string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
	}
	var total int64
	for pid := range parent {
		if !descends(pid, parent, roots) {
			continue
		}
		if rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)); err == nil {
			total += field(string(rollup), "Pss:")
		}
	}
	return total, nil
}

// descends reports whether a process is one of roots or descends from one.
func descends(pid int, parent map[int]int, roots map[int]bool) bool {
	for range len(parent) + 1 {
		if roots[pid] {
			return true
		}
		next, known := parent[pid]
		if !known {
			return false
		}
		pid = next
	}
	return false
}

// parentIn returns the parent's number from /proc/PID/stat. The second field is
// in parentheses and may contain any bytes.
func parentIn(stat string) int {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 3 {
		return 0
	}
	pid, _ := strconv.Atoi(f[1])
	return pid
}

// field returns a value in bytes of a file with lines like "MemFree: 12 kB".
func field(text, name string) int64 {
	sc := bufio.NewScanner(strings.NewReader(text))
	for sc.Scan() {
		rest, found := strings.CutPrefix(sc.Text(), name)
		if !found {
			continue
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		return n << 10
	}
	return 0
}

// available returns the available memory of the machine in bytes.
func available() int64 {
	info, _ := os.ReadFile("/proc/meminfo")
	return field(string(info), "MemAvailable:")
}
