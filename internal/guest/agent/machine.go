package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// This file is the guest as the first process of a virtual machine. It runs
// from the initial RAM file system, loads the drivers, mounts the image, and
// then serves the connections that the host announces on the door.

// newRoot is where the root file system is made.
const newRoot = "/root"

// machineCapabilities are the capabilities of root in a virtual machine: those
// that Docker gives.
var machineCapabilities = []uintptr{
	unix.CAP_AUDIT_WRITE, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_MKNOD,
	unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_SETFCAP, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SETUID, unix.CAP_SYS_CHROOT,
}

// serveMachine runs the guest in a virtual machine. It returns only if the
// machine cannot be set up, which ends the machine.
func serveMachine(arg string) int {
	m, err := wire.DecodeMachine(arg)
	var p ports
	if err == nil {
		p, err = setUp(&m)
	}
	if err != nil {
		println("atoll-guest: the machine cannot be set up:", err.Error())
		time.Sleep(lastWords)
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
		return 1
	}
	a := newAgent("/")
	a.generation.establish()
	a.unready = errors.Join(a.bounds.establish(), dropCapabilities())
	a.start()
	door, err := p.open(wire.PortDoor, 0)
	if err != nil {
		println("atoll-guest: no door:", err.Error())
		return 1
	}
	a.answerDoor(door, p)
	return 1
}

// lastWords is how long the host has to read the console of a machine that could
// not be set up.
const lastWords = 3 * time.Second

// ports are the ports of a virtual machine. Their device files are in a
// directory outside the root file system.
type ports struct {
	dir   int
	files map[string]string // by the name of the port
}

func (p ports) open(name string, flags int) (fd int, err error) {
	return unix.Openat(p.dir, p.files[name], unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
}

// setUp makes the root file system and enters it.
func setUp(m *wire.Machine) (p ports, err error) {
	for _, d := range []struct{ typ, at string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := mountAt(d.typ, d.at, d.typ, 0, ""); err != nil {
			return p, err
		}
	}
	if err := loadModules(); err != nil {
		return p, err
	}
	var disks map[string]string
	if disks, p.files, err = findDevices(m.Layers + 1); err != nil {
		return p, err
	}
	if p.dir, err = unix.Open("/dev", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return p, err
	}
	if err := mountRoot(m, disks); err != nil {
		return p, err
	}
	if err := bringUp(m); err != nil {
		return p, fmt.Errorf("setting up the network: %w", err)
	}
	if err := limit(m); err != nil {
		return p, fmt.Errorf("setting limits: %w", err)
	}
	return p, nil
}

func mountAt(source, at, typ string, flags uintptr, data string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, typ, flags, data); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", typ, at, err)
	}
	return nil
}

func loadModules() error {
	entries, err := os.ReadDir(wire.ModulesDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(wire.ModulesDir, e.Name())
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("loading %s: %w", e.Name(), err)
		}
		_ = os.Remove(name)
	}
	return nil
}

// deviceTime limits waiting for devices.
const deviceTime = 30 * time.Second

// findDevices waits for the disks and ports, and returns the names of their
// device files by name.
func findDevices(count int) (disks, ports map[string]string, err error) {
	for deadline := time.Now().Add(deviceTime); ; time.Sleep(time.Millisecond) {
		disks, ports = namedDevices("/sys/block/vd*/serial"), namedDevices("/sys/class/virtio-ports/*/name")
		if len(disks) >= count && len(ports) > wire.MachineLinks {
			return disks, ports, nil
		}
		if time.Now().After(deadline) {
			return nil, nil, fmt.Errorf("there are %d disks and %d ports", len(disks), len(ports))
		}
	}
}

func namedDevices(pattern string) map[string]string {
	found := map[string]string{}
	files, _ := filepath.Glob(pattern)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if name := strings.TrimSpace(string(text)); err == nil && name != "" {
			found[name] = filepath.Base(filepath.Dir(f))
		}
	}
	return found
}

