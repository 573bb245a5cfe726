package kernel

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
)

// Signals by their Linux numbers.
const (
	SIGHUP   = 1
	SIGINT   = 2
	SIGQUIT  = 3
	SIGKILL  = 9
	SIGPIPE  = 13
	SIGTERM  = 15
	SIGCHLD  = 17
	SIGCONT  = 18
	SIGSTOP  = 19
	SIGTTOU  = 22
	SIGURG   = 23
	SIGWINCH = 28
)

// Disposition says what a signal does to a process.
type Disposition byte

// The dispositions.
const (
	Default Disposition = iota
	Ignore
	Catch
)

// Proc is a process. The exported fields and the methods for descriptors
// belong to the process's own goroutine.
type Proc struct {
	K     *Kernel
	PID   int
	PPID  int
	Args  []string
	Dir   string
	Cred  memfs.Cred
	Umask uint32
	TTY   *TTY

	Started time.Time

	env       []string
	sid, pgid int
	ctx       context.Context
	cancel    context.CancelFunc
	done      chan struct{}

	mu       sync.Mutex
	handlers map[int]Disposition
	pending  []int
	signaled chan struct{} // has room for one: a caught signal arrived
	killed   int           // the signal that ends the process
	code     int
	ended    bool // with that code: nothing kills it any more
	fds      map[int]*desc
}

func newProc(k *Kernel, parent *Proc) *Proc {
	p := &Proc{K: k, Umask: 0o022, done: make(chan struct{}), handlers: map[int]Disposition{}, signaled: make(chan struct{}, 1), fds: map[int]*desc{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if parent != nil {
		p.PPID = parent.PID
	}
	return p
}

// Command is what the process runs, for others to ask.
func (p *Proc) Command() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.Args)
}

// Done is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Exit returns the exit status and the signal that ended the process, 0 if
// none did. It is valid once Done is closed.
func (p *Proc) Exit() (code, signal int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, p.killed
}

// Dead reports whether the process is to die. While the kernel is frozen it
// does not return, unless the process is to die: programs ask between any two
// steps.
func (p *Proc) Dead() bool {
	p.gate()
	return p.ctx.Err() != nil
}

// deliver gives processes a signal, all at once: none of them sees another one
// die before it has its own. Stopping and continuing do nothing.
func deliver(targets []*Proc, sig int) {
	var dying []*Proc
	for _, p := range targets {
		if p.take(sig) {
			dying = append(dying, p)
		}
	}
	for _, p := range dying {
		p.cancel()
	}
}

// take notes a signal and reports whether the process is to die of it.
func (p *Proc) take(sig int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.handlers[sig]
	switch {
	case sig == 0 || sig == SIGSTOP || (d == Ignore && sig != SIGKILL):
	case d == Catch && sig != SIGKILL:
		p.pending = append(p.pending, sig)
		select {
		case p.signaled <- struct{}{}:
		default:
		}
	case sig == SIGCHLD || sig == SIGURG || sig == SIGWINCH || sig >= SIGCONT && sig <= SIGTTOU:
	case p.killed == 0 && !p.ended:
		p.killed = sig
		return true
	}
	return false
}

// Handle sets what a signal does and returns what it did before.
func (p *Proc) Handle(sig int, d Disposition) Disposition {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.handlers[sig]
	p.handlers[sig] = d
	return old
}

// Pending returns the caught signals that arrived since the last call.
func (p *Proc) Pending() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	sigs := p.pending
	p.pending = nil
	return sigs
}

// Wait waits for the end of a child, or until p is to die. With interruptible
// set, a caught signal ends the wait with EINTR.
func (p *Proc) Wait(c *Proc, interruptible bool) (status int, err error) {
	var signaled <-chan struct{}
	if interruptible {
		signaled = p.signaled
	}
	select {
	case <-c.done:
		p.gate()
		return c.code, nil
	case <-p.ctx.Done():
		return 0, ErrKilled
	case <-signaled:
		return 0, syscall.EINTR
	}
}

// Path makes a path absolute.
func (p *Proc) Path(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.TrimSuffix(p.Dir, "/") + "/" + name
}

// Chdir changes the directory; the new one is clean.
func (p *Proc) Chdir(dir string) error {
	dir = path.Clean(p.Path(dir))
	info, err := p.K.FS.Stat(p.Cred, dir, true)
	if err != nil {
		return err
	}
	if info.Type != memfs.Dir {
		return syscall.ENOTDIR
	}
	p.Dir = dir
	return p.K.FS.Access(p.Cred, dir, 1)
}

// Environ returns the environment.
func (p *Proc) Environ() []string { return slices.Clone(p.env) }

