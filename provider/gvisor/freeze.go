package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// A resident pause stops all tasks in the sandbox's own kernel. The kernel
// counts pauses, so there must be exactly one. A file in the state directory
// records the request before and the state after each call, under a lock that
// all processes with this sandbox take. If a process dies during a pause,
// others see that the state is uncertain, and ask the kernel. The kernel holds
// the lock during the calls, too, so that its answer is final.
const (
	awake   = ""
	pausing = "pausing" // a pause was started; the sandbox may be paused or not
	paused  = "paused"
	stopped = "stopped" // the sandbox was ended, and its state is in a snapshot
)

// lockTime limits waiting for another process that pauses or resumes.
const lockTime = 30 * time.Second

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
		return in.stateDir.setRest(paused)
	}))
}

// stand pauses the kernel. It waits for the outcome even if its caller gives up,
// and then wakes the sandbox.
func (in *Instance) stand(ctx context.Context) error {
	// Nothing must be recorded about a kernel that accepts no calls.
	if _, err := askStatus(ctx, in.stateDir.dir); err != nil {
		return withCause(ctx, err)
	}
	if err := in.stateDir.setRest(pausing); err != nil {
		return err
	}
	late, cancel := finishing(ctx)
	defer cancel()
	err := in.changeRest(late, boot.ContMgrPause)
	if err == nil && ctx.Err() == nil {
		return nil
	}
	return errors.Join(withCause(ctx, err), in.settleRest(late))
}

// finishing returns a context for calls whose outcome must be known. It ends
// killTime after ctx, or with ctx if that was canceled because the sandbox does
// not answer.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errSilent) {
			cancel(context.Cause(ctx))
			return
		}
		t := time.AfterFunc(killTime, func() { cancel(context.DeadlineExceeded) })
		context.AfterFunc(late, func() { t.Stop() })
	})
	return late, func() {
		stop()
		cancel(nil)
	}
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
		if err := in.stateDir.setRest(pausing); err != nil {
			return err
		}
		if err := in.changeRest(ctx, boot.ContMgrResume); err != nil {
			return err
		}
		return in.stateDir.setRest(awake)
	}))
}

// settleRest wakes a sandbox in an uncertain state.
func (in *Instance) settleRest(ctx context.Context) error {
	status, err := in.kernelStatus(ctx)
	if err != nil {
		return err
	}
	if err := in.p.opts.Fault("settle.asked"); err != nil {
		return err
	}
	if status == kernel.StatusPaused {
		if err := in.changeRest(ctx, boot.ContMgrResume); err != nil {
			return err
		}
	}
	return in.stateDir.setRest(awake)
}

// kernelStatus asks the kernel whether it is paused. It waits for the end of a
// save that another process did not await.
func (in *Instance) kernelStatus(ctx context.Context) (kernel.Status, error) {
	for {
		status, err := askStatus(ctx, in.stateDir.dir)
		switch {
		case err != nil:
			return 0, err
		case status == kernel.StatusUnknown:
			return 0, &sandbox.Error{
				Code: sandbox.CodeUnavailable, Message: fmt.Sprintf("the kernel of sandbox %s cannot say whether it is paused", in.rec.ID),
				Hint: "it was started by an earlier version of Atoll; remove the sandbox",
			}
		case status != kernel.StatusSaving:
			return status, nil
		}
		select {
		case <-time.After(wakePoll):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// rest returns the recorded rest state of the sandbox.
func (d stateDir) rest() (string, error) {
	state, err := os.ReadFile(d.path(fileRest))
	if errors.Is(err, fs.ErrNotExist) {
		return awake, nil
	}
	return string(state), err
}

func (d stateDir) setRest(rest string) error {
	if rest == awake {
		return os.Remove(d.path(fileRest))
	}
	tmp := d.path(fileRest + ".tmp")
	if err := os.WriteFile(tmp, []byte(rest), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.path(fileRest))
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
	return in.watched(ctx, func(ctx context.Context) error {
		lock, err := in.stateDir.lock(ctx)
		if err != nil {
			return err
		}
		in.lock = lock
		defer func() {
			in.lock = nil
			lock.Close()
		}()
		rest, err := in.stateDir.rest()
		if err != nil {
			return err
		}
		return f(ctx, rest)
	})
}

// lock takes the lock on the rest state of a sandbox. Closing the file releases
// it, unless the kernel still has the file.
func (d stateDir) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(d.path(fileLock), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockTime)
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK), time.Now().After(deadline):
			f.Close()
			return nil, fmt.Errorf("waiting for another process to release the sandbox: %w", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// heldArgs are the arguments of a call during which the kernel has the file of
// the lock open, and so holds the lock. gVisor closes the files of a call when
// the call has ended, even if its caller has not waited.
type heldArgs struct{ urpc.FilePayload }

// changeRest pauses or resumes the kernel. The caller holds the lock.
func (in *Instance) changeRest(ctx context.Context, method string) error {
	return callKernel(ctx, in.stateDir.dir, method, &heldArgs{urpc.FilePayload{Files: []*os.File{in.lock}}}, nil)
}

// askStatus asks a kernel for its status.
func askStatus(ctx context.Context, dir string) (kernel.Status, error) {
	var all control.MetricsExportData
	err := callKernel(ctx, dir, boot.MetricsExport, &control.MetricsExportOpts{OnlyMetrics: "^" + kernel.StatusMetric + "$"}, &all)
	if err != nil || all.Snapshot == nil || len(all.Snapshot.Data) != 1 || all.Snapshot.Data[0].Number == nil {
		return kernel.StatusUnknown, err
	}
	return kernel.Status(all.Snapshot.Data[0].Number.Int), nil
}

// callKernel makes a call to the sandbox's kernel.
func callKernel(ctx context.Context, dir, method string, args, result any) error {
	return withKernel(ctx, dir, func(conn *urpc.Client) error { return conn.Call(method, args, result) })
}

// withKernel makes calls to the kernel until ctx ends. It then closes the
// connection, and it is unknown whether the kernel performs the call.
func withKernel(ctx context.Context, dir string, f func(*urpc.Client) error) error {
	conn, err := dialControl(ctx, dir)
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
