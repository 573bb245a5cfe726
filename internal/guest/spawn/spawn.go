// Package spawn starts programs like syscall.ForkExec, with half the system
// calls. Inside a sandbox each system call is a switch between processes of the
// host.
//
// The kernel resets the signal handlers of the new process in the call that
// makes it (CLONE_CLEAR_SIGHAND), where syscall.ForkExec needs a call for each
// of some sixty signals. The new process borrows the memory of this one until
// it executes (CLONE_VFORK), as with syscall.ForkExec, but says through that
// memory why it failed, where that makes a pipe. And the thread that waits for
// this meanwhile lets go of its processor in Go's scheduler at once, whose
// monitor would otherwise look after it every 20 µs.
package spawn

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// child is what a new process needs to know. It is all prepared before, since
// between its birth and its execution nothing of Go's runtime may be used.
type child struct {
	clone cloneArgs

	follows bool // the program is a second process, in the group of the first one
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

	// What is done when it has become the program.
	spare  [maxFiles]int // to be closed
	nspare int
	end    pollFD
	left   syscall.Timespec
}

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags      uint64
	pidfd      uint64    // where to write it
	_          [2]uint64 // where to write numbers of processes
	exitSignal uint64
	_          [5]uint64 // stack, thread-local storage and chosen numbers
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

// plain is true where syscall.ForkExec does it all: once the kernel is known to
// lack what this needs, and where Go has raised this process's limit of open
// files, since only package syscall knows what it was and gives it to programs.
// One below the most that is allowed is what Go raises it to.
var plain atomic.Bool

func init() {
	var l syscall.Rlimit
	plain.Store(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil || l.Cur == l.Max-1)
}

// Attr says how a program begins. It is in a session of its own in any case.
type Attr struct {
	// Follow makes the program a member of its session and process group, and not
	// the leader of either, who has ended: only such a program can begin a session
	// (setsid) without another process. This process must inherit orphans, as the
	// first one of a sandbox does. It is not done where package syscall starts
	// programs.
	Follow bool
	// Group gets the number of the process group and session.
	Group int
	Dir   string // empty to stay
	Env   []string
	Files [maxFiles]int // become descriptors 0, 1 and 2
	// Credential is who the program runs as, nil for who this process is.
	Credential *syscall.Credential
	// TTY makes descriptor 0 the terminal that controls the session.
	TTY bool
	// Cgroup, if InCgroup is set, is the directory of the control group that the
	// process is born in.
	InCgroup bool
	Cgroup   int
	// Pidfd, if it is not nil, gets a descriptor for Await, which the caller
	// closes, or -1 where there is none.
	Pidfd *int
	// Close are at most three descriptors of the caller that are closed when the
	// program runs, and are still the caller's if it cannot.
	Close []int
	// Await is for how long the end of the program is then waited for, if there
	// is a descriptor for that, and Ended tells whether it has ended. Both at
	// once are one rest for Go's scheduler, where ForkExec and then Await are two.
	Await time.Duration
	Ended bool
}

// ForkExec starts a program with these arguments, of which the first is its
// name. The error is the kernel's, a syscall.Errno. It may be called
// concurrently, and waits until the program runs or cannot.
//
// Descriptors that the program is not to have must be marked to close on
// execution as they are made: syscall.ForkLock is not held.
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

// bury takes the end of a process that has not become a program, unless
// somebody who waits for all processes has taken it.
func bury(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
			return
		}
	}
}

// prepare makes all that the new process needs.
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
		c.clone.flags |= cloneFiles // so that the descriptor is this process's, too
		// The parent is not inherited (CLONE_PARENT): in gVisor its process group
		// would be, too.
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
