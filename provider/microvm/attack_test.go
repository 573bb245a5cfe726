//go:build microvm

package microvm_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/microvm"
	"github.com/atoll-run/atoll/sandbox"
)

// plain connects sandboxes with sockets of the test.
type plain struct{ ends chan *os.File }

func (p plain) Connect(context.Context, *sandbox.Spec, microvm.Known) (*microvm.Link, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p.ends <- os.NewFile(uintptr(fds[0]), "gateway")
	return &microvm.Link{File: os.NewFile(uintptr(fds[1]), "card"), MTU: 65520, Addresses: addresses, DNS: server}, nil
}

func (plain) Known(context.Context, sandbox.ID) (microvm.Known, error) { return microvm.Known{}, nil }

// create makes a sandbox that ends with the test.
func create(t *testing.T, opts microvm.Options, s sandbox.Spec) driver.Instance {
	t.Helper()
	p, err := microvm.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	s.ID = sandbox.ID("attack-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")))
	in, err := p.Create(t.Context(), &s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return in
}

// sh runs a script as root and returns its output.
func sh(t testing.TB, in driver.Instance, script string) string {
	t.Helper()
	p, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"/bin/sh", "-c", script}, Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestAttackDevices lets root inside look for a way out: what QEMU offers, the
// rights to use it, and the guest.
func TestAttackDevices(t *testing.T) {
	in := create(t, options(t), spec())
	if got := sh(t, in, "cd /sys; ls bus/pci/devices; ls class/scsi_host; ls bus/usb/devices; ls class/net | grep -v lo; true"); got != "" {
		t.Errorf("there are devices that nobody asked for:\n%s", got)
	}
	for what, script := range map[string]string{
		"mounting":             "mount -t proc none /tmp",
		"a port of the guest":  "mknod /tmp/p c $(cat /sys/class/virtio-ports/vport*p1/dev | tr : ' ' | head -1) && echo x >/tmp/p",
		"loading a module":     "insmod /etc/passwd",
		"I/O ports":            "mknod /tmp/port c 1 4 && head -c 1 /tmp/port",
		"the machine's memory": "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
		"restarting":           "reboot -f",
		"the clock":            "date -s 2001-01-01; [ $(date +%Y) = 2001 ]",
		"the limits":           "echo max >/sys/fs/cgroup/pids.max",
		"the guest's memory":   "cat /proc/1/environ",
	} {
		if got := sh(t, in, "{ "+script+"; } && echo done"); strings.HasSuffix(got, "done\n") {
			t.Errorf("%s works: %q", what, got)
		}
	}
	if got := sh(t, in, "kill -9 1; kill -STOP 1; sleep 1; echo alive"); got != "alive\n" {
		t.Errorf("after signals to the guest: %q", got)
	}
}

// TestAttackFrames lets a sandbox send what is no packet, and more than its reader
// takes. The sandbox must still work, and its frames must be as large as agreed.
func TestAttackFrames(t *testing.T) {
	opts := options(t)
	network := plain{ends: make(chan *os.File, 1)}
	opts.Network = network
	s := spec()
	s.Network.Egress = []string{"attack.example"}
	in := create(t, opts, s)
	gateway := <-network.ends
	defer gateway.Close()
	if got := sh(t, in, "ifconfig eth0 | grep -o MTU:65520; route -n | grep -c eth0; cat /etc/resolv.conf | head -1"); !strings.Contains(got, "MTU:65520\n1\nnameserver "+server.String()) {
		t.Errorf("the network inside: %q", got)
	}
	// Nobody reads: the machine must not wait for that.
	sh(t, in, "for i in 1 2 3 4 5 6 7 8; do head -c 60000 /dev/zero | nc -u -w 1 192.0.2.1 9 & done; wait; true")
	// The gateway sends what is no frame, and floods the machine.
	for _, frame := range [][]byte{{0}, bytes.Repeat([]byte{0xff}, 13), bytes.Repeat([]byte{0xff}, 65000), make([]byte, 70000)} {
		_ = unix.Send(int(gateway.Fd()), frame, unix.MSG_DONTWAIT)
	}
	if got := sh(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("after the flood: %q", got)
	}
	b := make([]byte, 1<<20)
	for seen := false; ; seen = true {
		n, _, err := unix.Recvfrom(int(gateway.Fd()), b, unix.MSG_DONTWAIT)
		if err != nil {
			if !seen {
				t.Error("no frame arrived")
			}
			break
		}
		if n > 65520+14 {
			t.Errorf("a frame of %d bytes", n)
		}
	}
}

// TestConfined checks that QEMU runs as another user, in its own namespaces, and
// behind a filter.
func TestConfined(t *testing.T) {
	in := create(t, options(t), spec())
	pid := in.(*microvm.Instance).PID()
	proc := func(name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }
	status, err := os.ReadFile(proc("status"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Seccomp:\t2\n", "CapEff:\t0000000000000000\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("QEMU's status lacks %q:\n%s", want, status)
		}
	}
	if os.Geteuid() == 0 && !strings.Contains(string(status), "Uid:\t65534\t65534\t65534\t65534\n") {
		t.Errorf("QEMU does not run as nobody:\n%s", status)
	}
	for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts", "user"} {
		theirs, err := os.Readlink(proc("ns/" + ns))
		ours, _ := os.Readlink("/proc/self/ns/" + ns)
		if err != nil || theirs == ours {
			t.Errorf("QEMU shares the %s namespace of this process: %s, %v", ns, theirs, err)
		}
	}
}
