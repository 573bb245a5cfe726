package agent

import (
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// keepEnded is how many ended commands are remembered. keepArgs is how many
// bytes of arguments are remembered per command.
const (
	keepEnded = 64
	keepArgs  = 16 << 10
)

// proc is one command.
type proc struct {
	cmd   *sandbox.Command
	pid   int
	group int  // its first process group and session
	pidfd int  // for a command on the fast path (see begin), else -1
	ended bool // it has ended, but was not reaped
	io    stdio
	log   *cmdLog       // of a background command
	seat  *seat         // of a command that callers can rejoin
	done  chan struct{} // closed at the end

	within *bounds

	mu      sync.Mutex
	info    sandbox.ProcessInfo
	timeout bool // it exceeded its timeout
	dropped bool // its caller gave it up, killed it or was lost while it ran
	alone   bool // it left no processes behind
	timer   *time.Timer
}

func newProc(c *sandbox.Command) *proc {
	return &proc{cmd: c, pidfd: -1, done: make(chan struct{})}
}

// setTimer ends the command when its timeout, counted from its start, has
// passed. It does nothing if the command has no timeout or has ended. p.mu is
// held.
func (p *proc) setTimer() {
	if p.cmd.Timeout > 0 && p.pid > 0 && p.info.Running {
		p.timer = time.AfterFunc(p.cmd.Timeout-time.Since(p.info.Started), p.expire)
	}
}

// exited records the end of the command.
func (p *proc) exited(e ending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := sandbox.Exit{Code: e.status.ExitStatus(), Reason: sandbox.ReasonExited}
	if e.status.Signaled() {
		x.Signal = int(e.status.Signal())
		x.Code, x.Reason = 128+x.Signal, sandbox.ReasonSignaled
	}
	if p.timeout {
		x.Reason, x.Detail = sandbox.ReasonTimeout, "ended after "+p.cmd.Timeout.String()
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.alone = e.alone
	p.finish(x)
}

// finish is called once, with mu held.
func (p *proc) finish(x sandbox.Exit) {
	p.info.Running, p.info.Exit = false, &x
	close(p.done)
}

// snapshot returns the current state of the command.
func (p *proc) snapshot() sandbox.ProcessInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.info
}

// leftNothing reports whether the command has ended and left no processes.
func (p *proc) leftNothing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.info.Running && p.alone
}

// expire ends a command that exceeded its timeout, with all its processes.
func (p *proc) expire() {
	p.mu.Lock()
	if !p.info.Running {
		p.mu.Unlock()
		return
	}
	p.timeout = true
	p.mu.Unlock()
	p.killTree()
}

// drop ends a command that its client gave up, with all its processes. It does
// not affect the orphans of a command that has ended.
func (p *proc) drop() {
	if p.giveUp() {
		p.killTree()
	}
}

// dropSoon is drop, but returns when the command can no longer be hung up
// instead.
func (p *proc) dropSoon() {
	if p.giveUp() {
		go p.killTree()
	}
}

// giveUp records that a command's client gave it up. It reports whether the
// command runs.
func (p *proc) giveUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.info.Running || p.pid == 0 {
		return false
	}
	p.dropped = true
	return true
}

// hangUpGrace is how long a command that was hung up may take to end.
const hangUpGrace = 10 * time.Second

// hangUp ends a command whose caller is gone, as the loss of a terminal would:
// all its processes get SIGHUP, and SIGCONT in case they are stopped. What still
// runs when the command has ended, or after hangUpGrace, is killed. It returns
// at once, and does not affect the orphans of a command that has ended.
func (p *proc) hangUp() {
	p.mu.Lock()
	if !p.info.Running || p.pid == 0 || p.dropped {
		p.mu.Unlock()
		return
	}
	p.dropped = true
	all := p.tree()
	for _, q := range all {
		_ = syscall.Kill(q.pid, syscall.SIGHUP)
		_ = syscall.Kill(q.pid, syscall.SIGCONT)
	}
	if len(all) == 0 { // there is no /proc
		_ = p.killGroup(syscall.SIGHUP)
		_ = p.killGroup(syscall.SIGCONT)
	}
	p.mu.Unlock()
	go func() {
		late := time.NewTimer(hangUpGrace)
		defer late.Stop()
		select {
		case <-p.done:
			p.killRest(all)
		case <-late.C:
			p.killTree()
		}
	}()
}

