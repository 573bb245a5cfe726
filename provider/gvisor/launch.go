package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
)

// nobody is the host user that kernels and file servers run as when Atoll is
// run by root.
const nobody = 65534

// fileSet collects the files that a child process inherits and knows their
// numbers there.
type fileSet struct{ files []*os.File }

// add returns the number the file will have in the child.
func (s *fileSet) add(f *os.File) string {
	s.files = append(s.files, f)
	return strconv.Itoa(2 + len(s.files))
}

func (s *fileSet) addAll(fs []*os.File) string {
	var ns []string
	for _, f := range fs {
		ns = append(ns, s.add(f))
	}
	return strings.Join(ns, ",")
}

// launchArgs are what one sandbox's processes are started with. Files remain
// the caller's to close.
type launchArgs struct {
	id       string
	dir      string   // the sandbox's state directory
	kernel   string   // path of the kernel's executable
	program  *os.File // the image that the guest is executed from
	spec     []byte
	mounts   string // --gofer-mount-confs
	cpus     int
	cpuQuota int64 // microseconds per 100 ms, 0 for none
	memory   uint64
	total    uint64
	cgroup   *cgroup
	attached bool // die with this process
	panicLog *os.File
	debugLog *os.File // nil for none

	layers   []*os.File  // of the image, the upper one first
	upper    *os.File    // backs the writable layer
	control  *os.File    // listening control socket
	link     [2]*os.File // the guest's ends of its connection
	door     [2]*os.File // a pipe: what the guest waits on, and its other end
	binds    int         // how many mounts the file server serves
	identity bool        // the file server keeps this user's power, for its own mounts
	reaper   *reaper     // who starts the children and waits for them
}

// flags begins the command line of either process.
func (a *launchArgs) flags(argv0 string, fs *fileSet) []string {
	args := append([]string{argv0}, kernelFlags()...)
	args = append(args, "--panic-log-fd="+fs.add(a.panicLog))
	if a.debugLog != nil {
		args = append(args, "--debug", "--debug-log-fd="+fs.add(a.debugLog))
	}
	return args
}

// launched are the processes of a sandbox just started.
type launched struct {
	kernel *child
	gofer  *child // nil without host mounts
}

func (l *launched) kill() {
	l.kernel.kill()
	if l.gofer != nil {
		l.gofer.kill()
	}
}

// launch starts the sandbox's kernel, and a file server if any host path is
// shown inside. They are independent processes; the kernel waits for
// instructions on its control socket when launch returns.
func launch(ctx context.Context, a *launchArgs) (*launched, error) {
	l := &launched{}
	var goferEnds []*os.File
	var mountsRead *os.File
	if a.binds > 0 {
		var err error
		if l.gofer, goferEnds, mountsRead, err = launchGofer(a); err != nil {
			return nil, fmt.Errorf("starting the file server: %w", err)
		}
		defer closeAll(goferEnds)
		defer mountsRead.Close()
	}
	started, err := launchKernel(ctx, a, goferEnds, mountsRead)
	if err != nil {
		if l.gofer != nil {
			l.gofer.kill()
		}
		return nil, fmt.Errorf("starting the kernel: %w", err)
	}
	l.kernel = started
	return l, nil
}

func launchKernel(ctx context.Context, a *launchArgs, goferEnds []*os.File, mounts *os.File) (*child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	started, syncEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer started.Close()
	defer syncEnd.Close()

	// Only use the guest's error output for our own diagnosis, and bound it: a
	// program inside could write there without end.
	guestErr := null
	if a.debugLog != nil {
		guestErr = a.debugLog
	}
	spec, err := memfile("spec", a.spec)
	if err != nil {
		return nil, err
	}
	defer spec.Close()
	var fs fileSet
	args := a.flags(argvKernel, &fs)
	args = append(args, "boot", "--bundle="+a.dir,
		"--setup-root", "--apply-caps",
		"--io-fds="+fs.addAll(append([]*os.File{a.layers[0], a.program}, goferEnds...)),
		"--gofer-filestore-fds="+fs.add(a.upper),
		"--gofer-mount-confs="+a.mounts,
		"--start-sync-fd="+fs.add(syncEnd),
		"--controller-fd="+fs.add(a.control),
		"--spec-fd="+fs.add(spec),
		"--stdio-fds="+fs.add(null), "--stdio-fds="+fs.add(null), "--stdio-fds="+fs.add(guestErr),
		"--pass-fd="+fs.add(a.link[0])+":"+strconv.Itoa(guest.LinkIn),
		"--pass-fd="+fs.add(a.link[1])+":"+strconv.Itoa(guest.LinkOut),
		"--pass-fd="+fs.add(a.door[0])+":"+strconv.Itoa(guest.Door),
		"--pass-fd="+fs.add(a.door[1])+":"+strconv.Itoa(guest.DoorKept),
		"--total-host-memory="+strconv.FormatUint(a.total, 10),
		"--total-memory="+strconv.FormatUint(a.memory, 10),
		"--cpu-num="+strconv.Itoa(a.cpus),
	)
	if mounts != nil {
		args = append(args, "--mounts-fd="+fs.add(mounts))
	}
	if a.cpuQuota > 0 {
		args = append(args, "--cpu-quota="+strconv.FormatInt(a.cpuQuota, 10), "--cpu-period=100000")
	}
	if a.attached {
		args = append(args, "--attached")
	}
	args = append(args, a.id)

	attr := namespaces(a.attached)
	dropToNobody(attr)
	env := a.environment()
	if load, err := os.Open("/proc/loadavg"); err == nil { // without, it spins as it thinks fit
		defer load.Close()
		env = append(env, kernel.LoadEnv+"="+fs.add(load))
	}
	if below := a.layers[1:]; len(below) > 0 {
		env = append(env, kernel.LayersEnv+"="+fs.addAll(below))
	}
	c, err := a.reaper.start(a.kernel, args, env, fs.files, attr, place{a.cgroup, scoreProgram})
	if err != nil {
		return nil, err
	}
	syncEnd.Close()
	if err := awaitByte(ctx, started, c); err != nil {
		c.kill()
		return nil, err
	}
	// The processes of the programs inside have inherited the score; the kernel
	// itself is exempted again. When memory runs out, the host should kill a
	// program and not the sandbox.
	setOOMScore(c.pid, scoreSpared)
	return c, nil
}

