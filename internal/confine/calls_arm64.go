package confine

import "golang.org/x/sys/unix"

// archCalls are system calls that not every architecture has.
var archCalls []uintptr

// statCall looks at a file by its name.
const statCall = unix.SYS_FSTATAT
