// Package kernel is as much of an operating system as the fake provider needs:
// processes with parents, sessions and signals, file descriptors, pipes and
// terminals. A process is a goroutine that runs a [Program]; nothing here
// starts a process of the real machine or touches its files.
//
// A process cannot be stopped from outside. It dies when its program notices,
// which every blocking call here makes it do: all of them end with [ErrKilled]
// when the process is to die.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
)

// ErrKilled ends every call of a process that is to die.
var ErrKilled = errors.New("killed")

// Program is the code of a process. What it returns is the exit status.
type Program func(p *Proc) int

// magic begins an executable file that holds the name of a Program.
const magic = "\x7fFAKE\x00"

// maxProcs is how many processes there can be at once: a fork bomb ends here.
const maxProcs = 4096

// Kernel holds the processes of one sandbox.
type Kernel struct {
	FS       *memfs.FS
	Programs map[string]Program
	Hostname string

	frozen atomic.Pointer[chan struct{}] // set while no process may go on; closed when they may

	mu      sync.Mutex
	procs   map[int]*Proc
	lastPID int
	stopped bool
	idle    sync.WaitGroup // processes
	limit   int            // how many of them there can be
	ports   map[uint16]*Listener
}

// New returns a kernel without processes. The programs are what executable
// files made by Install run.
func New(files *memfs.FS, programs map[string]Program) *Kernel {
	return &Kernel{FS: files, Programs: programs, procs: map[int]*Proc{}, limit: maxProcs}
}

// Install writes an executable file that runs the program of the same name as
// the path's last element.
func (k *Kernel) Install(p string) error {
	o, err := k.FS.Open(memfs.Cred{}, p, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	_, err = o.File.Write([]byte(magic + path.Base(p)))
	return err
}

// Spawn describes a process to start.
type Spawn struct {
	Args []string
	Env  []string
	Dir  string
	Cred memfs.Cred
	// Files become the descriptors 0, 1, 2 …; the process closes them.
	Files []File
	TTY   *TTY // the controlling terminal, if any
	// Main, if not nil, runs instead of the program that Args names.
	Main Program
}

// ErrNoProcess means that the kernel is being stopped or has too many processes.
var ErrNoProcess = errors.New("no process can be started")

// Start starts a process in a session of its own. If its program cannot be
// run, the process says why on descriptor 2 and ends with 126 or 127, as in a
// shell. The files are closed in any case.
func (k *Kernel) Start(s Spawn) (*Proc, error) {
	p := newProc(k, nil)
	p.Args, p.env, p.Dir, p.Cred, p.TTY = s.Args, s.Env, s.Dir, s.Cred, s.TTY
	for i, f := range s.Files {
		p.fds[i] = newDesc(f)
	}
	if !k.register(p) {
		p.closeAll()
		return nil, ErrNoProcess
	}
	if s.TTY != nil {
		s.TTY.lead(p)
	}
	if s.Main != nil {
		go p.run(s.Main)
		return p, nil
	}
	go p.run(func(p *Proc) int {
		if info, err := k.FS.Stat(p.Cred, p.Dir, true); err != nil || info.Type != memfs.Dir {
			p.Errorf("cannot change to directory %s: %v", p.Dir, reason(err, syscall.ENOTDIR))
			return 126
		}
		return p.Exec(p.Args, p.env)
	})
	return p, nil
}

func reason(err error, other syscall.Errno) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return other
}

// register gives a process its PID and, if it has no session, a new one.
func (k *Kernel) register(p *Proc) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped || len(k.procs) >= k.limit {
		return false
	}
	k.lastPID++
	p.PID, p.Started = k.lastPID, time.Now()
	if p.sid == 0 {
		p.sid, p.pgid = p.PID, p.PID
	}
	k.procs[p.PID] = p
	k.idle.Add(1)
	return true
}

func (k *Kernel) remove(p *Proc) {
	k.mu.Lock()
	delete(k.procs, p.PID)
	k.mu.Unlock()
	k.idle.Done()
}

// find returns the processes for which match holds.
func (k *Kernel) find(match func(*Proc) bool) []*Proc {
	k.mu.Lock()
	defer k.mu.Unlock()
	var found []*Proc
	for _, p := range k.procs {
		if match(p) {
			found = append(found, p)
		}
	}
	return found
}

// Kill sends a signal to a process or, for a negative pid, to a group, and
// reports whether there was one. Signal 0 only looks.
func (k *Kernel) Kill(pid, sig int) bool {
	targets := k.find(func(p *Proc) bool { return p.PID == pid || (pid < 0 && p.pgid == -pid) })
	deliver(targets, sig)
	return len(targets) > 0
}

// KillSession kills all processes of the session that leader began.
func (k *Kernel) KillSession(leader int) {
	deliver(k.find(func(p *Proc) bool { return p.sid == leader }), SIGKILL)
}

// Orphans returns the processes that outlived those that started them, in the
// order of their start.
func (k *Kernel) Orphans() []*Proc {
	found := k.find(func(p *Proc) bool { return p.PPID != 0 && k.procs[p.PPID] == nil })
	slices.SortFunc(found, func(a, b *Proc) int { return a.PID - b.PID })
	return found
}

