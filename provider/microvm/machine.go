package microvm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// shape is what a machine must have in common with another one to continue with
// its memory.
type shape struct {
	Accel  string `json:"accel"`
	Boot   string `json:"boot"` // the boot files
	QEMU   string `json:"qemu"` // version
	CPUs   int    `json:"cpus"`
	RAM    int64  `json:"ram"` // bytes
	Disk   int64  `json:"disk"`
	Layers int    `json:"layers"`
	Link   bool   `json:"link,omitempty"`
	Digest string `json:"digest"` // of the image
}

// The memory of a machine beyond the limit of its sandbox, for its kernel: a part
// that is fixed, and a share of the limit.
const (
	kernelMemory = 128 << 20 // bytes
	kernelShare  = 32
)

func (p *Provider) shapeOf(r sandbox.Resources) shape {
	const page = 2 << 20
	ram := (r.Memory + kernelMemory + r.Memory/kernelShare + page - 1) / page * page
	cpus := runtime.NumCPU()
	if r.CPUs > 0 {
		cpus = min(cpus, int(math.Ceil(r.CPUs)))
	}
	return shape{Accel: p.opts.Accel, CPUs: min(cpus, maxCPUs), RAM: ram, Disk: r.Disk}
}

// maxCPUs is the number of processors that the interrupt controller supports.
const maxCPUs = 64

// launch has the parameters and files with which a machine starts. The caller closes the files.
type launch struct {
	stateDir stateDir
	boot     *boot
	shape    shape
	config   *guest.Machine
	layers   []*os.File // of the image, top first
	disk     *os.File
	card     *os.File // the end of a network link; nil: none
	incoming bool     // it waits for the memory of a snapshot
}

// The identities of a machine's network card and of its only neighbour.
const cardAddress = "02:61:74:6f:6c:02"

// arguments returns QEMU's arguments and the files that become its descriptors
// from 3. Nothing is configured that is not used.
func (p *Provider) arguments(l *launch) (args []string, files []*os.File, err error) {
	add := func(a ...string) { args = append(args, a...) }
	pass := func(f *os.File) string {
		files = append(files, f)
		return strconv.Itoa(2 + len(files))
	}
	set := 0
	shared := func(f *os.File) string { // QEMU opens it as a file
		set++
		add("-add-fd", fmt.Sprintf("fd=%s,set=%d", pass(f), set))
		return "/dev/fdset/" + strconv.Itoa(set)
	}
	opened := func(name string) (string, error) {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		return "/proc/self/fd/" + pass(f), nil
	}
	kernel, err := opened(l.boot.kernel)
	if err != nil {
		return nil, files, err
	}
	initrd, err := opened(l.boot.initrd)
	if err != nil {
		return nil, files, err
	}
	accel, cpu := "kvm", "host"
	if l.shape.Accel == AccelTCG {
		accel, cpu = "tcg,thread=multi,tb-size=256", "max"
	}
	add("-name", machineName+l.stateDir.dir, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-M", "microvm,pit=on,pic=on,rtc=on,isa-serial=on,usb=off,pcie=off", "-accel", accel, "-cpu", cpu,
		"-smp", strconv.Itoa(l.shape.CPUs), "-m", fmt.Sprintf("size=%dM", l.shape.RAM>>20),
		"-kernel", kernel, "-initrd", initrd, "-append", commandLine(l),
		// The console is a buffer of fixed size in QEMU's memory.
		"-chardev", "ringbuf,id=console,size=65536", "-serial", "chardev:console",
		"-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng",
		"-device", fmt.Sprintf("virtio-serial-device,max_ports=%d", guest.MachineLinks+2))
	if l.incoming {
		add("-incoming", "defer")
	}
	socket := func(name string) (string, error) {
		f, err := listenIn(l.stateDir.dir, name)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("socket,id=%s,fd=%s,server=on,wait=off", name, pass(f)), nil
	}
	monitor, err := socket(fileQMP)
	if err != nil {
		return nil, files, err
	}
	add("-chardev", monitor, "-mon", "chardev="+fileQMP+",mode=control")
	for i := range guest.MachineLinks + 1 {
		name := guest.PortDoor
		if i > 0 {
			name = guest.PortLink + strconv.Itoa(i-1)
		}
		port, err := socket(name)
		if err != nil {
			return nil, files, err
		}
		add("-chardev", port, "-device", fmt.Sprintf("virtserialport,chardev=%s,name=%s,nr=%d", name, name, i+1))
	}
	for i, f := range l.layers {
		name := guest.DiskImage + strconv.Itoa(i)
		add("-drive", "if=none,format=raw,readonly=on,file.locking=off,id="+name+",file="+shared(f),
			"-device", "virtio-blk-device,drive="+name+",serial="+name)
	}
	add("-drive", "if=none,format=raw,auto-read-only=off,file.locking=off,discard=unmap,detect-zeroes=unmap,id="+guest.DiskFiles+",file="+shared(l.disk),
		"-device", "virtio-blk-device,drive="+guest.DiskFiles+",serial="+guest.DiskFiles)
	if l.card != nil {
		add("-netdev", "dgram,id=card,local.type=fd,local.str="+pass(l.card), "-device", "virtio-net-device,netdev=card,mac="+cardAddress)
	}
	return args, files, nil
}