// environment tells the kernel's garbage collector when memory becomes scarce.
// What the kernel knows about files and processes counts in the sandbox's
// memory, and a collector that waits until it has doubled lets the sandbox end
// where there is room for twice as many files.
func (a *launchArgs) environment() []string {
	if a.memory >= a.total {
		return nil
	}
	return []string{"GOMEMLIMIT=" + strconv.FormatUint(a.memory/2, 10)}
}

func launchGofer(a *launchArgs) (*child, []*os.File, *os.File, error) {
	mountsRead, mountsWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	defer mountsWrite.Close()
	// The other end is closed: sources that the file server cannot open are
	// refused before it is started.
	rpc, rpcPeer, err := socketpair(unix.SOCK_STREAM)
	if err != nil {
		mountsRead.Close()
		return nil, nil, nil, err
	}
	defer rpc.Close()
	defer rpcPeer.Close()
	var kernelEnds, goferEnds []*os.File
	defer func() { closeAll(goferEnds) }()
	fail := func(err error) (*child, []*os.File, *os.File, error) {
		closeAll(kernelEnds)
		mountsRead.Close()
		return nil, nil, nil, err
	}
	for range a.binds {
		k, g, err := socketpair(unix.SOCK_STREAM)
		if err != nil {
			return fail(err)
		}
		kernelEnds, goferEnds = append(kernelEnds, k), append(goferEnds, g)
	}

	// A file of its own: the kernel reads the other one at the same time, and
	// they would move each other's position.
	spec, err := memfile("spec", a.spec)
	if err != nil {
		return fail(err)
	}
	defer spec.Close()
	var fs fileSet
	args := a.flags(argvGofer, &fs)
	args = append(args, "gofer", "--bundle="+a.dir,
		"--gofer-mount-confs="+a.mounts,
		"--spec-fd="+fs.add(spec),
		"--mounts-fd="+fs.add(mountsWrite),
		"--rpc-fd="+fs.add(rpc),
		"--io-fds="+fs.addAll(goferEnds),
		a.id)
	attr := namespaces(a.attached)
	if !a.identity || os.Geteuid() != 0 {
		dropToNobody(attr)
	}
	c, err := a.reaper.start(a.kernel, args, nil, fs.files, attr, place{cgroup: a.cgroup})
	if err != nil {
		return fail(err)
	}
	return c, kernelEnds, mountsRead, nil
}

// namespaces puts a process where it sees nothing of the host: no other
// process, no network, no name, and only mounts of its own.
func namespaces(attached bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if attached {
		attr.Pdeathsig = syscall.SIGKILL
	}
	return attr
}

// dropToNobody adds a user namespace in which the process is root over nothing
// but itself: outside it is nobody, or the user who runs Atoll.
func dropToNobody(attr *syscall.SysProcAttr) {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = nobody, nobody
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	attr.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: os.Geteuid() != 0}
}

// awaitByte waits until the kernel says that it is ready, or died.
func awaitByte(ctx context.Context, r *os.File, c *child) error {
	var b [1]byte
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	switch _, err := r.Read(b[:]); {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the kernel ended before it was ready: %s", c.waitFor(2*time.Second))
	default:
		return fmt.Errorf("the kernel did not get ready: %w", err)
	}
}

// socketpair returns two connected UNIX sockets.
func socketpair(typ int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socketpair"), os.NewFile(uintptr(fds[1]), "socketpair"), nil
}

func closeAll(fs []*os.File) {
	for _, f := range fs {
		f.Close()
	}
}

// memfile returns an anonymous file with the content, at its beginning.
func memfile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
