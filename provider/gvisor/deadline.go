package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Two timers enforce a deadline: one in each process that is connected to the
// sandbox, and one in a separate process that outlives them. Both read the
// record again before they end the sandbox, because another process may have
// moved the deadline. The record is authoritative.

// SetDeadline moves the end of the sandbox. See driver.DeadlineSetter.
func (in *Instance) SetDeadline(ctx context.Context, at time.Time) error {
	if err := in.alive(ctx); err != nil {
		return err
	}
	if !at.IsZero() {
		at = at.UTC().Round(0) // the form in which it is read back
	}
	var old processRef
	var clock *child
	err := in.update(func(r *record) (err error) {
		old = r.Deadline
		r.Expires, r.Deadline = at, processRef{}
		if r.Attached || at.IsZero() {
			return nil
		}
		if clock, err = in.p.startDeadline(r.Kernel, at, in.stateDir); err == nil {
			r.Deadline = clock.ref()
		}
		return err
	})
	if err != nil {
		if clock != nil {
			clock.kill()
		}
		return err
	}
	old.kill()
	in.expireAt(at)
	return nil
}

// boundLifetime makes sure that the sandbox ends after d, even if this process
// has ended.
func (in *Instance) boundLifetime(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	at := in.rec.Created.Add(d).Round(0)
	in.rec.Expires = at
	if err := in.stateDir.save(in.rec); err != nil {
		return err
	}
	if !in.rec.Attached {
		clock, err := in.p.startDeadline(in.rec.Kernel, at, in.stateDir)
		if err != nil {
			return errors.Join(errors.New("bounding the lifetime"), err)
		}
		in.rec.Deadline = clock.ref()
	}
	in.expireAt(at)
	return nil
}

// expireAt sets this process's timer; the zero time stops it.
func (in *Instance) expireAt(at time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.lifetime != nil {
		in.lifetime.Stop()
		in.lifetime = nil
	}
	select {
	case <-in.released:
		return
	default:
	}
	if !at.IsZero() {
		in.lifetime = time.AfterFunc(time.Until(at), func() { in.expire(at) })
	}
}

// expire ends the sandbox unless its deadline was moved.
func (in *Instance) expire(armed time.Time) {
	if r, err := in.stateDir.load(); err == nil && !r.Expires.Equal(armed) {
		in.expireAt(r.Expires)
		return
	}
	in.end(sandbox.ReasonLifetime)
}

// startDeadline starts a process that outlives this one and kills the kernel at
// the deadline. It exits when the kernel does.
func (p *Provider) startDeadline(kernel processRef, at time.Time, b stateDir) (*child, error) {
	dir, err := filepath.Abs(b.dir) // the process has another working directory
	if err != nil {
		return nil, err
	}
	args := []string{
		argvDeadline, strconv.Itoa(kernel.PID), strconv.FormatUint(kernel.Start, 10),
		strconv.FormatInt(at.UnixNano(), 10), dir,
	}
	return p.reaper.start(p.opts.Kernel, args, nil, nil, &syscall.SysProcAttr{Setsid: true}, place{})
}

// runDeadline is the main function of that process.
func runDeadline(args []string) int {
	if len(args) != 4 {
		return 2
	}
	pid, err1 := strconv.Atoi(args[0])
	start, err2 := strconv.ParseUint(args[1], 10, 64)
	ns, err3 := strconv.ParseInt(args[2], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return 2
	}
	kernel, at := processRef{PID: pid, Start: start, Boot: bootID()}, time.Unix(0, ns)
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil || !kernel.alive() {
		return 0
	}
	for !endedBefore(fd, at) {
		r, err := (stateDir{args[3]}).load()
		switch {
		case errors.Is(err, fs.ErrNotExist): // another process is removing it
			return 0
		case err == nil && r.Expires.IsZero():
			return 0
		case err == nil && !r.Expires.Equal(at):
			at = r.Expires
		default:
			if err == nil {
				r.cgroup().Kill() // a file server that is frozen would not notice the kernel's end
			}
			kernel.kill()
			return 0
		}
	}
	return 0
}

// endedBefore waits until a process has ended or the time has come.
func endedBefore(pidfd int, at time.Time) bool {
	end := time.Now().Add(time.Until(at)) // monotonic, so that setting the clock has no effect
	for {
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(min(left.Milliseconds()+1, 1<<30)))
		if n == 1 || (err != nil && err != unix.EINTR) {
			return true
		}
	}
}
