package microvm

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a virtual machine with a guest in it.
type Instance struct {
	*guestkit.Instance
	p        *Provider
	id       sandbox.ID
	stateDir stateDir
	rec      *record // what does not change; see current

	once     sync.Once
	released chan struct{} // closed when this process does not use it any more
	greeting byte          // the next call to the guest's door; 0: DoorLink
}

var _ guestkit.Service = (*Instance)(nil)

// PID returns the number of QEMU's process.
func (in *Instance) PID() int { return in.rec.Machine.PID }

// current returns the present record.
func (in *Instance) current() *record {
	if r, err := in.stateDir.load(); err == nil {
		return r
	}
	return in.rec
}

// Status implements guestkit.Service.
func (in *Instance) Status(ctx context.Context) (s guestkit.Status, err error) {
	r, err := in.stateDir.load()
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && (r.Destroying || !r.Machine.alive()):
		return s, gone(in.id)
	case err != nil:
		return s, err
	}
	s.State, s.Ends = sandbox.Running, r.Expires
	state, err := in.stateDir.machineState(ctx)
	if state == statePaused {
		s.State = sandbox.Paused
	}
	if err != nil && !r.Machine.alive() {
		return s, gone(in.id)
	}
	if err != nil && ctx.Err() == nil {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.id), Message: "QEMU does not answer", Cause: err}
	}
	return s, err
}

// Answers implements guestkit.Service.
func (in *Instance) Answers(context.Context) bool { return in.rec.Machine.alive() }

// Cause implements guestkit.Service.
func (in *Instance) Cause(time.Time) sandbox.Exit {
	r, err := in.stateDir.load()
	if err != nil {
		return guestkit.Killed
	}
	return r.outcome()
}

// watch notes the end of the machine at once.
func (in *Instance) watch() {
	if fd, err := unix.PidfdOpen(in.rec.Machine.PID, unix.PIDFD_NONBLOCK); err == nil && in.rec.Machine.alive() {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer f.Close()
		defer context.AfterFunc(in.life(), func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Read(func(fd uintptr) bool {
				p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(p, 0)
				return err == nil && n == 1
			})
		}
	} else if err == nil {
		unix.Close(fd)
	}
	select {
	case <-in.released:
	default:
		_, _, _ = in.Ask(context.Background())
	}
}

// life is a context that ends when this process does not use the sandbox any
// more.
func (in *Instance) life() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-in.released
		cancel()
	}()
	return ctx
}

// release closes the connections with the sandbox.
func (in *Instance) release() {
	in.once.Do(func() {
		close(in.released)
		in.Disconnect()
	})
}

// pausePoll is the interval at which a paused machine is asked whether it runs.
const pausePoll = 100 * time.Millisecond

// awake waits until a paused machine is resumed, and connects with the guest.
// Calls on an existing connection wait for its answer.
func (in *Instance) awake(ctx context.Context) error {
	for {
		_, err := in.Reach(ctx)
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return err
		}
		select {
		case <-time.After(pausePoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// connectTime limits connecting with the guest of a machine that has started. The
// machine may be emulated and busy.
const connectTime = 30 * time.Second

// connect connects with the guest on a free link.
func (in *Instance) connect(ctx context.Context, opts guest.Options) (*guest.Client, error) {
	paused := func() bool {
		s, err := in.stateDir.machineState(ctx)
		return err == nil && s == statePaused
	}
	if in.rec.Ready && paused() {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.id), Message: "the virtual machine is paused"}
	}
	if in.rec.Ready {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, connectTime, errSilent)
		defer cancel()
	}
	conn, number, err := in.takeLink(ctx)
	if err != nil {
		return nil, in.unreachable(ctx, err)
	}
	door, err := dialIn(ctx, in.stateDir.dir, guest.PortDoor)
	if err != nil {
		conn.Close()
		return nil, in.unreachable(ctx, err)
	}
	defer door.Close()
	kind := byte(guest.DoorLink)
	if in.greeting != 0 {
		kind = in.greeting
	}
	if err := guest.Meet(ctx, kind, number, door, conn); err != nil {
		return nil, in.unreachable(ctx, err)
	}
	in.greeting = 0
	opts.Overdue = nil // there is no way into the machine but the guest
	client, err := guest.Dial(ctx, conn, opts)
	if err != nil {
		return nil, in.unreachable(ctx, err)
	}
	return client, nil
}

var errSilent = errors.New("the guest does not answer")

// unreachable is the error for a guest that cannot be reached, unless the caller
// has given up.
func (in *Instance) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil && context.Cause(ctx) != errSilent {
		return ctx.Err()
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.id), Message: "the guest of the virtual machine cannot be reached", Cause: err}
}

// linkConn is a connection on a link, which no other process uses meanwhile.
type linkConn struct {
	net.Conn
	lock *os.File
	once sync.Once
}

func (c *linkConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.lock.Close() })
	return err
}

// takeLink connects with the first link that no process uses.
func (in *Instance) takeLink(ctx context.Context) (*linkConn, int, error) {
	for {
		for i := range guest.MachineLinks {
			name := guest.PortLink + strconv.Itoa(i)
			lock, err := os.OpenFile(in.stateDir.path(name+".lock"), os.O_RDONLY|os.O_CREATE|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return nil, 0, err
			}
			if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
				lock.Close()
				continue
			}
			conn, err := dialIn(ctx, in.stateDir.dir, name)
			if err != nil {
				lock.Close()
				return nil, 0, err
			}
			return &linkConn{Conn: conn, lock: lock}, i, nil
		}
		select {
		case <-time.After(pausePoll):
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// Destroy implements driver.Instance. An attempt goes on after its caller has
// given up.
func (in *Instance) Destroy(ctx context.Context) error {
	in.SetDying(true)
	done := make(chan error, 1)
	go func() { done <- in.destroy() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (in *Instance) destroy() error {
	err := in.stateDir.update(func(r *record) error {
		r.Destroying = true
		return nil
	})
	if err == nil {
		err = in.p.end(in.stateDir, in.current())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		in.SetDying(false)
		return err
	}
	in.Finish(guestkit.Killed)
	in.release()
	in.p.mu.Lock()
	defer in.p.mu.Unlock()
	if in.p.instances[in.id] == in {
		delete(in.p.instances, in.id)
	}
	return nil
}

// SetDeadline implements driver.DeadlineSetter.
func (in *Instance) SetDeadline(ctx context.Context, at time.Time) error {
	if _, ended, err := in.Ask(ctx); ended || err != nil {
		if ended {
			return guestkit.Gone(in.id)
		}
		return err
	}
	var former []process
	err := in.stateDir.update(func(r *record) error {
		former, r.Guards, r.Expires = r.Guards, nil, at.UTC().Round(0)
		if at.IsZero() {
			r.Expires = time.Time{}
		} else {
			g, err := guard(r.Machine, max(time.Until(at), time.Millisecond))
			if err != nil {
				return err
			}
			r.Guards = append(r.Guards, g)
		}
		if !in.p.opts.Attached {
			return nil
		}
		g, err := guard(r.Machine, 0)
		r.Guards = append(r.Guards, g)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return guestkit.Gone(in.id)
	}
	if err != nil {
		return err
	}
	for _, g := range former {
		g.kill()
	}
	in.SetEnds(at)
	return nil
}
