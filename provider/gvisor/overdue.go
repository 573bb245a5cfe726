package gvisor

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
)

// Root inside can stop the guest, which is process 1 there. The kernel is out of
// its reach, and so it is the kernel that is asked to end a command whose time
// is over, and to let the guest go on.

// overdue implements guest.Options.Overdue.
func (in *Instance) overdue(ctx context.Context, pid int) (later bool, err error) {
	rest, err := in.box.rest()
	if err != nil {
		return false, in.explain(err)
	}
	if rest != awake {
		return true, nil
	}
	if in.rec.Kernel.stopped() {
		return false, in.frozen()
	}
	return false, in.explain(withKernel(ctx, in.box.dir, func(conn *urpc.Client) error {
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

// descendants returns pid and the processes that it and they have started. One
// whose parent has ended is the guest's, who ends what it left.
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

// signalInside sends a signal. A process that does not exist has what the signal
// is for behind it.
func signalInside(conn *urpc.Client, args *boot.SignalArgs) error {
	err := conn.Call(boot.ContMgrSignal, args, nil)
	var refused urpc.RemoteError
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// contGuest lets the guest go on if somebody has stopped it.
func contGuest(conn *urpc.Client, id string) error {
	return signalInside(conn, &boot.SignalArgs{CID: id, PID: 1, Signo: int32(unix.SIGCONT)})
}
