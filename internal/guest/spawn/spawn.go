// Package spawn starts programs like syscall.ForkExec, with half the system
// calls. Inside a sandbox each system call is a switch between processes of the
// host.
//
// The kernel resets the signal handlers of the new process in the call that
// creates it (CLONE_CLEAR_SIGHAND); syscall.ForkExec needs a call for each of
// some sixty signals. As with syscall.ForkExec, the new process shares this
// process's memory until it executes (CLONE_VFORK). It reports failures through
// that memory, where syscall.ForkExec creates a pipe. And the waiting thread
// releases its processor in Go's scheduler at once; otherwise the scheduler's
// monitor would check on it every 20 µs.
package spawn

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// child is the data that a new process needs. It is prepared in advance,
// because Go's runtime must not be used between clone and exec.
type child struct {
	clone cloneArgs

	follows bool // the program is a second process in the first one's group
	second  cloneArgs
	pid     uintptr // its number

	path       *byte
	argv, envp []*byte
	dir        *byte // nil to stay
	files      [maxFiles]int
	tty        bool

	switches bool
	uid, gid uint32
	ngroups  int
	groups   *uint32

	pidfd  int32 // -1 for none
	failed syscall.Errno

	// Cleanup after the program has started.
	spare  [maxFiles]int // to be closed
	nspare int
	end    pollFD
	left   syscall.Timespec
}

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags      uint64
	pidfd      uint64    // address for the descriptor
	_          [2]uint64 // addresses for process numbers
	exitSignal uint64
	_          [5]uint64 // stack, thread-local storage and chosen process numbers
	cgroup     uint64
}

const (
	cloneVM           = 0x100
	cloneFiles        = 0x400
	clonePidfd        = 0x1000
	cloneVfork        = 0x4000
	cloneClearSighand = 0x100000000
	cloneIntoCgroup   = 0x200000000

	maxFiles = 3
)

// plain selects syscall.ForkExec: when the kernel lacks a feature that this
// package needs, or when Go has raised this process's limit of open files. Only
// package syscall knows the original limit and restores it for programs. Go
// raises the limit to one below the maximum.
var plain atomic.Bool

func init() {
	var l syscall.Rlimit
	plain.Store(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil || l.Cur == l.Max-1)
}

// Attr sets how a program starts. It always runs in another session.
type Attr struct {
	// Follow makes the program a member, and not the leader, of its session and
	// process group. The leader has ended. Only such a program can call setsid
	// without forking. This process must inherit orphans, like process 1 of a
	// sandbox. Follow is ignored where package syscall starts programs.
	Follow bool
	// Group receives the number of the process group and session.
	Group int
	Dir   string // empty: unchanged
	Env   []string
	Files [maxFiles]int // become descriptors 0, 1 and 2
	// Credential is the program's user and groups; nil: those of this process.
	Credential *syscall.Credential
	// TTY makes descriptor 0 the controlling terminal of the session.
	TTY bool
	// Cgroup, if InCgroup is set, is the directory of the control group that the
	// process is created in.
	InCgroup bool
	Cgroup   int
	// Pidfd, if not nil, receives a descriptor for Await, or -1 if there is none.
	// The caller closes it.
	Pidfd *int
	// Close lists at most three descriptors of the caller that are closed when the
	// program runs. If the program cannot start, they stay open.
	Close []int
	// Await is how long to wait for the end of the program afterwards, if there is
	// a pidfd. Ended reports whether it has ended. This blocks in Go's scheduler
	// once, where ForkExec followed by Await would block twice.
	Await time.Duration
	Ended bool
}

