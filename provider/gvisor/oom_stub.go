package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
)

// gVisor's kernel sets up stubs and their threads, which are processes of their
// own, with ptrace. It ends itself if a process ends that it traces, a stub that
// does not have its first thread yet, or one that has just got a thread. It gives
// new programs a stub that is about to end. So it is stopped while a stub is
// killed: it sees that the stub lives or has ended, and nothing between.

// endStub kills a stub and its threads, and waits for their end, so that their
// memory is free. It returns false if gVisor's kernel has not set up the stub
// with exactly these threads, or traces one of them: it can be tried again.
func (m *memoryGuard) endStub(pid int, threads []int) (ended bool) {
	if len(threads) == 0 {
		return false
	}
	release := m.hold()
	if release == nil {
		return false
	}
	defer release(true)
	return m.endStopped(pid, threads)
}

// endStopped is endStub while the kernel is stopped.
func (m *memoryGuard) endStopped(pid int, threads []int) (ended bool) {
	all := append(childrenOf(m.rec.cgroup(), pid), pid)
	if len(threads) == 0 || !slices.Equal(all[:len(all)-1], threads) || slices.ContainsFunc(all, traced) {
		return false
	}
	m.stateDir.addStarved() // before anybody notices its end
	for _, p := range all {
		_ = unix.Kill(p, unix.SIGKILL)
	}
	for end := time.Now().Add(freeTime); len(all) > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		all = slices.DeleteFunc(all, func(pid int) bool {
			_, err := processStat(pid)
			return err != nil
		})
	}
	return true
}

// The file fileHeld is not empty while the kernel is stopped. The process that
// stops it holds its lock: without the lock, that process was killed.

// hold stops gVisor's kernel with a signal until release is called, which lets it
// go on or leaves that to the next process that watches it. It returns nil if the
// kernel does not stop, or something else has stopped it.
func (m *memoryGuard) hold() (release func(goOn bool)) {
	f, err := m.lockHeld()
	if err != nil {
		return nil
	}
	kernel := m.rec.Kernel
	if kernel.stopped() || !kernel.alive() {
		f.Close()
		return nil
	}
	if _, err := f.Write([]byte{'.'}); err != nil {
		f.Close()
		return nil
	}
	release = func(goOn bool) {
		if goOn {
			_ = unix.Kill(kernel.PID, unix.SIGCONT)
			_ = f.Truncate(0)
		}
		f.Close()
	}
	_ = unix.Kill(kernel.PID, unix.SIGSTOP)
	for end := time.Now().Add(stopTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if quiet(kernel.PID) {
			return release
		}
	}
	release(true)
	return nil
}

// stopTime limits waiting until gVisor's kernel has stopped.
const stopTime = time.Second

// lockHeld takes the lock of fileHeld. It continues a kernel that was stopped by
// a process that was killed.
func (m *memoryGuard) lockHeld() (*os.File, error) {
	f, err := os.OpenFile(m.stateDir.path(fileHeld), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	if m.stateDir.held() && m.rec.Kernel.alive() {
		_ = unix.Kill(m.rec.Kernel.PID, unix.SIGCONT)
		_ = f.Truncate(0)
	}
	return f, nil
}

// held reports whether the kernel is stopped while a stub is killed, or until it
// has a higher limit.
func (d stateDir) held() bool {
	st, err := os.Stat(d.path(fileHeld))
	return err == nil && st.Size() > 0
}

// quiet reports whether a process that was stopped by a signal traces and awaits
// no other any more. Threads that wait for memory stop only when they have it.
func quiet(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	return len(threads) > 0 && !slices.ContainsFunc(threads, func(dir string) bool {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			return false // it has ended
		}
		switch _, state, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " "); state[:1] {
		case "T", "t", "Z", "X":
			return false
		case "D":
			call, err := os.ReadFile(filepath.Join(dir, "syscall"))
			number, _, _ := strings.Cut(string(call), " ")
			return err != nil || slices.Contains(tracing, strings.TrimSpace(number))
		}
		return true
	})
}

// tracing is what /proc/PID/task/TID/syscall begins with in system calls that
// trace or await, and in a thread that runs.
var tracing = []string{"running", strconv.Itoa(unix.SYS_PTRACE), strconv.Itoa(unix.SYS_WAIT4), strconv.Itoa(unix.SYS_WAITID)}

// traced reports whether a process is traced.
func traced(pid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && !strings.Contains(string(status), "TracerPid:\t0\n")
}

// childrenOf lists the processes of the group that a process has started and
// that have not ended.
func childrenOf(g *cgroup.Group, parent int) []int {
	want := strconv.Itoa(parent)
	list := slices.DeleteFunc(g.Processes(), func(pid int) bool {
		stat, err := processStat(pid)
		return err != nil || stat[statParent] != want
	})
	slices.Sort(list)
	return list
}
