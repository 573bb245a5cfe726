package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// An orphan is a process that runs although the command, or the part of it,
// that started it has ended: a server started with "&", or a daemon. This
// process is the parent of all of them. They are listed like commands in the
// background, and can be killed. Of their descendants nothing is said.

// orphanID names a process by what no later one has: its number and its start.
func orphanID(st procStat) string {
	return "o" + strconv.Itoa(st.pid) + "." + strconv.FormatInt(st.start, 36)
}

// isOrphanID reports whether an ID could be an orphan's.
func isOrphanID(id string) bool {
	_, rest, ok := strings.Cut(id, "o")
	return ok && strings.HasPrefix(id, "o") && strings.Contains(rest, ".")
}

// orphans lists the orphans that run.
func (a *agent) orphans() []procStat {
	if a.reaper.childless() {
		return nil
	}
	// A command is known before its process is there, and until that has ended.
	commands := a.procs.running(nil)
	all := processes()
	commands = a.procs.running(commands)
	self := os.Getpid()
	var found []procStat
	for _, st := range all {
		if st.ppid == self && !st.dead && !commands[st.pid] && a.lives(st) {
			found = append(found, st)
		}
	}
	return found
}

// lives reports whether a process has not ended since it was looked at.
func (*agent) lives(was procStat) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(was.pid) + "/stat")
	if err != nil {
		return false
	}
	st, ok := parseStat(b)
	return ok && st.pid == was.pid && st.start == was.start && !st.dead
}

// running adds the process numbers of the commands that run to those in pids.
func (t *procTable) running(pids map[int]bool) map[int]bool {
	if pids == nil {
		pids = map[int]bool{}
	}
	for _, p := range t.list() {
		if info := p.snapshot(); info.Running {
			pids[info.PID] = true
		}
	}
	return pids
}

// tick is the unit of times in /proc: Linux promises it to programs.
const tick = 10 * time.Millisecond

// describeOrphan says of an orphan what is said of a command.
func describeOrphan(st procStat) sandbox.ProcessInfo {
	info := sandbox.ProcessInfo{ID: orphanID(st), PID: st.pid, Background: true, Running: true}
	args := []string{st.name}
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(st.pid) + "/cmdline"); err == nil && len(b) > 0 {
		args = strings.Split(string(bytes.TrimSuffix(b, []byte{0})), "\x00")
	}
	info.Args = keptArgs(&sandbox.Command{Args: args})
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) == nil {
		info.Started = time.Now().Add(time.Duration(st.start)*tick - time.Duration(now.Nano()))
	}
	return info
}

// killOrphan signals an orphan and all that descends from it.
func (a *agent) killOrphan(id string, sig syscall.Signal) error {
	for _, st := range a.orphans() {
		if orphanID(st) != id {
			continue
		}
		if sig == syscall.SIGKILL {
			found := map[int]bool{st.pid: true}
			killAll(&a.bounds, func(all []procStat) []procStat {
				return below(all, found, func(procStat) bool { return false })
			})
			return nil
		}
		for _, q := range below(processes(), map[int]bool{st.pid: true}, func(procStat) bool { return false }) {
			if err := syscall.Kill(q.pid, sig); err != nil && err != syscall.ESRCH {
				return about(id, err)
			}
		}
		return nil
	}
	return fail(sandbox.CodeNotFound, id, "no such process")
}
