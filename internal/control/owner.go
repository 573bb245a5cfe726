package control

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Owner is a process on which the life of a sandbox depends: when it is gone,
// whatever ended it, the sandbox must go too.
type Owner interface {
	// Token names the owner in a label.
	Token() string
	// Dead reports whether the owner that token names is proved to be gone.
	Dead(token string) bool
	// Foreign reports whether token names an owner that cannot be judged from
	// here, because it belongs to another boot or another PID namespace.
	Foreign(token string) bool
}

// processOwner names a process by its machine boot, its PID namespace, its PID
// and the moment it started, so that a reused PID is not mistaken for it.
type processOwner struct{ pid int }

var thisProcess Owner = processOwner{os.Getpid()}

func (o processOwner) Token() string {
	return fmt.Sprintf("%s/%d/%s", scope(), o.pid, startTime(o.pid))
}

func (o processOwner) Dead(token string) bool {
	where, rest, ok := strings.Cut(token, "/")
	pidText, started, ok2 := strings.Cut(rest, "/")
	pid, err := strconv.Atoi(pidText)
	if !ok || !ok2 || err != nil || where != scope() || started == "" {
		return false // nothing is proved
	}
	if _, err := os.Stat("/proc/self"); err != nil {
		return false // without /proc every process looks dead
	}
	return startTime(pid) != started
}

func (o processOwner) Foreign(token string) bool {
	where, _, _ := strings.Cut(token, "/")
	return where != scope()
}

// scope names the set of processes in which a PID means something.
func scope() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return strings.TrimSpace(string(boot)) + "+" + strings.Trim(strings.TrimPrefix(ns, "pid:"), "[]")
}

// startTime returns when a process started, in clock ticks since the boot, or
// "" if there is no such process or it is a zombie.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The command's name, the second field, may hold anything: fields are
	// counted from its closing parenthesis.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const state, start = 0, 19 // fields 3 and 22 of proc(5)
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ""
	}
	return fields[start]
}
