// Command attacker is a process that was compromised after it was confined. It
// prints what it can still do, one item per line.
package main

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/confine"
)

func main() {
	keeps := confine.Keeps{Files: len(os.Args) > 1}
	open, err := os.Create("open") // in the directory that becomes the root
	if err == nil {
		err = confine.Enter(os.NewFile(3, "root"), keeps)
	}
	if err != nil {
		fmt.Println("fails:", err)
		os.Exit(1)
	}
	work(int(open.Fd()))
	// Threads started before Enter must have no more rights than later ones.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { attack(func(string) {}) })
	}
	all.Wait()
	attack(func(what string) { fmt.Println("can", what) })
}

// work reports which of its permitted operations succeed.
func work(fd int) {
	says := func(what string, err error) {
		if err == nil {
			fmt.Println("works:", what)
		}
	}
	_, err := unix.Pwrite(fd, []byte("x"), 10)
	says("write", err)
	_, err = unix.Pread(fd, make([]byte, 1), 10)
	says("read", err)
	says("cut", unix.Ftruncate(fd, 1))
	_, err = unix.Open("/readable", unix.O_RDONLY, 0)
	says("open", err)
	_, err = unix.Openat(unix.AT_FDCWD, "/", unix.O_TMPFILE|unix.O_RDWR, 0o600)
	says("nameless", err)
	_, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	says("connect", err)
}

// attack tries forbidden operations and reports those that succeed.
func attack(can func(what string)) {
	says := func(what string, err error) {
		if err == nil {
			can(what)
		}
	}
	call := func(n uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := syscall.RawSyscall6(n, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		}
		return nil
	}
	name, _ := syscall.BytePtrFromString("/readable")
	path := uintptr(unsafe.Pointer(name))
	_, err := unix.Open("/made", unix.O_CREAT|unix.O_WRONLY, 0o600)
	says("make a file", err)
	_, err = unix.Open("/readable", unix.O_RDWR, 0)
	says("write a file that has a name", err)
	_, err = unix.Open("/readable", unix.O_RDONLY|unix.O_TRUNC, 0)
	says("empty a file", err)
	says("name a file", unix.Link("/readable", "/linked"))
	says("remove a file", unix.Unlink("/readable"))
	says("rename a file", unix.Rename("/readable", "/renamed"))
	says("make a directory", unix.Mkdir("/dir", 0o700))
	says("change a mode", unix.Chmod("/readable", 0o777))
	_, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	says("reach sockets of this machine", err)
	_, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)
	says("speak to the kernel's network", err)
	_, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	says("see packets", err)
	_, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	says("have code in memory", err)
	says("execute a program", call(unix.SYS_EXECVE, path, 0, 0))
	says("leave its root", unix.Chroot("/"))
	says("mount", unix.Mount("none", "/", "tmpfs", 0, ""))
	says("have namespaces", unix.Unshare(unix.CLONE_NEWUSER))
	says("read memory of others", call(unix.SYS_PROCESS_VM_READV, 1))
	says("signal others", unix.Kill(1, 0))
	says("load programs into the kernel", call(unix.SYS_BPF))
	says("watch the machine", call(unix.SYS_PERF_EVENT_OPEN))
	says("queue calls past the filter", call(unix.SYS_IO_URING_SETUP, 1))
	says("keep keys", call(unix.SYS_KEYCTL))
	says("raise a limit", unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: 1}))
	says("be looked into", unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	says("fork", fork())
}

// fork creates a process, which exits at once.
func fork() error {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	switch {
	case errno != 0:
		return errno
	case pid == 0:
		syscall.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	return nil
}