// endedItself reports whether the command ended by itself, and not because of
// its timeout or its caller. Its orphans then continue to run.
func (p *proc) endedItself() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.info.Running && !p.timeout && !p.dropped
}

// kill signals the command's process group. SIGKILL ends all processes that the
// command started.
func (p *proc) kill(sig syscall.Signal) error {
	if sig != syscall.SIGKILL {
		return p.signal(sig)
	}
	if err := p.signal(0); err != nil {
		return err
	}
	p.drop()
	return nil
}

// signal signals the command's process group. The lock delays recording the
// end, so that the process number cannot be reused meanwhile.
func (p *proc) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.info.Running {
		return fail(sandbox.CodeNotFound, p.info.ID, "the process has ended")
	}
	err := p.killGroup(sig)
	if err == syscall.ESRCH {
		return fail(sandbox.CodeNotFound, p.info.ID, "the process has ended")
	}
	return about(p.info.ID, err)
}

// killGroup signals the command's own process group if it has created one, else
// the group it was started in.
func (p *proc) killGroup(sig syscall.Signal) error {
	err := syscall.Kill(-p.pid, sig)
	if err == syscall.ESRCH {
		err = syscall.Kill(-p.group, sig)
	}
	return err
}

// procTable remembers commands.
type procTable struct {
	logs logs

	mu    sync.Mutex
	last  int
	byID  map[string]*proc
	order []*proc // in order of their start
	ended []*proc // in order of their end
}

func newProcTable() *procTable { return &procTable{byID: map[string]*proc{}} }

// add assigns an ID to a command.
func (t *procTable) add(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	p.info = sandbox.ProcessInfo{
		ID: "p" + strconv.Itoa(t.last), Args: keptArgs(p.cmd), Started: time.Now(),
		Background: p.cmd.Background, TTY: p.cmd.TTY != nil, Running: true,
	}
	t.byID[p.info.ID] = p
	t.order = append(t.order, p)
}

// keptArgs returns the arguments to remember, cut if they are long.
func keptArgs(c *sandbox.Command) []string {
	args := c.Args
	if c.Shell != "" {
		args = []string{"/bin/sh", "-c", c.Shell}
	}
	kept, room := []string(nil), keepArgs
	for _, a := range args {
		if len(a) >= room {
			return append(kept, string([]byte(a[:room])))
		}
		room -= len(a) + 1
		kept = append(kept, string([]byte(a)))
	}
	return kept
}

// retire records that p has ended and forgets the oldest ended commands.
// Processes that were never added are not commands.
func (t *procTable) retire(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[p.info.ID] != p {
		return
	}
	t.ended = append(t.ended, p)
	if len(t.ended) <= keepEnded {
		return
	}
	old := t.ended[0]
	t.ended = append(t.ended[:0:0], t.ended[1:]...)
	delete(t.byID, old.info.ID)
	t.order = slices.DeleteFunc(t.order, func(p *proc) bool { return p == old })
	if old.seat != nil {
		old.seat.forget()
	}
}

// get finds a command by its ID.
func (t *procTable) get(id string) (*proc, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		return p, nil
	}
	if isOrphanID(id) {
		return nil, fail(sandbox.CodeConflict, id, "the process was left behind by a command: it can be listed and killed, but not attached to")
	}
	return nil, fail(sandbox.CodeNotFound, id, "no such process")
}

// list returns all known commands, oldest first.
func (t *procTable) list() []*proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// closeAll ends every command.
func (t *procTable) closeAll() {
	for _, p := range t.list() {
		if p.snapshot().Running {
			p.drop()
		}
	}
}
