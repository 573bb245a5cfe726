package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox. Commands and files go through the guest's client,
// which has its own connection to the guest.
type Instance struct {
	guestkit.Calls
	p        *Provider
	stateDir stateDir
	rec      *record

	// The guest's client or, without one, the reason: the sandbox did not answer,
	// or was paused when it was attached. Otherwise it had ended. mu guards these
	// fields until reach has returned.
	client      *guest.Client
	unreachable error
	asleep      bool
	waking      chan struct{} // held while waiting for a paused sandbox
	resting     chan struct{} // held while pausing or resuming
	lock        *os.File      // the lock that all processes take; only while resting is held

	kernelState func() *os.ProcessState // nil if the kernel is not our child
	ended       chan struct{}           // closed when the kernel has ended
	released    chan struct{}           // closed when this process releases the sandbox
	once        sync.Once
	destroyed   atomic.Bool
	memory      *memoryGuard
	seen        atomic.Pointer[os.FileInfo] // of the record when it was last read, if it did not say Destroying

	mu       sync.Mutex
	reason   sandbox.Reason // why we ended it, if we did
	lifetime *time.Timer
}

func newInstance(p *Provider, b stateDir, r *record) *Instance {
	in := &Instance{
		p: p, stateDir: b, rec: r, ended: make(chan struct{}), released: make(chan struct{}),
		waking: make(chan struct{}, 1), resting: make(chan struct{}, 1),
	}
	in.memory = &memoryGuard{rec: r, stateDir: b, end: in.end, ended: in.ended, released: in.released}
	in.Use = in.use
	return in
}

// ID names the sandbox.
func (in *Instance) ID() sandbox.ID { return in.rec.ID }

// watchChildren waits for the processes of a sandbox that this process started.
func (in *Instance) watchChildren(l *launched) {
	in.kernelState = func() *os.ProcessState { return l.kernel.state }
	go func() {
		<-l.kernel.done
		close(in.ended)
	}()
	if l.gofer == nil {
		return
	}
	go func() {
		select {
		case <-l.kernel.done: // the file server exits by itself
		case <-l.gofer.done:
			// Without its file server the sandbox would hang.
			_ = l.kernel.proc.Kill()
		}
	}()
}

// reattachTime limits connecting to a sandbox that another process started. A
// failed attempt is repeated later.
const reattachTime = 30 * time.Second

// reattach connects to a sandbox that another process started.
func (in *Instance) reattach(ctx context.Context) error {
	if in.stateDir.dead() {
		close(in.ended)
		return nil
	}
	if err := in.watchKernel(); err != nil {
		return err
	}
	if in.rec.cgroup().AtLimit() {
		in.memory.starving()
	}
	in.memory.watchLimit()
	in.expireAt(in.rec.Expires)
	in.contact(ctx)
	return nil
}

// contact connects to the guest unless the sandbox is paused. If it fails, the
// sandbox can still be waited for and destroyed, and contact can be retried.
func (in *Instance) contact(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reattachTime)
	defer cancel()
	asleep, failed, again := in.tryContact(ctx)
	for again && ctx.Err() == nil && !isClosed(in.ended) {
		time.Sleep(pollFree)
		asleep, failed, again = in.tryContact(ctx)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asleep, in.unreachable = asleep, failed
}

// tryContact connects to the guest. If the sandbox was at its memory limit a moment
// ago, the attempt is short, and another one may succeed. If it still is, tryContact
// does not try: once the host has refused gVisor's kernel the memory for a
// connection, the kernel accepts no other.
func (in *Instance) tryContact(ctx context.Context) (asleep bool, failed error, again bool) {
	short := in.memory.short()
	if short && !in.memory.full.Load() && in.rec.cgroup().AtLimit() {
		return false, &providerError{sandbox.CodeUnavailable, fmt.Sprintf("sandbox %s is at its memory limit", in.rec.ID), nil}, true
	}
	if short {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, freeTime)
		defer cancel()
	}
	asleep, failed = in.connect(ctx)
	return asleep, failed, short && failed != nil
}