// commandLine returns the kernel's arguments. It passes the environment and the
// last arguments on to the guest.
func commandLine(l *launch) string {
	clock := ""
	if khz := clockRate(); khz > 0 && l.shape.Accel == AccelTCG {
		// The kernel would measure it, which fails if this machine is busy.
		clock = "tsc_early_khz=" + strconv.Itoa(khz) + " "
	}
	return clock + "console=ttyS0 loglevel=4 panic=-1 reboot=t random.trust_cpu=on rdinit=" + guest.Path + " " +
		strings.Join(guest.Env(), " ") + " -- " + guest.MachineArg + " " + l.config.Encode()
}

// clockRate returns the rate of this machine's time stamp counter, which an
// emulated machine has, too. It is 0 if it is not known.
func clockRate() int {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "cpu MHz" {
			mhz, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return int(mhz * 1000)
		}
	}
	return 0
}

// listenIn creates a socket in a directory, whose path may be longer than the
// address of a socket.
func listenIn(dir, name string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: inDir(d, name)}); err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("making the socket %s: %w", name, err)
	}
	return f, nil
}

func inDir(d *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name)
}

// dialIn connects with a socket in a directory.
func dialIn(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", inDir(d, name))
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// running is a QEMU that this process has started.
type running struct {
	process
	cmd    *exec.Cmd
	stderr *lockedBuffer
	done   chan struct{} // closed when it has ended
}

// start starts QEMU. It sees no other process, no network and no sockets but its
// own, and has the rights of nobody or of the user who runs Atoll.
func (p *Provider) start(l *launch) (*running, error) {
	exe, err := exec.LookPath(p.opts.QEMU)
	if err != nil {
		return nil, noQEMU(err)
	}
	args, files, err := p.arguments(l)
	opened := map[*os.File]bool{l.disk: true, l.card: true}
	for _, f := range l.layers {
		opened[f] = true
	}
	defer func() {
		for _, f := range files {
			if !opened[f] {
				f.Close()
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	m := &running{stderr: &lockedBuffer{}, done: make(chan struct{})}
	m.cmd = &exec.Cmd{
		Path: exe, Args: append([]string{exe}, args...), Dir: "/", ExtraFiles: files, Stderr: m.stderr, SysProcAttr: confined(),
		Env: []string{"PATH=/usr/bin:/bin"}, WaitDelay: time.Second,
	}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting QEMU: %w", err)
	}
	m.process = processOf(m.cmd.Process.Pid)
	go func() {
		_ = m.cmd.Wait()
		close(m.done)
	}()
	return m, nil
}

func noQEMU(err error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "microvm.qemu", Message: "QEMU is not installed: " + err.Error(),
		Hint: "install it, for example with: apt-get install qemu-system-x86",
	}
}

// nobody is the user that QEMU runs as if Atoll runs as root.
const nobody = 65534

// confined separates QEMU from this machine. Its group may be the one that may
// use /dev/kvm.
func confined() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWUSER,
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = nobody, nobody
		var st unix.Stat_t
		if unix.Stat(kvmDevice, &st) == nil && st.Gid != 0 {
			gid = int(st.Gid)
		}
	}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: gid, Size: 1}}
	attr.GidMappingsEnableSetgroups = os.Geteuid() == 0 // root gives up its supplementary groups
	attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: os.Geteuid() != 0}
	return attr
}

const kvmDevice = "/dev/kvm"

// explain adds what QEMU said to an error.
func (m *running) explain(err error) error {
	select {
	case <-m.done:
		if text := m.stderr.String(); text != "" {
			return fmt.Errorf("%w (QEMU: %s)", err, text)
		}
		return fmt.Errorf("%w (QEMU has ended: %v)", err, m.cmd.ProcessState)
	default:
		return err
	}
}

// guardScript kills a process, if it is still the one that started at that time:
// after a number of seconds or, if that is 0, when its input ends.
const guardScript = `if [ "$3" -gt 0 ]; then sleep "$3"; else read -r x; fi
read -r stat <"/proc/$1/stat" || exit 0
set -- "$1" "$2" ${stat##*) }
[ "${22}" = "$2" ] && kill -KILL "$1"`

// guard starts a process that ends a machine even if this process has ended: after
// some time or, if that is 0, with this process.
func guard(machine process, after time.Duration) (process, error) {
	seconds := int64((after + time.Second - 1) / time.Second)
	cmd := &exec.Cmd{ // it outlives this process
		Path: "/bin/sh", Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		Args: []string{"sh", "-c", guardScript, "sh", strconv.Itoa(machine.PID), strconv.FormatUint(machine.Start, 10), strconv.FormatInt(seconds, 10)},
	}
	var keep *os.File
	if after <= 0 {
		r, w, err := os.Pipe()
		if err != nil {
			return process{}, err
		}
		defer r.Close()
		cmd.Stdin, keep = r, w
	}
	if err := cmd.Start(); err != nil {
		if keep != nil {
			keep.Close()
		}
		return process{}, fmt.Errorf("starting the process that ends the machine: %w", err)
	}
	ref := processOf(cmd.Process.Pid)
	go func() {
		_ = cmd.Wait()
		if keep != nil {
			keep.Close()
		}
	}()
	return ref, nil
}

// makeDisk makes an empty disk for the writable layer.
func makeDisk(ctx context.Context, file string, size int64) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		return nil, err
	}
	tool, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		tool = "/sbin/mkfs.ext4"
	}
	// The file system has no blocks for root alone, and writes what it must only
	// when it is used.
	cmd := exec.CommandContext(ctx, tool, "-q", "-F", "-m", "0", "-b", "4096", "-J", "size=16", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		f.Close()
		if errors.Is(err, os.ErrNotExist) {
			return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "microvm.create", Message: "mkfs.ext4 is not installed", Hint: "install e2fsprogs"}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("making the disk: %w: %s", err, out)
	}
	return f, nil
}
