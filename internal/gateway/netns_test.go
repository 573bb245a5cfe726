package gateway_test

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// outside is a network namespace for a test, so that addresses and ports in it
// are not used by others.
type outside struct {
	tb testing.TB
	ns *os.File
}

func newOutside(tb testing.TB, addrs ...netip.Addr) *outside {
	tb.Helper()
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
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)
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
	return errors.Join(ioctl(fd, unix.SIOCSIFFLAGS, up), ioctl(fd, unix.SIOCSIFADDR, alias), ioctl(fd, unix.SIOCSIFNETMASK, mask))
}

func ioctl(fd int, request uintptr, r *unix.Ifreq) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(r)))
	if errno != 0 {
		return errno
	}
	return nil
}
