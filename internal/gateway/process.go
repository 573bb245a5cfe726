package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/sandbox"
)

// nobody is the uid of the gateway process if Atoll runs as root.
const nobody = 65534

// process is a gateway process and the connection to it.
type process struct {
	patience time.Duration // see processPatience
	conn     *messages.Conn
	proc     *os.Process
	linger   bool
	stderr   *os.File
	left     atomic.Bool // the process lingers and no longer belongs to this one
	stop     sync.Once
	ended    chan struct{} // closed when the process has been waited for

	mu    sync.Mutex
	last  uint64
	calls map[uint64]chan *messages.Message // nil after the connection has ended
	words string                            // its output on standard error
	state *os.ProcessState
}

// startProcess starts a gateway process that can access only the network: it
// runs as nobody, in its own namespaces, with an empty directory as its root.
// It ends when the connection is closed for any reason, unless linger is set.
func startProcess(exe, dir string, linger bool, patience time.Duration) (*process, error) {
	ours, theirs, err := streamPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := messages.FileConn(ours)
	if err != nil {
		return nil, err
	}
	p := &process{conn: conn, linger: linger, patience: patience, calls: map[uint64]chan *messages.Message{}, ended: make(chan struct{})}
	if err := p.exec(exe, dir, theirs); err != nil {
		conn.Close()
		return nil, err
	}
	return p, nil
}

func (p *process) exec(exe, dir string, control *os.File) error {
	root, err := os.Open(filepath.Join(dir, "root"))
	if err != nil {
		return err
	}
	defer root.Close()
	argv, files := []string{messages.Argv0}, []*os.File{control, root}
	if p.linger {
		next, err := listenIn(dir)
		if err != nil {
			return err
		}
		defer next.Close()
		argv, files = append(argv, messages.Linger), append(files, next)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	words, stderr, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stderr.Close()
	p.proc, err = os.StartProcess(exe, argv, &os.ProcAttr{
		Dir: "/", Env: []string{"GOTRACEBACK=single"}, Files: append([]*os.File{null, null, stderr}, files...), Sys: isolated(),
	})
	if err != nil {
		words.Close()
		return err
	}
	p.stderr = words
	go p.wait()
	return nil
}

// isolated puts a process into new namespaces, except for the network.
func isolated() *syscall.SysProcAttr {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = nobody, nobody
	}
	return &syscall.SysProcAttr{
		Setsid:      true,
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: gid, Size: 1}},
		// Root gives up its supplementary groups. Other users cannot.
		GidMappingsEnableSetgroups: os.Geteuid() == 0,
		Credential:                 &syscall.Credential{NoSetGroups: os.Geteuid() != 0},
	}
}

// wait waits for the process, and keeps the beginning of its output.
func (p *process) wait() {
	const most = 2048
	said, _ := io.ReadAll(io.LimitReader(p.stderr, most))
	_, _ = io.Copy(io.Discard, p.stderr)
	p.stderr.Close()
	if p.left.Load() {
		_ = p.proc.Release()
		close(p.ended)
		return
	}
	state, _ := p.proc.Wait()
	p.mu.Lock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
	p.words, p.state = strings.ToValidUTF8(line, "?"), state
	p.mu.Unlock()
	close(p.ended)
}

// said returns why the process ended. Call it only after the end.
func (p *process) said() error {
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words != "" {
		return fmt.Errorf("%s (%s)", p.words, p.state)
	}
	return fmt.Errorf("it ended: %s", p.state)
}

// close ends the process and all pending calls.
func (p *process) close() {
	p.stop.Do(func() {
		p.conn.Close()
		_ = p.proc.Kill()
		<-p.ended
		p.hangUp()
	})
}

// leave closes the connection and leaves the process running.
func (p *process) leave() {
	p.stop.Do(func() {
		p.left.Store(true)
		p.conn.Close()
		p.stderr.Close()
		<-p.ended
		p.hangUp()
	})
}

// hangUp fails all pending calls.
func (p *process) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		close(c)
	}
	p.calls = nil
}

// over reports whether the connection has ended.
func (p *process) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls == nil
}

var errGatewayEnded error = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the gateway process has ended", Hint: "try again: the daemon starts another one"}

// processPatience is how long a gateway process may take to respond. After that
// it is killed and replaced.
const processPatience = 30 * time.Second

// call sends a request and waits for the response.
func (p *process) call(ctx context.Context, m *messages.Message, files ...*os.File) error {
	_, err := p.converse(ctx, m, files)
	return err
}

// ask sends a request for names and waits for the response.
func (p *process) ask(ctx context.Context, m *messages.Message) (map[string]uint16, error) {
	answer, err := p.converse(ctx, m, nil)
	if err != nil {
		return nil, err
	}
	return answer.Names, nil
}

// converse sends a request and waits for its response.
func (p *process) converse(ctx context.Context, m *messages.Message, files []*os.File) (*messages.Message, error) {
	answer := make(chan *messages.Message, 1)
	p.mu.Lock()
	if p.calls == nil {
		p.mu.Unlock()
		return nil, errGatewayEnded
	}
	p.last++
	id := p.last
	p.calls[id] = answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, id)
	}()
	m.ID = id
	silent := time.AfterFunc(p.patience, func() { _ = p.proc.Kill() })
	defer silent.Stop()
	if err := p.conn.Send(m, files...); err != nil {
		return nil, err
	}
	select {
	case a, ok := <-answer:
		switch {
		case !ok:
			return nil, errGatewayEnded
		case a.Error != "":
			return nil, errors.New(a.Error)
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answers reports whether the process responds.
func (p *process) answers(ctx context.Context) bool {
	_, err := p.converse(ctx, &messages.Message{Op: messages.OpNames}, nil)
	return !errors.Is(err, errGatewayEnded) && ctx.Err() == nil
}

// watch periodically checks that the process responds, until it ends. A process
// that does not respond is killed.
func (p *process) watch() {
	tick := time.NewTicker(p.patience)
	defer tick.Stop()
	for {
		select {
		case <-p.ended:
			return
		case <-tick.C:
			p.answers(context.Background())
		}
	}
}

func (p *process) answered(m *messages.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.calls[m.ID]; c != nil {
		c <- m
		delete(p.calls, m.ID)
	}
}

// streamPair returns two connected stream sockets.
func streamPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "gateway"), os.NewFile(uintptr(fds[1]), "gateway"), nil
}
