// Package confine drops the privileges of a process of this program before it
// reads untrusted data. The process keeps only what it needs to move bytes
// between sockets.
package confine

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// Keeps lists what a process may use besides its memory and sockets.
type Keeps struct {
	// Files lets the process open files below its root directory for reading, open
	// unnamed temporary files for reading and writing, and read and write open
	// files at any offset.
	Files bool
}

// Enter permanently gives up the file system except for the directory root, all
// capabilities, the right to start programs, and all system calls except those
// kept. It closes root. It applies to all threads of the process. After an
// error some of this may have happened, and the process should exit.
func Enter(root *os.File, keeps Keeps) error {
	if err := unix.Fchdir(int(root.Fd())); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	root.Close()
	// Other processes of the same user must not read or trace this one.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	limits := []int{unix.RLIMIT_CORE}
	if !keeps.Files {
		limits = append(limits, unix.RLIMIT_FSIZE)
	}
	for _, limit := range limits {
		if err := unix.Setrlimit(limit, &unix.Rlimit{}); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	return restrictCalls(keeps)
}

// dropCapabilities drops the capabilities of all threads.
func dropCapabilities() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return errno
	}
	head := capHeader
	data := [2]unix.CapUserData{}
	return capset(&head, &data)
}

var capHeader = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

// restrictCalls allows the system calls of the Go runtime and sockets and, with
// keeps.Files, of work on files. All others fail with EPERM. That is not fatal,
// because libraries that try to open an optional file continue without it.
func restrictCalls(keeps Keeps) error {
	program := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: allowedCalls(keeps), Action: seccomp.Allow}},
		Options: seccomp.ProgramOptions{
			DefaultAction: seccomp.ReturnError.Code(uint16(unix.EPERM)),
			BadArchAction: seccomp.KillProcess,
			HotSyscalls:   []uintptr{unix.SYS_FUTEX, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_READ, unix.SYS_WRITE, unix.SYS_EPOLL_PWAIT},
		},
	}
	instructions, _, err := program.Build()
	if err != nil {
		return err
	}
	return seccomp.SetFilter(instructions)
}

func allowedCalls(keeps Keeps) seccomp.SyscallRules {
	rules := map[uintptr]seccomp.SyscallRule{
		unix.SYS_SOCKET: seccomp.Or{
			seccomp.PerArg{seccomp.EqualTo(unix.AF_INET)},
			seccomp.PerArg{seccomp.EqualTo(unix.AF_INET6)},
		},
		// Threads, but no processes.
		unix.SYS_CLONE: seccomp.PerArg{seccomp.MaskedEqual(unix.CLONE_THREAD|unix.CLONE_VM|unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWNET, unix.CLONE_THREAD|unix.CLONE_VM)},
		// Memory must not become executable.
		unix.SYS_MMAP:     seccomp.PerArg{seccomp.AnyValue{}, seccomp.AnyValue{}, seccomp.MaskedEqual(unix.PROT_EXEC, 0)},
		unix.SYS_MPROTECT: seccomp.PerArg{seccomp.AnyValue{}, seccomp.AnyValue{}, seccomp.MaskedEqual(unix.PROT_EXEC, 0)},
		// The runtime names memory areas, for display in /proc.
		unix.SYS_PRCTL: seccomp.PerArg{seccomp.EqualTo(unix.PR_SET_VMA)},
	}
	calls := [][]uintptr{socketCalls, archCalls}
	if keeps.Files {
		calls = append(calls, fileCalls)
		// Files cannot be created with a name.
		const named = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC
		rules[unix.SYS_OPENAT] = seccomp.Or{
			seccomp.PerArg{seccomp.AnyValue{}, seccomp.AnyValue{}, seccomp.MaskedEqual(named, unix.O_RDONLY)},
			seccomp.PerArg{seccomp.AnyValue{}, seccomp.AnyValue{}, seccomp.MaskedEqual(unix.O_TMPFILE|unix.O_CREAT|unix.O_TRUNC, unix.O_TMPFILE)},
		}
	}
	for _, some := range calls {
		for _, n := range some {
			rules[n] = seccomp.MatchAll{}
		}
	}
	return seccomp.MakeSyscallRules(rules)
}

// socketCalls are the system calls of the Go runtime and sockets.
var socketCalls = []uintptr{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_CLOSE, unix.SYS_FCNTL, unix.SYS_FSTAT,
	unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_SHUTDOWN,
	unix.SYS_ACCEPT4, unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMMSG,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PPOLL,
	unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MREMAP, unix.SYS_BRK, unix.SYS_MINCORE,
	unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME,
	unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_TGKILL, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_MEMBARRIER,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_GETRANDOM, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_UNAME,
	unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE, unix.SYS_SETITIMER,
}

// fileCalls are the system calls that read and write open files and check
// whether a file has changed.
var fileCalls = []uintptr{unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_LSEEK, unix.SYS_FTRUNCATE, unix.SYS_FSYNC, statCall}
