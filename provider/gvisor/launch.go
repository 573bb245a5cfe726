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
	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
)

// nobody is the host user that kernels and file servers run as when Atoll runs
// as root.
const nobody = 65534

// fileSet collects the files that a child process inherits and their descriptor
// numbers there.
type fileSet struct{ files []*os.File }

// add returns the file's descriptor number in the child.
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

// launchArgs are the arguments of launch. The caller closes the files.
type launchArgs struct {
	id       string
	dir      string   // the sandbox's state directory
	kernel   string   // path of the kernel's executable
	program  *os.File // the image that the guest is executed from
	spec     []byte
	mounts   string // value of --gofer-mount-confs
	cpus     int
	cpuQuota int64 // microseconds per 100 ms, 0 for none
	memory   uint64
	total    uint64
	cgroup   *cgroup.Group
	platform string
	device   *os.File // of the platform; nil: it has none
	attached bool     // die with this process
	panicLog *os.File
	debugLog *os.File // nil for none

	layers   []*os.File  // of the image, the upper one first
	upper    *os.File    // backs the writable layer
	control  *os.File    // listening control socket
	link     [2]*os.File // the guest's ends of its connection
	door     [2]*os.File // a pipe: the end that the guest reads, and the other end
	binds    int         // how many mounts the file server serves
	identity bool        // the file server keeps this user's rights, for its own mounts
	reaper   *reaper     // starts the children and waits for them
}

// flags returns the first arguments of either process.
func (a *launchArgs) flags(argv0 string, fs *fileSet) []string {
	args := append([]string{argv0}, kernelFlags(a.platform)...)
	args = append(args, "--panic-log-fd="+fs.add(a.panicLog))
	if a.debugLog != nil {
		args = append(args, "--debug", "--debug-log-fd="+fs.add(a.debugLog))
	}
	return args
}

// launched holds the started processes of a sandbox.
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

// launch starts the sandbox's kernel and, if host paths are mounted, a file
// server. They are independent processes. When launch returns, the kernel waits
// for calls on its control socket.
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

	// The guest's error output is used only for our diagnosis and is limited,
	// because a program inside could write to it without end.
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
	if a.device != nil {
		args = append(args, "--device-fd="+fs.add(a.device))
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
	if load, err := os.Open("/proc/loadavg"); err == nil { // without it, gVisor decides when to spin
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
	// The processes of the programs have inherited the score; now the kernel
	// itself is exempt again. When memory runs out, the host should kill a program
	// and not the sandbox.
	setOOMScore(c.pid, scoreSpared)
	return c, nil
}

// environment sets GOMEMLIMIT for the kernel's garbage collector. The kernel's
// data about files and processes counts towards the sandbox's memory. A
// collector that waits until the heap has doubled would exceed the limit with
// half as many files.
//
// With KVM, Go must not interrupt a kernel to preempt it, as gVisor itself says.
func (a *launchArgs) environment() (env []string) {
	if a.platform == PlatformKVM {
		env = append(env, "GODEBUG=asyncpreemptoff=1")
	}
	if a.memory < a.total {
		env = append(env, "GOMEMLIMIT="+strconv.FormatUint(a.memory/2, 10))
	}
	return env
}

func launchGofer(a *launchArgs) (*child, []*os.File, *os.File, error) {
	mountsRead, mountsWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	defer mountsWrite.Close()
	// The other end is closed: sources that the file server could not open were
	// refused before.
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

	// A separate file: the kernel reads the other one at the same time, and they
	// would share one offset.
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

// namespaces isolates a process from the host: it sees no other process, no
// network, no host name, and only its own mounts.
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

// dropToNobody adds a user namespace. The process is root in it; outside it is
// nobody, or the user who runs Atoll.
func dropToNobody(attr *syscall.SysProcAttr) {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = nobody, nobody
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	attr.GidMappingsEnableSetgroups = os.Geteuid() == 0 // root gives up its supplementary groups
	attr.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: os.Geteuid() != 0}
}

// awaitByte waits until the kernel reports that it is ready or has ended.
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

// memfile returns an anonymous file with the given content, at offset 0.
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