// Getenv returns a variable of the environment.
func (p *Proc) Getenv(name string) string {
	for _, kv := range slices.Backward(p.env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// Open opens a file for a redirection or a program.
func (p *Proc) Open(name string, flags int, mode uint32) (File, error) {
	o, err := p.K.FS.Open(p.Cred, p.Path(name), flags, mode&^p.Umask)
	switch {
	case err != nil:
		return nil, err
	case o.FIFO != nil:
		return p.openFIFO(o.FIFO, flags)
	case o.Device != "":
		return p.openDevice(o.Device)
	case o.Dir:
		return dirFile{}, nil
	}
	return regular{o.File}, nil
}

func (p *Proc) openFIFO(slot *memfs.FIFOSlot, flags int) (File, error) {
	pipe := slot.Pipe(func() any { return NewPipe() }).(*Pipe)
	if flags&(os.O_WRONLY|os.O_RDWR) != 0 {
		return pipe.openWriter(p.ctx)
	}
	return pipe.openReader(p.ctx)
}

func (p *Proc) openDevice(name string) (File, error) {
	switch name {
	case "null":
		return nullFile{}, nil
	case "zero":
		return zeroFile{}, nil
	case "tty":
		if p.TTY != nil {
			return p.TTY.open(), nil
		}
	}
	return nil, syscall.ENXIO
}

// FD returns a descriptor's file, nil if it is closed.
func (p *Proc) FD(n int) File {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.fds[n]; d != nil {
		return d.File
	}
	return nil
}

// SetFD makes n a descriptor for f, nil for none, and closes what n was.
func (p *Proc) SetFD(n int, f File) {
	var d *desc
	if f != nil {
		d = newDesc(f)
	}
	p.replace(n, d)
}

// Dup makes to the same as from.
func (p *Proc) Dup(from, to int) error {
	p.mu.Lock()
	d := p.fds[from]
	p.mu.Unlock()
	if d == nil {
		return syscall.EBADF
	}
	p.replace(to, d.dup())
	return nil
}

func (p *Proc) replace(n int, d *desc) {
	p.mu.Lock()
	old := p.fds[n]
	if d != nil {
		p.fds[n] = d
	} else {
		delete(p.fds, n)
	}
	p.mu.Unlock()
	if old != nil {
		old.release()
	}
}

// Saved is a descriptor put aside by Save.
type Saved struct {
	n int
	d *desc
}

// Save puts a descriptor aside, so that it can be changed and restored.
func (p *Proc) Save(n int) Saved {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Saved{n: n}
	if d := p.fds[n]; d != nil {
		s.d = d.dup()
	}
	return s
}

// Restore undoes changes since Save.
func (p *Proc) Restore(s Saved) { p.replace(s.n, s.d) }

// Drop forgets what Save put aside.
func (p *Proc) Drop(s Saved) {
	if s.d != nil {
		s.d.release()
	}
}

func (p *Proc) closeAll() {
	p.mu.Lock()
	fds := p.fds
	p.fds = map[int]*desc{}
	p.mu.Unlock()
	for _, d := range fds {
		d.release()
	}
}

// stream is a descriptor as an io.Reader and io.Writer.
type stream struct {
	p *Proc
	n int
}

// Stream returns a descriptor as a reader and writer. Writing to a pipe that
// nobody reads kills the process, as everywhere.
func (p *Proc) Stream(n int) io.ReadWriter { return stream{p, n} }

func (s stream) Read(b []byte) (int, error) {
	f := s.p.FD(s.n)
	if f == nil {
		return 0, syscall.EBADF
	}
	if s.p.Dead() {
		return 0, ErrKilled
	}
	defer s.p.gate()
	return f.Read(s.p.ctx, b)
}

func (s stream) Write(b []byte) (int, error) {
	f := s.p.FD(s.n)
	if f == nil {
		return 0, syscall.EBADF
	}
	if s.p.Dead() {
		return 0, ErrKilled
	}
	n, err := f.Write(s.p.ctx, b)
	s.p.gate()
	if err == syscall.EPIPE {
		deliver([]*Proc{s.p}, SIGPIPE)
	}
	return n, err
}

// File returns an open file as a reader and writer that end with the process.
func (p *Proc) File(f File) io.ReadWriter { return bound{p, f} }

type bound struct {
	p *Proc
	f File
}

func (b bound) Read(buf []byte) (int, error) {
	defer b.p.gate()
	return b.f.Read(b.p.ctx, buf)
}

func (b bound) Write(buf []byte) (int, error) {
	b.p.gate()
	return b.f.Write(b.p.ctx, buf)
}

// Errorf writes a line to descriptor 2 that begins with the program's name.
func (p *Proc) Errorf(format string, args ...any) {
	name := ""
	if len(p.Args) > 0 {
		name = path.Base(p.Args[0]) + ": "
	}
	fmt.Fprintf(p.Stream(2), "%s%s\n", name, fmt.Sprintf(format, args...))
}