// KillTree sends a signal to a process and all that descends from it.
func (k *Kernel) KillTree(pid, sig int) {
	deliver(k.find(func(p *Proc) bool {
		for ; p != nil; p = k.procs[p.PPID] {
			if p.PID == pid {
				return true
			}
		}
		return false
	}), sig)
}

// Stop kills all processes and waits for their end. No process can be started
// afterwards.
func (k *Kernel) Stop() {
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	deliver(k.find(func(*Proc) bool { return true }), SIGKILL)
	k.idle.Wait()
}

func (k *Kernel) stopping() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopped
}

// run is the goroutine of a process.
func (p *Proc) run(main Program) {
	code := main(p)
	p.mu.Lock()
	if p.killed != 0 {
		code = 128 + p.killed
	}
	p.code, p.ended = code&0xff, true
	p.mu.Unlock()
	p.cancel()
	p.closeAll()
	p.K.remove(p)
	close(p.done)
}

// Fork starts a child that shares what a child shares: descriptors, session,
// directory, environment and ignored signals. It returns nil when there are too
// many processes, or the kernel is being stopped.
func (p *Proc) Fork(main Program) *Proc {
	c := newProc(p.K, p)
	c.Args, c.env, c.Dir, c.Cred, c.Umask, c.TTY, c.sid, c.pgid = p.Args, p.env, p.Dir, p.Cred, p.Umask, p.TTY, p.sid, p.pgid
	p.mu.Lock()
	for sig, d := range p.handlers {
		if d == Ignore {
			c.handlers[sig] = Ignore
		}
	}
	for n, d := range p.fds {
		c.fds[n] = d.dup()
	}
	p.mu.Unlock()
	if !p.K.register(c) {
		c.closeAll()
		if p.K.stopping() { // It is about to be killed, and must not go on as if one program had failed.
			deliver([]*Proc{p}, SIGKILL)
		}
		return nil
	}
	if p.Dead() { // It was told to die while the child was made; so must the child.
		deliver([]*Proc{c}, SIGKILL)
	}
	go c.run(main)
	return c
}

// Exec runs another program in place of the calling one and returns its exit
// status; the caller has to return it at once. Errors are reported on
// descriptor 2.
func (p *Proc) Exec(args, env []string) int {
	p.mu.Lock()
	for sig, d := range p.handlers {
		if d == Catch {
			delete(p.handlers, sig)
		}
	}
	p.Args = args
	p.mu.Unlock()
	p.env = env
	file, err := p.look(args[0])
	if err == nil {
		return p.execFile(file, 0)
	}
	fmt.Fprintf(p.Stream(2), "%s: %v\n", args[0], reason(err, syscall.ENOENT))
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return 127
	}
	return 126
}

// look finds a program as execvp does.
func (p *Proc) look(name string) (string, error) {
	if strings.Contains(name, "/") {
		return p.Path(name), p.executable(p.Path(name))
	}
	var denied error
	for dir := range strings.SplitSeq(p.Getenv("PATH"), ":") {
		file := p.Path(path.Join("./"+dir, name))
		if strings.HasPrefix(dir, "/") {
			file = path.Join(dir, name)
		}
		err := p.executable(file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, syscall.EACCES) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", syscall.ENOENT
}

// Look finds a program for the builtin command -v.
func (p *Proc) Look(name string) (string, error) { return p.look(name) }

func (p *Proc) executable(file string) error {
	info, err := p.K.FS.Stat(p.Cred, file, true)
	if err != nil {
		return err
	}
	if info.Type != memfs.File {
		return &fs.PathError{Op: "exec", Path: file, Err: syscall.EACCES}
	}
	return p.K.FS.Access(p.Cred, file, 1)
}

// execFile runs a file that holds a program's name or begins with #!.
func (p *Proc) execFile(file string, depth int) int {
	head := make([]byte, 256)
	o, err := p.K.FS.Open(memfs.Cred{}, file, os.O_RDONLY, 0)
	if err != nil || o.File == nil {
		p.Errorf("%s: cannot be read", file)
		return 126
	}
	n, _ := o.File.Read(head)
	text := string(head[:n])
	if name, ok := strings.CutPrefix(text, magic); ok {
		if main, ok := p.K.Programs[name]; ok {
			return main(p)
		}
	}
	line, ok := strings.CutPrefix(text, "#!")
	if !ok || depth > 4 {
		p.Errorf("%s: %v", file, syscall.ENOEXEC)
		return 126
	}
	line, _, _ = strings.Cut(line, "\n")
	interpreter, arg, has := strings.Cut(strings.TrimSpace(line), " ")
	args := []string{interpreter}
	if has {
		args = append(args, strings.TrimSpace(arg))
	}
	p.Args = append(append(args, file), p.Args[1:]...)
	if err := p.executable(interpreter); err != nil {
		p.Errorf("%s: bad interpreter: %v", file, reason(err, syscall.ENOENT))
		return 126
	}
	return p.execFile(interpreter, depth+1)
}

// Sleep waits for d, or until the process is to die.
func (p *Proc) Sleep(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		p.gate()
		return nil
	case <-p.ctx.Done():
		return ErrKilled
	}
}
