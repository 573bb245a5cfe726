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

// An orphan is a process that outlives the command, or the part of the command,
// that started it: a server started with "&", or a daemon. This process is the
// parent of all orphans. They are listed like background commands and can be
// killed. Their descendants are not listed.

// orphanID identifies a process by its number and start time, which are never
// reused together. See also sandbox.ProcessInfo.LeftBehind.
func orphanID(st procStat) string {
	return "o" + strconv.Itoa(st.pid) + "." + strconv.FormatInt(st.start, 36)
}

// isOrphanID reports whether an ID could be an orphan's.
func isOrphanID(id string) bool { return sandbox.ProcessInfo{ID: id}.LeftBehind() }

// orphans lists the running orphans.
func (a *agent) orphans() []procStat {
	if a.reaper.childless() {
		return nil
	}
	// A command is in the table from before its process starts until it has ended.
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

// lives reports whether a process is still the one that was read before.
func (*agent) lives(was procStat) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(was.pid) + "/stat")
	if err != nil {
		return false
	}
	st, ok := parseStat(b)
	return ok && st.pid == was.pid && st.start == was.start && !st.dead
}

// running adds the numbers of running commands to pids.
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

// tick is the unit of times in /proc. Linux guarantees programs 100 per second.
const tick = 10 * time.Millisecond

// describeOrphan describes an orphan like a command.
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

// killOrphan signals an orphan and all its descendants.
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