// retry connects again after a failed contact.
func (in *Instance) retry(ctx context.Context) error {
	if in.reachable() {
		return nil
	}
	select {
	case in.waking <- struct{}{}:
		defer func() { <-in.waking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if in.reachable() { // another call has connected
		return nil
	}
	in.contact(ctx)
	return nil
}

// reachable reports whether the last attempt to reach the sandbox did not fail.
// It is true for a sandbox that has ended.
func (in *Instance) reachable() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	select {
	case <-in.ended:
		return true
	default:
		return in.unreachable == nil
	}
}

// connect connects to the guest of a sandbox that another process started. It
// first wakes a sandbox whose pause, save or stop another process did not
// finish. It does not connect to a paused one.
func (in *Instance) connect(ctx context.Context) (asleep bool, err error) {
	var conn *guest.Pipes
	err = in.locked(ctx, func(ctx context.Context, rest string) (err error) {
		if rest == paused {
			asleep = true
			return nil
		}
		if rest != awake {
			if err := in.settleRest(ctx); err != nil {
				return err
			}
		}
		conn, err = in.connectGuest(ctx) // with the lock: the helper process inside cannot be saved
		return err
	})
	if err == nil && !asleep {
		err = in.dial(ctx, conn)
	}
	if err != nil {
		return false, &providerError{sandbox.CodeUnavailable, fmt.Sprintf("sandbox %s cannot be reached", in.rec.ID), err}
	}
	return asleep, nil
}

// reach waits for a client, or returns why there is none.
func (in *Instance) reach(ctx context.Context) error {
	in.mu.Lock()
	client, unreachable, asleep := in.client, in.unreachable, in.asleep
	in.mu.Unlock()
	switch {
	case client != nil:
		return nil
	case unreachable != nil:
		return unreachable
	case !asleep:
		return in.endedError()
	}
	select {
	case in.waking <- struct{}{}:
		defer func() { <-in.waking }()
		return in.wake(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wakePoll is the interval of checking a sandbox that another process paused.
const wakePoll = 20 * time.Millisecond

// wake waits until any process resumes the sandbox, and connects.
func (in *Instance) wake(ctx context.Context) error {
	in.mu.Lock()
	done := in.client != nil
	in.mu.Unlock()
	if done {
		return nil // another call has connected
	}
	for {
		if rest, err := in.stateDir.rest(); err != nil {
			return err
		} else if rest != paused {
			if asleep, err := in.connect(ctx); err != nil || !asleep {
				return err
			}
		}
		select {
		case <-time.After(wakePoll):
		case <-in.ended:
			return in.endedError()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watchKernel closes ended when a kernel that is not our child ends.
func (in *Instance) watchKernel() error {
	fd, err := unix.PidfdOpen(in.rec.Kernel.PID, unix.PIDFD_NONBLOCK)
	if err != nil || !in.rec.Kernel.alive() {
		if err == nil {
			unix.Close(fd)
		}
		close(in.ended)
		return nil //nolint:nilerr // a process that is not there has ended
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return err
	}
	go func() {
		defer f.Close()
		gone := false
		_ = raw.Read(func(fd uintptr) bool {
			gone = pidfdEnded(int(fd))
			return gone
		})
		if gone {
			close(in.ended)
		}
	}()
	go func() { // wakes the goroutine above
		select {
		case <-in.released:
			if in.destroyed.Load() {
				return // the kernel was killed: let its end close in.ended
			}
			_ = f.SetReadDeadline(time.Unix(1, 0))
		case <-in.ended:
		}
	}()
	return nil
}

func pidfdEnded(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1
}

func (in *Instance) dial(ctx context.Context, conn *guest.Pipes) error {
	client, err := guest.Dial(ctx, conn, guest.Options{Ended: in.endedFor, Lost: in.lost, Overdue: in.overdue})
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.client, in.asleep = client, false
	return nil
}

// end kills the sandbox and records the reason.
func (in *Instance) end(why sandbox.Reason) {
	in.mu.Lock()
	if in.reason == "" {
		in.reason = why
	}
	in.mu.Unlock()
	in.rec.cgroup().Kill()
	in.rec.Kernel.kill()
}

// Wait waits until the sandbox has ended. See driver.Instance.
func (in *Instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-in.ended:
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
	return in.exit(), nil
}

func (in *Instance) exit() sandbox.Exit {
	in.mu.Lock()
	why := in.reason
	in.mu.Unlock()
	if why == "" && in.stateDir.destroying() {
		why = sandbox.ReasonKilled
	}
	exit := in.current().outcome(in.stateDir, why)
	if why == "" && in.kernelState != nil && exit.Reason == sandbox.ReasonCrashed {
		return withStatus(exit, in.kernelState())
	}
	return exit
}

// withStatus tells the end of the guest, which ends the sandbox, from a crash
// of the kernel.
func withStatus(exit sandbox.Exit, st *os.ProcessState) sandbox.Exit {
	ws, ok := st.Sys().(syscall.WaitStatus)
	if !ok || exit.Detail != "" {
		return exit
	}
	if ws.Signaled() {
		exit.Detail = "its kernel was killed by signal " + strconv.Itoa(int(ws.Signal()))
		exit.Signal = int(ws.Signal())
		exit.Code = 128 + exit.Signal
		return exit
	}
	return sandbox.Exit{Code: ws.ExitStatus(), Reason: sandbox.ReasonExited, Detail: "its first process ended"}
}

// doom records for other processes that the sandbox is being destroyed.
func (in *Instance) doom() {
	_ = in.update(func(r *record) error {
		r.Destroying = true
		return nil
	})
}

// update changes the record of the sandbox. A missing record means that the
// sandbox was destroyed.
func (in *Instance) update(change func(*record) error) error {
	err := in.stateDir.update(change)
	if errors.Is(err, fs.ErrNotExist) {
		return goneError(in.rec.ID)
	}
	return err
}

// current returns the current record. Fields that never change can be read from
// in.rec instead.
func (in *Instance) current() *record {
	if r, err := in.stateDir.load(); err == nil {
		return r
	}
	return in.rec
}

// alive returns an error if the sandbox has ended.
func (in *Instance) alive(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if in.destroyed.Load() {
		return goneError(in.rec.ID)
	}
	select {
	case <-in.ended:
		return in.endedError()
	default:
		return nil
	}
}

// gone reports whether the sandbox was destroyed by any process. It reads the
// record again only if its file has changed: each change replaces the file.
func (in *Instance) gone() bool {
	if in.destroyed.Load() {
		return true
	}
	now, err := os.Stat(in.stateDir.path(fileRecord))
	if seen := in.seen.Load(); err == nil && seen != nil && sameFile(*seen, now) {
		return false
	}
	if in.stateDir.destroying() {
		return true
	}
	if err == nil {
		in.seen.Store(&now)
	}
	return false
}

// sameFile reports whether a and b describe the same unchanged file.
func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// Destroy removes the sandbox. See driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	in.destroyed.Store(true)
	in.doom()
	in.end(sandbox.ReasonKilled)
	in.release()
	removed := make(chan error, 1)
	go func() { removed <- in.remove() }()
	select {
	case err := <-removed:
		return err
	case <-ctx.Done():
		return ctx.Err() // the removal goes on
	}
}

// killTime limits waiting for the end of a killed kernel.
const killTime = 10 * time.Second

func (in *Instance) remove() error {
	if err := in.p.opts.Fault("destroy.killed"); err != nil {
		return err
	}
	if !in.stateDir.awaitDeath(killTime) {
		return errors.New("the sandbox's kernel does not end")
	}
	if err := in.stateDir.remove(in.current()); err != nil {
		return err
	}
	in.p.mu.Lock()
	defer in.p.mu.Unlock()
	if in.p.instances[in.rec.ID] == in {
		delete(in.p.instances, in.rec.ID)
	}
	return nil
}

// release closes the connections to the sandbox without ending it.
func (in *Instance) release() {
	in.once.Do(func() {
		close(in.released)
		in.mu.Lock()
		if in.lifetime != nil {
			in.lifetime.Stop()
		}
		client := in.client
		in.mu.Unlock()
		if client != nil {
			client.Close()
		}
		in.memory.stopWatching()
	})
}

// outcome returns how a sandbox ended. why is our own reason, if we ended it;
// otherwise outcome looks at the evidence in the state directory.
func (r *record) outcome(b stateDir, why sandbox.Reason) sandbox.Exit {
	killed := sandbox.Exit{Code: 128 + int(unix.SIGKILL), Signal: int(unix.SIGKILL)}
	said := b.lastWords()
	rest, _ := b.rest()
	switch {
	case rest == stopped:
		killed.Reason, killed.Detail = sandbox.ReasonKilled, "its state was written to a snapshot, and it was ended"
	case r.Kernel.elsewhen():
		killed.Reason, killed.Detail = sandbox.ReasonCrashed, "the machine was restarted"
	case why == sandbox.ReasonKilled:
		killed.Reason, killed.Detail = why, "it was destroyed"
	case why == sandbox.ReasonLifetime, !r.Expires.IsZero() && time.Now().After(r.Expires):
		killed.Reason, killed.Detail = sandbox.ReasonLifetime, "its lifetime is over"
	case why == sandbox.ReasonMemory, r.cgroup().MemoryKills()+b.starved() > 0: // perhaps long ago
		killed.Reason, killed.Detail = sandbox.ReasonMemory, "it reached its memory limit"
	case said != "" && r.cgroup().Refuses(withDefaults(r.Spec.Resources).Memory):
		killed.Reason, killed.Detail = sandbox.ReasonMemory, "it reached its memory limit, and its kernel failed: "+said
	case said != "":
		killed.Reason, killed.Detail = sandbox.ReasonCrashed, "its kernel failed: "+said
	default:
		killed.Reason = sandbox.ReasonCrashed
	}
	return killed
}

// lastWords returns the first line of the kernel's or the file server's crash
// message.
func (d stateDir) lastWords() string {
	f, err := os.Open(d.path(filePanic))
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 512)
	n, _ := f.Read(buf)
	line, _, _ := strings.Cut(strings.TrimSpace(string(buf[:n])), "\n")
	return strings.ToValidUTF8(line, "?")
}
