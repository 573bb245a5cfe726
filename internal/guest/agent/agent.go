// Package agent implements the guest: Atoll's process inside a sandbox. It runs
// as process 1, starts commands, keeps their output, performs file operations
// through the sandbox's own kernel, and reaps orphans. It accepts requests only
// on descriptor 3 and on connections that root hands over with the "connect"
// command.
//
// The guest is a separate program, cmd/atoll-guest, and runs once in every
// sandbox. It therefore imports little and keeps no idle goroutines.
package agent

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
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

	generation generation  // of process 1 of a sandbox
	restored   atomic.Bool // since the guest was configured

	mu       sync.Mutex
	defaults wire.Defaults
	identity identity
	memory   string // file that stores the defaults; empty: they are not stored

	unready error // why commands cannot run; nil if they can
	devNull int   // open /dev/null, the input of commands without input; -1 if missing
}

// Asked reports whether args, including the process name, start a guest.
func Asked(args []string) bool {
	return len(args) > 0 && (args[0] == wire.Argv0 || args[0] == wire.Path || strings.HasPrefix(args[0], wire.NestedPrefix))
}

// Main runs a guest until it ends and returns its exit status. args[0] is the
// name of the process.
func Main(args []string) int {
	// Commands must not inherit the guest's descriptors.
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
	case len(args) == 3 && args[1] == wire.MachineArg:
		return serveMachine(args[2])
	}
	return 64
}

// serveSandbox runs the guest as process 1. It never returns.
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

// serveHost runs the guest on a host without a sandbox, as the parent of plain
// processes. It returns when its connection has closed and every process it
// started has ended.
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

// newAgent creates a guest. The caller configures Go's runtime through the
// environment.
func newAgent(root string) *agent {
	a := &agent{self: whoAmI(), reaper: newReaper(), procs: newProcTable(), devNull: -1}
	a.files = newFileServer(root, &a.users, a.defaultUser)
	return a
}

// start prepares this process to run commands.
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

// ignoreSignals prevents signals to process 1 from ending it. It catches the
// signals because commands would inherit an ignored disposition.
func ignoreSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGVTALRM, unix.SIGPROF, unix.SIGPIPE, unix.SIGABRT, unix.SIGXCPU, unix.SIGXFSZ,
		unix.SIGIO, unix.SIGPWR, unix.SIGSTKFLT, unix.SIGSYS, unix.SIGTRAP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
}

// leaveChildren resets SIGCHLD to its default action. A Go signal handler would
// interrupt a thread at every end of a child, and the reaper does not need it:
// wait4 works without a handler.
func leaveChildren() {
	var byDefault [4]uint64 // the kernel's struct sigaction, of which all zero is SIG_DFL
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
}

// serve answers one connection until it closes. The foreground commands of the
// connection end with it.
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

// handle performs one operation.
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
	case wire.Background:
		err = a.background(d)
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
	case wire.ShowLimits:
		err = a.bounds.show()
	case wire.Sync:
		unix.Sync()
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

// configure sets the defaults of commands and creates their working directory.
func (a *agent) configure(d *wire.Decoder) error {
	var def wire.Defaults
	def.Decode(d)
	if err := d.End(); err != nil {
		return err
	}
	if os.Getpid() == 1 {
		if err := errors.Join(a.unready, name(def.Hostname), a.bounds.show()); err != nil {
			return fail(sandbox.CodeUnavailable, "", "the sandbox cannot be prepared: "+err.Error())
		}
		if def.Hostname != "" {
			a.mu.Lock()
			a.identity.write(def.Hostname)
			a.mu.Unlock()
		}
	}
	if def.Workdir == "" {
		def.Workdir = "/"
	}
	acc, err := a.users.lookup(def.User)
	if err != nil {
		// Not fatal: a command may create the user later. Starting a command as a
		// missing user fails.
		acc = account{}
	}
	if err := a.files.makeWorkdir(def.Workdir, acc); err != nil {
		return err
	}
	a.record(&def)
	a.mu.Lock()
	a.defaults = def
	a.mu.Unlock()
	if a.restored.Swap(false) {
		a.runHooks()
	}
	return nil
}

// name sets the sandbox's host name, which the kernel leaves to process 1.
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
