package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
)

// A resident pause stops all tasks in the sandbox's own kernel. The kernel
// counts pauses but does not report the count. So a file in the state directory
// records the request before and the state after each call, under a lock that
// all processes with this sandbox take. If a process dies during a pause,
// others see that the state is uncertain.
const (
	awake   = ""
	pausing = "pausing" // a pause was started; the sandbox may be paused or not
	paused  = "paused"
	stopped = "stopped" // the sandbox was ended, and its state is in a snapshot
)

// lockTime limits waiting for another process that pauses or resumes. askTime
// limits waiting for a guest's answer.
const (
	lockTime = 30 * time.Second
	askTime  = 2 * time.Second
)

// Pause stops all tasks of the sandbox. See driver.Pauser.
func (in *Instance) Pause(ctx context.Context) error {
	return in.explain(in.locked(ctx, func(ctx context.Context, rest string) error {
		if rest == paused {
			return nil
		}
		if rest != awake {
			if err := in.settleRest(ctx); err != nil {
				return err
			}
		}
		if err := in.stand(ctx); err != nil {
			return err
		}
		if err := in.p.opts.Fault("pause.held"); err != nil {
			return errors.Join(err, in.settleRest(ctx))
		}
		return in.box.setRest(paused)
	}))
}

// stand pauses the kernel. If the call is abandoned, its outcome is unknown, so
// stand wakes the sandbox with settleRest.
func (in *Instance) stand(ctx context.Context) error {
	if err := in.box.setRest(pausing); err != nil {
		return err
	}
	err := callKernel(ctx, in.box.dir, boot.ContMgrPause)
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	return errors.Join(err, in.settleRest(ctx))
}

// Resume continues a paused sandbox. See driver.Pauser.
func (in *Instance) Resume(ctx context.Context) error {
	return in.explain(in.locked(ctx, func(ctx context.Context, rest string) error {
		switch rest {
		case awake:
			return nil
		case pausing, stopped:
			return in.settleRest(ctx)
		}
		// If this process is killed here, the recorded pause may not be in effect.
		if err := in.box.setRest(pausing); err != nil {
			return err
		}
		if err := callKernel(ctx, in.box.dir, boot.ContMgrResume); err != nil {
			return err
		}
		return in.box.setRest(awake)
	}))
}

// settle wakes a sandbox whose pause, save or stop another process did not
// finish. The output of that process is incomplete.
func (in *Instance) settle(ctx context.Context) error {
	return in.locked(ctx, func(ctx context.Context, rest string) error {
		if rest == awake || rest == paused {
			return nil
		}
		return in.settleRest(ctx)
	})
}

// settleRest wakes a sandbox in an uncertain state. It pauses and resumes it
// once. If the guest then does not answer, the sandbox was paused before, and
// is resumed once more.
func (in *Instance) settleRest(ctx context.Context) error {
	for _, call := range []string{boot.ContMgrPause, boot.ContMgrResume} {
		if err := callKernel(ctx, in.box.dir, call); err != nil {
			return err
		}
	}
	if !in.answers(ctx) {
		if err := callKernel(ctx, in.box.dir, boot.ContMgrResume); err != nil {
			return err
		}
	}
	return in.box.setRest(awake)
}

// answers reports whether the guest answers a request.
func (in *Instance) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	in.mu.Lock()
	client := in.client
	in.mu.Unlock()
	if client == nil {
		conn, err := in.connectGuest(ctx)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
	_, err := client.Processes(ctx)
	return err == nil
}

// rest returns the recorded rest state of the sandbox.
func (b box) rest() (string, error) {
	state, err := os.ReadFile(b.path(fileRest))
	if errors.Is(err, fs.ErrNotExist) {
		return awake, nil
	}
	return string(state), err
}

func (b box) setRest(rest string) error {
	if rest == awake {
		return os.Remove(b.path(fileRest))
	}
	tmp := b.path(fileRest + ".tmp")
	if err := os.WriteFile(tmp, []byte(rest), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, b.path(fileRest))
}

// locked calls f with the recorded rest state, while no other process and no
// other call changes it.
func (in *Instance) locked(ctx context.Context, f func(ctx context.Context, rest string) error) error {
	select {
	case in.resting <- struct{}{}:
		defer func() { <-in.resting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-in.ended:
		return in.endedError()
	default:
	}
	unlock, err := in.box.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	rest, err := in.box.rest()
	if err != nil {
		return err
	}
	return in.watched(ctx, func(ctx context.Context) error { return f(ctx, rest) })
}

// lock takes the lock of a sandbox's state directory.
func (b box) lock(ctx context.Context) (unlock func(), err error) {
	d, err := os.Open(b.dir)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockTime)
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { d.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK), time.Now().After(deadline):
			d.Close()
			return nil, fmt.Errorf("waiting for another process to release the sandbox: %w", err)
		}
		select {
		case <-ctx.Done():
			d.Close()
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// callKernel makes a call without arguments to the sandbox's kernel.
func callKernel(ctx context.Context, dir, method string) error {
	return withKernel(ctx, dir, func(conn *urpc.Client) error { return conn.Call(method, nil, nil) })
}

// withKernel makes calls to the kernel until ctx ends. It then closes the
// connection, and it is unknown whether the kernel performs the call.
func withKernel(ctx context.Context, dir string, f func(*urpc.Client) error) error {
	conn, err := dialControl(dir)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Socket.Close() })
	err = f(conn)
	if stop() {
		return errors.Join(err, conn.Close())
	}
	if err != nil {
		return ctx.Err()
	}
	return nil
}