// mountRoot makes the root file system of the image and the writable layer, and
// enters it.
func mountRoot(m *wire.Machine, disks map[string]string) error {
	var layers []string
	for i := range m.Layers {
		name := wire.DiskImage + strconv.Itoa(i)
		if err := mountAt("/dev/"+disks[name], "/"+name, "erofs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
		layers = append(layers, "/"+name)
	}
	if err := mountAt("/dev/"+disks[wire.DiskFiles], "/files", "ext4", unix.MS_NOATIME, ""); err != nil {
		return err
	}
	for _, dir := range []string{"/files/upper", "/files/work"} {
		if err := os.Mkdir(dir, 0o755); err == nil {
			if err := takeMode("/"+wire.DiskImage+"0", dir); err != nil {
				return err
			}
		}
	}
	options := "lowerdir=" + strings.Join(layers, ":") + ",upperdir=/files/upper,workdir=/files/work"
	if err := mountAt("root", newRoot, "overlay", 0, options); err != nil {
		return err
	}
	if err := mountInside(); err != nil {
		return err
	}
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("entering the root file system: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// takeMode gives a directory the owner and mode of another one.
func takeMode(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return err
	}
	if err := unix.Chown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Chmod(to, st.Mode&0o7777)
}

const secure = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountInside mounts the file systems that programs expect below newRoot. The
// directory of devices has the few that a container has.
func mountInside() error {
	for _, d := range []struct {
		typ, at string
		flags   uintptr
		data    string
	}{
		{"proc", "/proc", secure, ""},
		{"sysfs", "/sys", secure | unix.MS_RDONLY, ""},
		{"tmpfs", "/dev", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=755,size=1m"},
		{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"},
		{"tmpfs", "/dev/shm", secure, "mode=1777,size=50%"},
		{"cgroup2", groupsDir, secure, ""},
	} {
		if err := mountAt(d.typ, newRoot+d.at, d.typ, d.flags, d.data); err != nil {
			return err
		}
	}
	if unix.Mkdir(newRoot+"/tmp", 0o1777) == nil {
		_ = unix.Chmod(newRoot+"/tmp", 0o1777)
	}
	for name, number := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := device(name, unix.Mkdev(1, number)); err != nil {
			return err
		}
	}
	if err := device("tty", unix.Mkdev(5, 0)); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, newRoot+"/dev/"+name); err != nil {
			return err
		}
	}
	return nil
}

func device(name string, number uint64) error {
	path := newRoot + "/dev/" + name
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil {
		return err
	}
	return unix.Chmod(path, 0o666)
}

// machineGroup is the control group of the sandbox in a virtual machine.
const machineGroup = groupsDir + "/sandbox"

// limit moves this process into a control group with the limits of the sandbox.
func limit(m *wire.Machine) error {
	if err := os.WriteFile(groupsDir+"/cgroup.subtree_control", []byte("+cpu +memory +pids +cpuset"), 0); err != nil {
		return err
	}
	if err := os.Mkdir(machineGroup, 0o755); err != nil {
		return err
	}
	for name, value := range map[string]int64{"pids.max": m.PIDs, "memory.max": m.Memory} {
		if value > 0 {
			if err := os.WriteFile(machineGroup+"/"+name, []byte(strconv.FormatInt(value, 10)), 0); err != nil {
				return err
			}
		}
	}
	if m.CPUs > 0 {
		quota := strconv.FormatInt(max(int64(m.CPUs*100_000), 1000), 10)
		if err := os.WriteFile(machineGroup+"/cpu.max", []byte(quota+" 100000"), 0); err != nil {
			return err
		}
	}
	return os.WriteFile(machineGroup+"/cgroup.procs", []byte("0"), 0)
}

// dropCapabilities removes all but a few capabilities from the bounding set, so
// that no program gets them. This process keeps its own.
func dropCapabilities() error {
	keep := map[uintptr]bool{}
	for _, c := range machineCapabilities {
		keep[c] = true
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keep[c] {
			continue
		}
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errno != 0 && errno != unix.EINVAL { // a kernel may not know the last ones
			return errno
		}
	}
	return nil
}

// answerDoor performs the calls of the host until the door fails.
func (a *agent) answerDoor(door int, p ports) {
	for call := make([]byte, wire.DoorCall); readDoor(door, call); {
		setClock(int64(binary.LittleEndian.Uint64(call[2:])))
		link, nonce := int(call[1]), slices.Clone(call[wire.DoorHeader:])
		switch call[0] {
		case wire.DoorStop:
			a.halt()
		case wire.DoorRestored:
			reseed(nonce)
			a.links.closeAll()
			renewIdentity()
			a.generation.renew()
			a.restored.Store(true)
			go a.meet(p, link, nonce)
		case wire.DoorLink:
			go a.meet(p, link, nonce)
		}
	}
}

// readDoor reads a call. A part of a call that its caller has not completed is
// dropped.
func readDoor(door int, call []byte) bool {
	for got := 0; got < len(call); {
		n, err := unix.Read(door, call[got:])
		switch {
		case n > 0:
			got += n
		case err == nil: // the host is not connected
			got = 0
			awaitHost(door, time.Hour)
		case err != unix.EINTR:
			println("atoll-guest: the door:", err.Error())
			return false
		}
	}
	return true
}

// awaitHost waits until the host is connected with a port. As long as it is not,
// poll(2) returns at once, but an edge-triggered epoll does not.
func awaitHost(port int, limit time.Duration) bool {
	e, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(e)
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET&0xffffffff}
	if unix.EpollCtl(e, unix.EPOLL_CTL_ADD, port, &event) != nil {
		return false
	}
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		p := []unix.PollFd{{Fd: int32(port), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, 0); err == nil && p[0].Revents&unix.POLLHUP == 0 {
			return true
		}
		_, _ = unix.EpollWait(e, make([]unix.EpollEvent, 1), 1000)
	}
	return false
}

