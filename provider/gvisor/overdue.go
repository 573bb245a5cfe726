package gvisor

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
)

// Root in the sandbox can stop the guest, which is process 1 there, but not the
// kernel. So the kernel is asked to end an overdue command and to continue the
// guest.

// overdue implements guest.Options.Overdue.
func (in *Instance) overdue(ctx context.Context, pid int) (later bool, err error) {
	rest, err := in.stateDir.rest()
	if err != nil {
		return false, in.explain(err)
	}
	if rest != awake {
		return true, nil
	}
	if in.rec.Kernel.stopped() {
		return false, in.frozen()
	}
	return false, in.explain(withKernel(ctx, in.stateDir.dir, func(conn *urpc.Client) error {
		id := string(in.rec.Inside)
		tree, err := descendants(conn, id, int32(pid))
		if err != nil {
			return err
		}
		for _, pid := range tree {
			err = errors.Join(err, signalInside(conn, &boot.SignalArgs{CID: id, PID: pid, Signo: int32(unix.SIGKILL)}))
		}
		group := &boot.SignalArgs{CID: id, PID: int32(pid), Signo: int32(unix.SIGKILL), Mode: boot.DeliverToProcessGroup}
		return errors.Join(err, signalInside(conn, group), contGuest(conn, id))
	}))
}

// descendants returns pid and all its descendants. A process whose parent has
// ended is the guest's child, and the guest ends it.
func descendants(conn *urpc.Client, id string, pid int32) ([]int32, error) {
	if pid <= 1 {
		return nil, nil
	}
	var all []*control.Process
	if err := conn.Call(boot.ContMgrProcesses, &id, &all); err != nil {
		return nil, err
	}
	children := map[int32][]int32{}
	for _, p := range all {
		children[int32(p.PPID)] = append(children[int32(p.PPID)], int32(p.PID))
	}
	tree := []int32{pid}
	for i := 0; i < len(tree) && len(tree) <= len(all); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}

// signalInside sends a signal. It succeeds if the process no longer exists.
func signalInside(conn *urpc.Client, args *boot.SignalArgs) error {
	err := conn.Call(boot.ContMgrSignal, args, nil)
	var refused urpc.RemoteError
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// contGuest sends SIGCONT to the guest.
func contGuest(conn *urpc.Client, id string) error {
	return signalInside(conn, &boot.SignalArgs{CID: id, PID: 1, Signo: int32(unix.SIGCONT)})
}
