package engine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Owner is a process that a sandbox depends on: when the process has ended for
// any reason, the sandbox must end, too.
type Owner interface {
	// Token names the owner in a label.
	Token() string
	// Dead reports whether the owner named by token is proved to be gone.
	Dead(token string) bool
	// Foreign reports whether the owner named by token cannot be checked from
	// here, because it belongs to another boot or PID namespace.
	Foreign(token string) bool
}

// processOwner identifies a process by boot, PID namespace, PID and start time,
// so that a reused PID is not mistaken for it.
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
		return false // unknown, so not proved
	}
	if _, err := os.Stat("/proc/self"); err != nil {
		return false // without /proc, every process looks dead
	}
	return startTime(pid) != started
}

func (o processOwner) Foreign(token string) bool {
	where, _, _ := strings.Cut(token, "/")
	return where != scope()
}

// scope identifies the boot and the PID namespace.
func scope() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return strings.TrimSpace(string(boot)) + "+" + strings.Trim(strings.TrimPrefix(ns, "pid:"), "[]")
}

// startTime returns the start time of a process in clock ticks since boot, or
// "" if there is no such process or it is a zombie.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field, the command's name, may contain anything, so fields are
	// counted from its closing parenthesis.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const state, start = 0, 19 // fields 3 and 22 of proc(5)
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ""
	}
	return fields[start]
}
