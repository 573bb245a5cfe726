package confine

import "golang.org/x/sys/unix"

// archCalls are system calls that not every architecture has.
var archCalls = []uintptr{unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_ARCH_PRCTL}

// statCall is the system call that describes a file by its name.
const statCall = unix.SYS_NEWFSTATAT
