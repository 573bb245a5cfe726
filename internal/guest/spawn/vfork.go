package spawn

import (
	"syscall"
	"unsafe"
)

// The hooks of Go's runtime for system calls that take long.
// golang.org/issue/67401 keeps their names accessible; gVisor uses them as
// well.

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// rawVfork creates the process. It is in assembly because both processes return
// from it on the same stack.
//
//go:noescape
func rawVfork(args *cloneArgs, size uintptr) (pid uintptr, errno syscall.Errno)

// vforkExec creates the process and waits until it has become the program or
// has failed. Meanwhile the new process uses this thread's stack, so this code
// must not allocate memory, grow the stack or take locks. Signals need not be
// blocked: the new process starts without handlers, which would run in shared
// memory, and this thread handles none while it is suspended. So the program
// starts with this thread's signal mask.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func vforkExec(c *child) (uintptr, syscall.Errno) {
	entersyscallblock()
	pid, errno := rawVfork(&c.clone, unsafe.Sizeof(c.clone))
	if pid == 0 && errno == 0 {
		c.failed = c.lead()
		for {
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 253, 0, 0)
		}
	}
	if errno == 0 && c.failed == 0 {
		c.attend()
	}
	exitsyscall()
	return pid, errno
}

// attend runs in this process while the program starts.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func (c *child) attend() {
	for i := range c.nspare {
		_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(c.spare[i]), 0, 0)
	}
	if c.pidfd < 0 || c.left == (syscall.Timespec{}) {
		return
	}
	c.end = pollFD{fd: c.pidfd, events: pollIn}
	for rawPoll(&c.end, 1, &c.left) == syscall.EINTR { // the kernel writes the rest of the time to left
	}
}

// lead starts a session. If the program is not to lead its process group, this
// process creates a second one for it and exits. The second process is then an
// orphan and keeps this process's number as its group and session. lead returns
// when this process has nothing left to do.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func (c *child) lead() syscall.Errno {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); errno != 0 {
		return errno
	}
	if !c.follows {
		return c.become()
	}
	pid, errno := rawVfork(&c.second, unsafe.Sizeof(c.second))
	if pid == 0 && errno == 0 {
		return c.become()
	}
	c.pid = pid
	if errno == 0 {
		errno = c.failed // set by the second process, which shares this memory
	}
	return errno
}

// become turns the new process into the program. It returns only on failure.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func (c *child) become() syscall.Errno {
	if errno := c.switchUser(); errno != 0 {
		return errno
	}
	if c.dir != nil {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); errno != 0 {
			return errno
		}
	}
	for i := range c.files {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.files[i]), uintptr(i), 0); errno != 0 {
			return errno
		}
	}
	if c.tty {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, 0, syscall.TIOCSCTTY, 1); errno != 0 {
			return errno
		}
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(&c.argv[0])), uintptr(unsafe.Pointer(&c.envp[0])))
	return errno
}

//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func (c *child) switchUser() syscall.Errno {
	if !c.switches {
		return 0
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(c.ngroups), uintptr(unsafe.Pointer(c.groups)), 0); errno != 0 {
		return errno
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGID, uintptr(c.gid), 0, 0); errno != 0 {
		return errno
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_SETUID, uintptr(c.uid), 0, 0)
	return errno
}

// Wait waits for the end of any child process, like syscall.Wait4(-1, …), but
// releases its processor in Go's scheduler at once.
func Wait(status *syscall.WaitStatus) (int, error) {
	var word uint32
	pid, errno := wait(&word)
	*status = syscall.WaitStatus(word)
	if errno != 0 {
		return 0, errno
	}
	return pid, nil
}

//go:noinline
//go:norace
//go:nosplit
func wait(status *uint32) (int, syscall.Errno) {
	entersyscallblock()
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(status)), 0, 0, 0, 0)
	exitsyscall()
	return int(pid), errno
}
