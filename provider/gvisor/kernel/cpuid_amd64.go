package kernel

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

// Offsets in the kernel's struct seccomp_data, and the instructions of a filter.
const (
	dataNumber   = 0
	dataFirstArg = 16

	load       = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	jumpEquals = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	answer     = unix.BPF_RET | unix.BPF_K
)

// leaveCPUID lets programs inside ask the processor itself what it is. The
// kernel would have each such instruction fault, and answer what the processor
// of the machine answers: a loader of dynamically linked programs asks some
// seventy times, each a switch between two processes and back. Where a
// processor cannot fault there, gVisor goes on without; a filter that refuses
// the call makes each a processor like that. What fails here is that filter, and
// then programs start slower.
func leaveCPUID() {
	const leave = 1
	if _, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, linux.ARCH_SET_CPUID, leave, 0); errno != 0 {
		return // it cannot, or this process has been through here and was executed anew
	}
	filter := []unix.SockFilter{
		{Code: load, K: dataNumber},
		{Code: jumpEquals, K: unix.SYS_ARCH_PRCTL, Jf: 3},
		{Code: load, K: dataFirstArg},
		{Code: jumpEquals, K: linux.ARCH_SET_CPUID, Jf: 1},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENODEV)},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	if unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != nil { // as any filter needs, the kernel's own too
		return
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, _ = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
}
