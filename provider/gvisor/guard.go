package gvisor

import (
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sandboxes outlive the process that created them, but unassigned sandboxes of
// a pool must not. So a guard process waits for the end of the process that
// keeps the pool and then removes its unfinished sandboxes.

// Guard starts the guard process, unless sandboxes end with this process anyway.
func (w prewarmer) Guard() (ended <-chan struct{}, stop func(), err error) {
	if w.p.opts.Attached {
		return nil, func() {}, nil
	}
	sandboxes, err := filepath.Abs(w.p.sandboxes) // the process has another working directory
	if err != nil {
		return nil, nil, err
	}
	maker := self()
	args := []string{argvGuard, strconv.Itoa(maker.PID), strconv.FormatUint(maker.Start, 10), sandboxes}
	guard, err := w.p.reaper.start(w.p.opts.Kernel, args, nil, nil, &syscall.SysProcAttr{Setsid: true}, place{})
	if err != nil {
		return nil, nil, err
	}
	return guard.done, guard.kill, nil
}

// runGuard is the main function of the guard process.
func runGuard(args []string) int {
	if len(args) != 3 {
		return 2
	}
	pid, err1 := strconv.Atoi(args[0])
	start, err2 := strconv.ParseUint(args[1], 10, 64)
	if err1 != nil || err2 != nil {
		return 2
	}
	maker := processRef{PID: pid, Start: start, Boot: bootID()}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		for maker.alive() {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(p, -1)
		}
	}
	// A sandbox that was just begun has no name yet. It may belong to another
	// process until it is older than halfMadeAge.
	for deadline := time.Now().Add(2 * halfMadeAge); ; time.Sleep(halfMadeAge / 10) {
		failed := sweep(args[2], time.Now())
		left, _ := filepath.Glob(filepath.Join(args[2], halfMade+"*"))
		if len(left) == 0 || time.Now().After(deadline) {
			return map[bool]int{true: 1}[failed != nil]
		}
	}
}
