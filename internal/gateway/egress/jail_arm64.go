package egress

// archCalls are system calls that not every architecture has.
var archCalls []uintptr
