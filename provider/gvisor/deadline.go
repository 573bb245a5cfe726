package gvisor

import (
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startDeadline starts a process that outlives this one and kills the kernel
// when its time is over. It ends by itself when the kernel does.
func (p *Provider) startDeadline(kernel processRef, left time.Duration) (*child, error) {
	args := []string{
		argvDeadline, strconv.Itoa(kernel.PID), strconv.FormatUint(kernel.Start, 10),
		strconv.FormatInt(left.Milliseconds(), 10),
	}
	return p.reaper.start(p.opts.Kernel, args, nil, &syscall.SysProcAttr{Setsid: true}, nil)
}

// runDeadline is that process.
func runDeadline(args []string) int {
	if len(args) != 3 {
		return 2
	}
	pid, err1 := strconv.Atoi(args[0])
	start, err2 := strconv.ParseUint(args[1], 10, 64)
	ms, err3 := strconv.ParseInt(args[2], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return 2
	}
	ref := processRef{pid, start}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil || !ref.alive() {
		return 0
	}
	end := time.Now().Add(time.Duration(ms) * time.Millisecond)
	for {
		left := time.Until(end)
		if left <= 0 {
			ref.kill()
			return 0
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(min(left.Milliseconds()+1, 1<<30)))
		if n == 1 || (err != nil && err != unix.EINTR) {
			return 0
		}
	}
}
