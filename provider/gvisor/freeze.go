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

// A resident pause stops all tasks in the sandbox's own kernel, which counts
// how often it was asked to and does not tell. So the record says what was
// asked for, before and after it was, under a lock that all processes respect
// which know the sandbox; and who finds a pause that somebody died over knows
// that much.
const (
	awake   = ""
	pausing = "pausing" // one was begun: it holds or not
	paused  = "paused"
	stopped = "stopped" // it was ended, and its state is in a snapshot
)

// lockTime bounds waiting for another process that pauses or resumes, and
// askTime that for a guest to show whether it runs.
const (
	lockTime = 30 * time.Second
	askTime  = 2 * time.Second
)

// Pause stops the sandbox where it stands. See driver.Pauser.
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

// stand makes a sandbox stand still. If that is given up, it is not known
// whether the kernel was faster, and is settled.
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

// Resume lets it go on. See driver.Pauser.
func (in *Instance) Resume(ctx context.Context) error {
	return in.explain(in.locked(ctx, func(ctx context.Context, rest string) error {
		switch rest {
		case awake:
			return nil
		case pausing, stopped:
			return in.settleRest(ctx)
		}
		// Killed between the two, this leaves a pause that may not hold.
		if err := in.box.setRest(pausing); err != nil {
			return err
		}
		if err := callKernel(ctx, in.box.dir, boot.ContMgrResume); err != nil {
			return err
		}
		return in.box.setRest(awake)
	}))
}

// settle wakes a sandbox that somebody left while he paused, saved or stopped
// it. Its output is incomplete.
func (in *Instance) settle(ctx context.Context) error {
	return in.locked(ctx, func(ctx context.Context, rest string) error {
		if rest == awake || rest == paused {
			return nil
		}
		return in.settleRest(ctx)
	})
}

// settleRest wakes a sandbox of which it is not known whether it is paused: it
// is paused once more and let go once, and if it does not run then, it was.
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

// answers reports whether a guest runs, by asking it something.
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

// rest is the last requested rest state of the sandbox.
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

// locked runs f, which is told whether the sandbox rests, while no other
// process and no other call changes that.
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

// callKernel makes a call without arguments.
func callKernel(ctx context.Context, dir, method string) error {
	return withKernel(ctx, dir, func(conn *urpc.Client) error { return conn.Call(method, nil, nil) })
}

// withKernel makes calls that end when the context does: the connection is
// closed under them then, and whether the kernel carries them out is open.
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
