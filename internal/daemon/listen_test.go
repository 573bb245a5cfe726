package daemon_test

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// A daemon that cannot listen on one of its addresses never opens its socket,
// which tells clients that it has started.
func TestSocketOpensLast(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, listen := range map[string]func(*daemon.Options){
		"API":    func(o *daemon.Options) { o.Listen, o.Plain = taken.Addr().String(), true },
		"E2B":    func(o *daemon.Options) { o.E2B.Listen = taken.Addr().String() },
		"bridge": func(o *daemon.Options) { o.Bridge.Listen = taken.Addr().String() },
	} {
		t.Run(name, func(t *testing.T) {
			opts := daemontest.New(t).Options()
			opts.Socket = true
			listen(&opts)
			created := watchCreated(t, opts.StateDir)
			d, err := daemon.Start(t.Context(), opts)
			if err == nil {
				_ = d.Close()
			}
			wantCode(t, err, sandbox.CodeUnavailable)
			if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Subject != taken.Addr().String() || e.Hint == "" {
				t.Errorf("the error is %#v", err)
			}
			if created()[atoll.SocketName] {
				t.Error("the daemon opened its socket before it listened on all addresses")
			}
		})
	}
}

// watchCreated returns the names that appear in a directory from now on.
func watchCreated(t *testing.T, dir string) func() map[string]bool {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	return func() map[string]bool {
		names := map[string]bool{}
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.Read(fd, buf)
			if err != nil || n == 0 {
				return names
			}
			for rest := buf[:n]; len(rest) > unix.SizeofInotifyEvent; {
				size := int(rest[12]) | int(rest[13])<<8 | int(rest[14])<<16 | int(rest[15])<<24
				names[unix.ByteSliceToString(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size])] = true
				rest = rest[unix.SizeofInotifyEvent+size:]
			}
		}
	}
}
