// Package agent is Atoll's own process inside a sandbox: process 1, which
// starts commands, keeps their output, carries out file operations in the
// sandbox's own kernel, and reaps orphans. It serves descriptor 3 and the
// connections that a guest run as "connect" by root hands over, and nobody
// else.
//
// It is a program of its own, cmd/atoll-guest, of which there is one in every
// sandbox. So it imports little, and keeps nothing running that nobody waits for.
package agent

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// agent is the state of one guest.
type agent struct {
	self   self
	reaper *reaper
	procs  *procTable
	users  accounts
	files  *fileServer
	links  links
	bounds bounds

	mu       sync.Mutex
	defaults wire.Defaults
	memory   string // file that keeps the defaults; empty: none does

	unready error // why no command can be run, nil if one can
	devNull int   // for commands without input; -1 if there is none
}

// Asked reports whether a process with these arguments was started as a guest.
func Asked(args []string) bool {
	return len(args) > 0 && (args[0] == wire.Argv0 || args[0] == wire.Path || strings.HasPrefix(args[0], wire.NestedPrefix))
}

// Main is the whole life of a guest with these arguments, the first of which
// is the name of the process. It returns the exit status.
func Main(args []string) int {
	// Nothing that this process was given is for commands.
	if unix.CloseRange(wire.LinkIn, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) != nil {
		for fd := wire.LinkIn; fd <= wire.DoorKept; fd++ {
			unix.CloseOnExec(fd)
		}
	}
	switch {
	case len(args) == 1:
		return serveSandbox()
	case len(args) == 2 && args[1] == wire.ConnectArg:
		return handOver()
	case len(args) == 2 && args[1] == wire.JoinArg:
		return join(args[0])
	case len(args) == 2 && args[1] == wire.NestedArg:
		return serveNested(args[0])
	case len(args) == 3 && args[1] == wire.HostArg:
		return serveHost(args[2])
	}
	return 64
}

// serveSandbox is the guest as process 1. It never ends.
func serveSandbox() int {
	a := newAgent("/")
	a.unready = a.moveIn()
	a.start()
	if err := a.listen(meetingPoint); err != nil {
		println("atoll-guest: no reconnection:", err.Error())
	}
	if link, err := openFirstLink(); err == nil {
		go a.serve(link)
	}
	a.awaitRestores()
	select {}
}

// serveHost is the guest as a keeper of plain processes. It ends when its
// connection does, after everything it started.
func serveHost(root string) int {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	a := newAgent(root)
	a.start()
	link, err := openSocket(wire.LinkIn)
	if err != nil {
		return 1
	}
	a.serve(link)
	a.procs.closeAll()
	for !a.reaper.childless() {
		killDescendants()
	}
	return 0
}

// newAgent makes a guest. How Go's runtime is to be is said by its environment.
func newAgent(root string) *agent {
	a := &agent{self: whoAmI(), reaper: newReaper(), procs: newProcTable(), devNull: -1}
	a.files = newFileServer(root, &a.users, a.defaultUser)
	return a
}

// start prepares this process for commands.
func (a *agent) start() {
	ignoreSignals()
	leaveChildren()
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	unix.Umask(0o777 &^ umasked) // commands inherit it; files get their modes explicitly
	if fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		a.devNull = fd
	}
	go a.reaper.run()
}

// ignoreSignals keeps what is sent to process 1 from ending it. The signals are
// caught and not ignored, since commands would inherit that.
func ignoreSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGVTALRM, unix.SIGPROF, unix.SIGPIPE, unix.SIGABRT, unix.SIGXCPU, unix.SIGXFSZ,
		unix.SIGIO, unix.SIGPWR, unix.SIGSTKFLT, unix.SIGSYS, unix.SIGTRAP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
}

// leaveChildren makes the kernel say nothing when a child ends: that would
// interrupt a thread to run a handler of Go's, which nobody has asked for. A
// signal that is not handled does not keep an end from being waited for.
func leaveChildren() {
	var byDefault [4]uint64 // the kernel's struct sigaction, of which all zero is SIG_DFL
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
}

// serve answers one connection until it ends. The commands it started in the
// foreground end with it.
func (a *agent) serve(link io.ReadWriteCloser) {
	defer a.links.add(link)()
	var peer wire.Peer
	err := wire.WritePreface(link)
	if err == nil {
		peer, err = wire.ReadPreface(link)
	}
	if err != nil {
		link.Close()
		return
	}
	_ = wire.Serve(link, peer, a.handle)
}

// handle carries out one operation.
func (a *agent) handle(op *wire.Op) {
	d := &wire.Decoder{B: op.Request}
	var result []byte
	var err error
	switch op.Method {
	case wire.Configure:
		err = a.configure(d)
	case wire.Exec:
		err = a.exec(op, d)
	case wire.ExecHeld:
		err = a.execHeld(op, d)
	case wire.Rejoin:
		err = a.rejoin(op, d)
	case wire.LetGo:
		err = a.letGo(d)
	case wire.Attach:
		err = a.attach(op, d)
	case wire.Logs:
		err = a.logs(op, d)
	case wire.Processes:
		err = a.processes(op)
	case wire.Kill:
		err = a.kill(d)
	case wire.Resize:
		err = a.resize(d)
	case wire.Dial:
		err = a.dial(op, d)
	case wire.Prewarm:
		err = a.prewarm(op.Request)
	default:
		result, err = a.files.handle(op, d)
	}
	if err != nil {
		op.Fail(remote(err))
		return
	}
	op.End(result)
}

// configure sets the defaults of commands and makes their directory.
func (a *agent) configure(d *wire.Decoder) error {
	var def wire.Defaults
	def.Decode(d)
	if err := d.End(); err != nil {
		return err
	}
	if os.Getpid() == 1 {
		if err := errors.Join(a.unready, name(def.Hostname)); err != nil {
			return fail(sandbox.CodeUnavailable, "", "the sandbox cannot be prepared: "+err.Error())
		}
	}
	if def.Workdir == "" {
		def.Workdir = "/"
	}
	acc, err := a.users.lookup(def.User)
	if err != nil {
		// Not fatal: the user may be made by a command, and commands say so.
		acc = account{}
	}
	if err := a.files.makeWorkdir(def.Workdir, acc); err != nil {
		return err
	}
	a.record(&def)
	a.mu.Lock()
	a.defaults = def
	a.mu.Unlock()
	return nil
}

// name gives the sandbox its host name, which the kernel leaves to process 1.
func name(host string) error {
	if host == "" {
		return nil
	}
	return unix.Sethostname([]byte(host))
}

func (a *agent) getDefaults() wire.Defaults {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.defaults
}

func (a *agent) defaultUser() string { return a.getDefaults().User }