// reseed gives the kernel's generator of random numbers new entropy. Its state is
// a part of the machine's memory, which a fork copies. The nonce comes from the
// host's generator and is different for every copy.
func reseed(nonce []byte) {
	fd, err := unix.Open("/dev/urandom", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	pool := binary.NativeEndian.AppendUint32(nil, uint32(8*len(nonce))) // bits
	pool = binary.NativeEndian.AppendUint32(pool, uint32(len(nonce)))
	pool = append(pool, nonce...)
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&pool[0])))
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), rndReseed, 0)
}

// rndReseed is RNDRESEEDCRNG, which makes the generator use new entropy at once.
const rndReseed = 0x5207

// setClock sets the clock, which does not run while a machine is paused or saved.
func setClock(now int64) {
	if d := time.Since(time.Unix(0, now)); d > time.Second || d < -time.Second {
		tv := unix.NsecToTimeval(now)
		_ = unix.Settimeofday(&tv)
	}
}

// meetTime limits the greeting on a new connection.
const meetTime = 10 * time.Second

// meet serves the connection whose client sends the nonce, and closes the one
// before on the same link. Only one process may have a port open.
func (a *agent) meet(p ports, number int, nonce []byte) {
	name := wire.PortLink + strconv.Itoa(number)
	if p.files[name] == "" {
		return
	}
	a.links.closeNamed(name)
	fd := -1
	for deadline := time.Now().Add(meetTime); ; time.Sleep(time.Millisecond) {
		var err error
		if fd, err = p.open(name, unix.O_NONBLOCK); err == nil {
			break
		}
		if err != unix.EBUSY || time.Now().After(deadline) {
			println("atoll-guest: no connection:", err.Error())
			return
		}
	}
	if !awaitHost(fd, meetTime) {
		unix.Close(fd)
		return
	}
	link := os.NewFile(uintptr(fd), name)
	_ = link.SetDeadline(time.Now().Add(meetTime))
	_, err := link.Write(nonce)
	if err == nil {
		err = wire.SkipPast(link, nonce)
	}
	if err != nil {
		link.Close()
		return
	}
	_ = link.SetDeadline(time.Time{})
	a.serve(link)
}

// halt ends all commands, writes everything to the disk, and stops the machine.
func (a *agent) halt() {
	a.links.closeAll()
	_ = unix.Kill(-1, unix.SIGKILL)
	unix.Sync()
	_ = unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}