// ForkExec starts a program; argv[0] is its name. The error is the kernel's, a
// syscall.Errno. ForkExec may be called concurrently. It returns when the
// program runs or could not start.
//
// Descriptors that the program must not inherit need O_CLOEXEC from their
// creation: ForkExec does not hold syscall.ForkLock.
func ForkExec(path string, argv []string, attr *Attr) (int, error) {
	attr.Ended, attr.Group = false, 0
	if attr.Pidfd != nil {
		*attr.Pidfd = -1
	}
	if plain.Load() || min(attr.Files[0], attr.Files[1], attr.Files[2]) < maxFiles {
		return attr.forkExec(path, argv)
	}
	c, err := prepare(path, argv, attr)
	if err != nil {
		return 0, err
	}
	pid, errno := vforkExec(c)
	switch {
	case errno == syscall.ENOSYS || errno == syscall.EINVAL || errno == syscall.EPERM:
		plain.Store(true)
		return attr.forkExec(path, argv)
	case errno != 0:
		return 0, errno
	case c.failed != 0:
		if c.pidfd >= 0 {
			_ = syscall.Close(int(c.pidfd))
		}
		bury(int(pid))
		if c.pid != 0 {
			bury(int(c.pid))
		}
		return 0, syscall.Errno(c.failed)
	}
	attr.Group = int(pid)
	if c.follows {
		bury(int(pid)) // it has ended
		pid = c.pid
	}
	if attr.Pidfd != nil {
		*attr.Pidfd, attr.Ended = int(c.pidfd), c.end.revents != 0
	}
	return int(pid), nil
}

// forkExec is ForkExec by package syscall.
func (a *Attr) forkExec(path string, argv []string) (int, error) {
	files := make([]uintptr, len(a.Files))
	for i, fd := range a.Files {
		files[i] = uintptr(fd)
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir: a.Dir, Env: a.Env, Files: files,
		Sys: &syscall.SysProcAttr{Credential: a.Credential, Setsid: true, Setctty: a.TTY, UseCgroupFD: a.InCgroup, CgroupFD: a.Cgroup},
	})
	if err == nil {
		a.Group = pid
		for _, fd := range a.Close {
			_ = syscall.Close(fd)
		}
	}
	return pid, err
}

// bury reaps a process that did not become a program, unless a wait for all
// processes has reaped it.
func bury(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
			return
		}
	}
}

// prepare creates the data that the new process needs.
func prepare(path string, argv []string, attr *Attr) (*child, error) {
	c := &child{files: attr.Files, tty: attr.TTY, pidfd: -1, left: syscall.NsecToTimespec(attr.Await.Nanoseconds())}
	c.nspare = copy(c.spare[:], attr.Close)
	c.clone.flags, c.clone.exitSignal = cloneVM|cloneVfork|cloneClearSighand, uint64(syscall.SIGCHLD)
	if attr.InCgroup {
		c.clone.flags |= cloneIntoCgroup
		c.clone.cgroup = uint64(attr.Cgroup)
	}
	program := &c.clone
	if attr.Follow {
		c.follows, program = true, &c.second
		c.clone.flags |= cloneFiles // so that this process gets the descriptor, too
		// CLONE_PARENT is not used: in gVisor the child would also inherit the
		// parent's process group.
		c.second.flags, c.second.exitSignal = cloneVM|cloneVfork, uint64(syscall.SIGCHLD)
	}
	if attr.Pidfd != nil {
		program.flags |= clonePidfd
		program.pidfd = uint64(uintptr(unsafe.Pointer(&c.pidfd))) // nothing on the heap moves
	}
	var err error
	if c.path, err = syscall.BytePtrFromString(path); err != nil {
		return nil, err
	}
	if attr.Dir != "" {
		if c.dir, err = syscall.BytePtrFromString(attr.Dir); err != nil {
			return nil, err
		}
	}
	if c.argv, err = syscall.SlicePtrFromStrings(argv); err != nil {
		return nil, err
	}
	if c.envp, err = syscall.SlicePtrFromStrings(attr.Env); err != nil {
		return nil, err
	}
	if cred := attr.Credential; cred != nil {
		c.switches, c.uid, c.gid = true, cred.Uid, cred.Gid
		if c.ngroups = len(cred.Groups); c.ngroups > 0 {
			c.groups = &cred.Groups[0]
		}
	}
	return c, nil
}
