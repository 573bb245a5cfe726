package gvisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/provider/gvisor/guestimage"
	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
	"github.com/atoll-run/atoll/sandbox"
)

// listenControl creates the kernel's control socket. It uses a descriptor of
// its directory, so that the path fits into the 108 bytes of a socket name.
func listenControl(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), fileControl)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: inDir(d, fileControl)}); err != nil {
		f.Close()
		return nil, fmt.Errorf("bind: %w", err)
	}
	return f, nil
}

func inDir(d *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name)
}

// dialControl connects to a sandbox's kernel. While too many connections wait for
// the kernel, it tries again until ctx ends.
func dialControl(ctx context.Context, dir string) (*urpc.Client, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	conn, err := connectControl(ctx, inDir(d, fileControl))
	if err != nil {
		return nil, fmt.Errorf("the sandbox's kernel does not answer: %w", err)
	}
	return urpc.NewClient(conn), nil
}

// connectControl is gVisor's way to connect, except that it does not block, and
// that the kernel of another sandbox, started at the same time, must not inherit
// the descriptors.
func connectControl(ctx context.Context, name string) (*unet.Socket, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, wakePoll) {
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != unix.EAGAIN {
			break
		}
		select {
		case <-time.After(wait):
			continue
		case <-ctx.Done():
			err = withCause(ctx, err)
		}
		break
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	syscall.ForkLock.RLock() // no process is started while it is held
	defer syscall.ForkLock.RUnlock()
	conn, err := unet.NewSocket(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	// gVisor's socket has an unexported descriptor, too.
	event := reflect.ValueOf(conn).Elem().FieldByName("efd").FieldByName("fd")
	if !event.CanInt() {
		conn.Close()
		return nil, errors.New("gVisor's sockets have changed")
	}
	unix.CloseOnExec(int(event.Int()))
	return conn, nil
}

// startKernel configures the kernel's network, starts the guest, and sets the
// limits inside.
func startKernel(ctx context.Context, dir, id string, res sandbox.Resources, link *Link) error {
	conn, err := dialControl(ctx, dir)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := setNetwork(conn, link); err != nil {
		return err
	}
	if err := conn.Call(boot.ContMgrRootContainerStart, &id, nil); err != nil {
		return fmt.Errorf("starting the guest: %w", err)
	}
	return boundInside(conn, id, res)
}

// restoreKernel makes a waiting kernel restore the state of a snapshot. The
// kernel reads the pages while it already runs.
func restoreKernel(ctx context.Context, dir string, link *Link, s *snapshot.Saved) error {
	conn, err := dialControl(ctx, dir)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := setNetwork(conn, link); err != nil {
		return err
	}
	opts := &boot.RestoreOpts{HavePagesFile: true, Background: true}
	defer func() { closeAll(opts.Files) }()
	for _, part := range s.State() {
		// Each kernel reads from the beginning and needs its own offset.
		f, err := reopen(part)
		if err != nil {
			return err
		}
		opts.Files = append(opts.Files, f)
	}
	return conn.Call(boot.ContMgrRestore, opts, nil)
}

// reopen opens the file behind f once more, for reading.
func reopen(f *os.File) (*os.File, error) { return os.Open(procFD(f)) }

// procFD returns a path of an open file.
func procFD(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// boundRestored sets the limits of a group inside a restored kernel.
func boundRestored(ctx context.Context, dir, group string, res sandbox.Resources) error {
	conn, err := dialControl(ctx, dir)
	if err != nil {
		return err
	}
	defer conn.Close()
	return boundInside(conn, group, res)
}

// boundInside sets limits in the sandbox's own kernel, on the group above that
// of the commands (see bounds of the guest), which code inside cannot reach.
// The kernel enforces the number of processes, with and without control groups
// on the host. The others it only keeps, for programs that read them. Zero
// leaves a limit as it is; negative values remove it.
func boundInside(conn *urpc.Client, group string, res sandbox.Resources) error {
	args := &control.CgroupsWriteArgs{}
	set := func(controller, name, value string) {
		args.Args = append(args.Args, control.CgroupsWriteArg{
			File:  control.CgroupControlFile{Controller: controller, Path: "/" + group, Name: name},
			Value: value,
		})
	}
	if res.PIDs != 0 {
		set("pids", "pids.max", cgroup.Amount(res.PIDs, "max"))
	}
	if res.CPUs != 0 {
		set("cpu", "cpu.max", cgroup.Quota(res.CPUs, "max")+" 100000")
	}
	if res.Memory != 0 {
		set("memory", "memory.max", cgroup.Amount(res.Memory, "max"))
	}
	if len(args.Args) == 0 {
		return nil
	}
	var answer control.CgroupsResults
	if err := conn.Call(boot.CgroupsWriteControlFiles, args, &answer); err != nil {
		return fmt.Errorf("setting limits inside: %w", err)
	}
	for _, r := range answer.Results {
		if _, err := r.Unpack(); err != nil {
			return fmt.Errorf("setting limits inside: %w", err)
		}
	}
	return nil
}

// countProcesses returns the number of processes and threads inside, without
// the guest's.
func countProcesses(conn *urpc.Client, id string) (int64, error) {
	args := &control.CgroupsReadArgs{Args: []control.CgroupsReadArg{{
		File: control.CgroupControlFile{Controller: "pids", Path: "/" + id, Name: "pids.current"},
	}}}
	var res control.CgroupsResults
	if err := conn.Call(boot.CgroupsReadControlFiles, args, &res); err != nil {
		return 0, fmt.Errorf("counting processes: %w", err)
	}
	if len(res.Results) != 1 {
		return 0, errors.New("counting processes: no answer")
	}
	n, err := res.Results[0].Unpack()
	if err != nil {
		return 0, fmt.Errorf("counting processes: %w", err)
	}
	return strconv.ParseInt(n, 10, 64)
}

// call makes a call to the sandbox's kernel and gives up when ctx ends. The
// calls themselves take no context.
func (in *Instance) call(ctx context.Context, f func(*urpc.Client) error) (err error) {
	ctx, end := span.Start(ctx, "engine", "call", in.rec.ID)
	defer func() { end(err) }()
	return in.watched(ctx, func(ctx context.Context) error {
		dialed := false
		err := withKernel(ctx, in.stateDir.dir, func(conn *urpc.Client) error {
			dialed = true
			return f(conn)
		})
		switch {
		case err == nil:
			return nil
		case dialed:
			return withCause(ctx, err)
		}
		return &providerError{sandbox.CodeUnavailable, "sandbox " + string(in.rec.ID), err}
	})
}

// connectGuest opens another connection to the guest of a running sandbox. It
// runs a helper inside, this Atoll's guest and not the sandbox's, that hands
// the connection over.
func connectGuest(ctx context.Context, dir, id string, p *guestimage.Guest) (*guest.Pipes, error) {
	program, err := reopen(p.Executable)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	ours, theirs, err := guest.NewPipes()
	if err != nil {
		return nil, err
	}
	defer closeAll(theirs[:])
	args := &control.ExecArgs{Argv: guest.ConnectArgs(), ContainerID: id}
	err = runInside(ctx, dir, program, args, map[int]*os.File{guest.LinkIn: theirs[0], guest.LinkOut: theirs[1]})
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("reaching the guest: %w", err)
	}
	return ours, nil
}

func (in *Instance) connectGuest(ctx context.Context) (*guest.Pipes, error) {
	p, err := in.p.program()
	if err != nil {
		return nil, err
	}
	return connectGuest(ctx, in.stateDir.dir, in.rec.Inside, p)
}

// runInside runs one of our programs as root in a sandbox and waits for it. If
// its caller gives up, it kills the program.
func runInside(ctx context.Context, dir string, program *os.File, args *control.ExecArgs, files map[int]*os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	all := map[int]*os.File{0: null, 1: null, 2: null}
	maps.Copy(all, files)
	args.WorkingDirectory, args.KUID, args.KGID = "/", auth.RootKUID, auth.RootKGID
	args.FilePayload = control.NewFilePayload(all, program)
	late, cancel := finishing(ctx) // the program may have been started although the caller gives up
	defer cancel()
	var pid int32
	if err := callKernel(late, dir, boot.ContMgrExecuteAsync, args, &pid); err != nil {
		return withCause(ctx, err)
	}
	var ws unix.WaitStatus
	wait := &boot.WaitPIDArgs{PID: pid, CID: args.ContainerID}
	if err := callKernel(ctx, dir, boot.ContMgrWaitPID, wait, &ws); err != nil {
		return errors.Join(withCause(ctx, err), killInside(late, dir, wait))
	}
	if ws != 0 {
		return fmt.Errorf("its program ended with status %#x", uint32(ws))
	}
	return nil
}

// killInside kills a process in a sandbox and waits for its end.
func killInside(ctx context.Context, dir string, p *boot.WaitPIDArgs) error {
	return withKernel(ctx, dir, func(conn *urpc.Client) error {
		if err := signalInside(conn, &boot.SignalArgs{CID: p.CID, PID: p.PID, Signo: int32(unix.SIGKILL)}); err != nil {
			return err
		}
		var ws unix.WaitStatus
		err := conn.Call(boot.ContMgrWaitPID, p, &ws)
		if errors.As(err, new(urpc.RemoteError)) {
			return nil // it has ended, and the other wait was told so
		}
		return err
	})
}
