package gateway_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/need"
)

// inside is set in the environment of tests that runInside runs.
const inside = "ATOLL_TEST_INSIDE"

// runInside runs the tests of a normal user in a user namespace, in which the
// same user may make network namespaces. It returns their exit code.
func runInside() (code int, ok bool) {
	if os.Geteuid() == 0 {
		return 0, false
	}
	if os.Getenv(inside) != "" {
		if err := withSocket(func(fd int) error { return start(fd, "lo") }); err != nil {
			panic(err)
		}
		return 0, false
	}
	runtime.LockOSThread() // the tests are killed when this thread ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE},
		Pdeathsig:   unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, false // newOutside skips
	}
	if err := cmd.Wait(); err != nil {
		return max(cmd.ProcessState.ExitCode(), 1), true
	}
	return 0, true
}

// outside is a network namespace for a test, so that addresses and ports in it
// are not used by others.
type outside struct {
	tb testing.TB
	ns *os.File
}

func newOutside(tb testing.TB, addrs ...netip.Addr) *outside {
	tb.Helper()
	if os.Getenv(inside) == "" {
		need.Root(tb, "others may not make network namespaces here")
	}
	o := &outside{tb: tb}
	locked(tb, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		if o.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		for i, a := range addrs {
			if err := addAddress(i, a); err != nil {
				return err
			}
		}
		return nil
	})
	tb.Cleanup(func() { o.ns.Close() })
	return o
}

// do runs f in the namespace: sockets that it makes and processes that it starts
// are there.
func (o *outside) do(f func()) {
	o.tb.Helper()
	locked(o.tb, func() error {
		if err := unix.Setns(int(o.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		f()
		return nil
	})
}

// locked runs f on a thread that comes back to the namespace that it was in.
func locked(tb testing.TB, f func() error) {
	tb.Helper()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		tb.Fatal(err)
	}
	defer home.Close()
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		tb.Fatal(back) // with the thread locked, so that it ends
	}
	runtime.UnlockOSThread()
	if err != nil {
		tb.Fatal(err)
	}
}

// addAddress gives the loopback another address, and starts it.
func addAddress(number int, a netip.Addr) error {
	alias, err := unix.NewIfreq("lo:" + string(rune('1'+number)))
	if err != nil {
		return err
	}
	if err := alias.SetInet4Addr(a.AsSlice()); err != nil {
		return err
	}
	mask, err := unix.NewIfreq("lo:" + string(rune('1'+number)))
	if err != nil {
		return err
	}
	if err := mask.SetInet4Addr([]byte{255, 255, 255, 255}); err != nil {
		return err
	}
	return withSocket(func(fd int) error {
		return errors.Join(start(fd, "lo"), ioctl(fd, unix.SIOCSIFADDR, alias), ioctl(fd, unix.SIOCSIFNETMASK, mask))
	})
}

// withSocket runs f with a socket of this thread's network namespace.
func withSocket(f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// start starts a network interface.
func start(fd int, name string) error {
	up, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)
	return ioctl(fd, unix.SIOCSIFFLAGS, up)
}

func ioctl(fd int, request uintptr, r *unix.Ifreq) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(r)))
	if errno != 0 {
		return errno
	}
	return nil
}
