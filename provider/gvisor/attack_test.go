package gvisor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// outcome is the output and exit status of a command.
type outcome struct {
	stdout, stderr string
	exit           sandbox.Exit
}

// run runs a command as root inside and waits for it.
func run(tb testing.TB, in driver.Instance, cmd sandbox.Command) outcome {
	tb.Helper()
	need.Commands(tb, append(cmd.Args, cmd.Shell)...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := in.Exec(ctx, &cmd)
	if err != nil {
		tb.Fatalf("exec: %v", err)
	}
	defer p.Close()
	var out, errOut bytes.Buffer
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&errOut, p.Stderr()); done <- err }()
	_, err1 := io.Copy(&out, p.Stdout())
	if err := errors.Join(err1, <-done); err != nil {
		tb.Fatalf("reading the output: %v", err)
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		tb.Fatalf("wait: %v", err)
	}
	return outcome{out.String(), errOut.String(), exit}
}

func sh(tb testing.TB, in driver.Instance, script string) outcome {
	tb.Helper()
	return run(tb, in, sandbox.Command{Shell: script})
}

func python(tb testing.TB, in driver.Instance, script string) outcome {
	tb.Helper()
	return run(tb, in, sandbox.Command{Args: []string{"python3", "-c", script}})
}

// stillWorks checks that a sandbox answers.
func stillWorks(tb testing.TB, in driver.Instance) {
	tb.Helper()
	if err := answers(tb.Context(), in); err != nil {
		tb.Errorf("the sandbox no longer works: %v", err)
	}
}

// recovers waits until a sandbox whose memory was full runs commands again. The
// memory of a killed program is freed only after its end is known.
func recovers(tb testing.TB, in driver.Instance) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	for err := answers(tb.Context(), in); err != nil; err = answers(tb.Context(), in) {
		if exit, ended := hasEnded(tb.Context(), in); ended {
			tb.Fatalf("the sandbox has ended: %+v", exit)
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the sandbox does not recover: %v; its memory: %s", err, in.(*gvisor.Instance).LimitState())
		}
	}
}

// hasEnded returns how a sandbox or a command has ended, if it has.
func hasEnded(ctx context.Context, in interface {
	Wait(ctx context.Context) (sandbox.Exit, error)
},
) (sandbox.Exit, bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	exit, err := in.Wait(ctx)
	return exit, err == nil
}

// answers runs a trivial command.
func answers(ctx context.Context, in driver.Instance) error {
	p, err := in.Exec(ctx, &sandbox.Command{Shell: "echo alive"})
	if err != nil {
		return err
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	if err == nil && string(out) == "alive\n" {
		return nil
	}
	why, whyErr := io.ReadAll(p.Stderr())
	return errors.Join(fmt.Errorf("it said %q and %q", out, why), err, whyErr)
}

// TestAttacksRefused runs attacks as root inside. Each script prints ESCAPED if
// it succeeds.
func TestAttacksRefused(t *testing.T) {
	in := create(t, newProvider(t, nil), sandbox.Spec{Image: "host"})
	hostBinary := os.Getenv("ATOLL_KERNEL")
	before := fileHash(t, hostBinary)
	for _, tc := range []struct{ name, script string }{
		{"files of homes", `for d in /home/user /root /srv /mnt; do [ -z "$(ls -A $d 2>/dev/null)" ] || { echo ESCAPED $d; ls -A $d; }; done`},
		{"secrets of the host", `for f in /etc/shadow /etc/gshadow /etc/sudoers /etc/ssh /etc/ssl/private /etc/machine-id /var/lib/dpkg /var/log/dpkg.log /run/docker.sock /var/run/docker.sock; do [ -e $f ] && echo ESCAPED $f; done; true`},
		{"sockets of the host", `find / -xdev -type s 2>/dev/null | grep -v ^/proc | sed 's/^/ESCAPED /'`},
		{"root of the first process", `ls /proc/1/root/work /proc/1/root/home/* /proc/1/cwd/../../../../work 2>/dev/null | sed 's/^/ESCAPED /'`},
		{"dot dot from the root", `[ "$(stat -c %i /)" = "$(stat -c %i /../../..)" ] || echo ESCAPED`},
		{"descriptors left open", `for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null; done | grep -E -- '-> /(tmp|var|home|root|work|run)/' | sed 's/^/ESCAPED /'`},
		{"open a directory left open", `for f in /proc/1/fd/* /proc/self/fd/*; do [ -d "$f" ] && ls $f/.. 2>/dev/null | grep -qx boot && echo ESCAPED $f; done; true`},
		{"overwrite the program of the first process", `(echo x > /proc/1/exe) 2>/dev/null && echo ESCAPED; cp /bin/true /proc/1/exe 2>/dev/null && echo ESCAPED; true`},
		{"disks", `mknod /tmp/sda b 8 0 2>/dev/null && dd if=/tmp/sda bs=512 count=1 2>/dev/null | grep -q . && echo ESCAPED; ls /dev/sd* /dev/vd* /dev/nvme* /dev/loop* 2>/dev/null | sed 's/^/ESCAPED /'; true`},
		{"memory devices", `for n in 1 2 4; do rm -f /tmp/m; mknod /tmp/m c 1 $n 2>/dev/null && dd if=/tmp/m bs=64 count=1 2>/dev/null | grep -q . && echo ESCAPED $n; done; [ -e /dev/mem ] && echo ESCAPED; [ -e /dev/kmem ] && echo ESCAPED; [ -e /dev/kvm ] && echo ESCAPED; true`},
		{"sysrq", `(echo b > /proc/sysrq-trigger) 2>/dev/null && echo ESCAPED; true`},
		{"core pattern", `(echo '|/tmp/x' > /proc/sys/kernel/core_pattern) 2>/dev/null && echo ESCAPED; true`},
		{"modprobe path", `(echo /tmp/x > /proc/sys/kernel/modprobe) 2>/dev/null && echo ESCAPED; true`},
		{"binfmt", `(echo ':x:M::x::/tmp/x:' > /proc/sys/fs/binfmt_misc/register) 2>/dev/null && echo ESCAPED; true`},
		{"sysfs", `find /sys -type f -writable 2>/dev/null | while read f; do (echo 0 > "$f") 2>/dev/null && echo ESCAPED $f; done; true`},
		{"uevent helper", `(echo /tmp/x > /sys/kernel/uevent_helper) 2>/dev/null && echo ESCAPED; true`},
		{"mounts", `for t in proc sysfs tmpfs devtmpfs cgroup cgroup2 overlay; do mount -t $t none /mnt 2>/dev/null && echo ESCAPED $t; done; mount --bind / /mnt 2>/dev/null && echo ESCAPED bind; mount -o remount,rw /usr 2>/dev/null && echo ESCAPED remount; true`},
		{"release agent", `mkdir -p /tmp/cg; mount -t cgroup -o rdma cgroup /tmp/cg 2>/dev/null && echo ESCAPED; find / -xdev -name release_agent 2>/dev/null | while read f; do (echo /tmp/x > $f) 2>/dev/null && echo ESCAPED; done; true`},
		{"write to the toolchain", `(echo x > /usr/bin/atoll-was-here) 2>/dev/null && echo ESCAPED; rm -f /usr/bin/env 2>/dev/null && echo ESCAPED; chmod 777 /usr 2>/dev/null && echo ESCAPED; true`},
		{"lift the limit of processes", `for f in $(find /sys/fs/cgroup -name pids.max 2>/dev/null); do (echo max > $f) 2>/dev/null && echo ESCAPED; done; true`},
		{"the network", `python3 -c '
import socket
for host, port in (("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 22)):
    s = socket.socket(); s.settimeout(2)
    try:
        s.connect((host, port)); print("ESCAPED", host)
    except OSError: pass
print([i for i in socket.if_nameindex() if i[1] != "lo" and "ESCAPED"] or "")'`},
		{"modules", syscallScript("init_module", 175, "0, 0, 0") + syscallScript("finit_module", 313, "0, 0, 0")},
		{"bpf", syscallScript("bpf", 321, "0, 0, 0")},
		{"io_uring", syscallScript("io_uring_setup", 425, "8, buf")},
		{"userfaultfd", syscallScript("userfaultfd", 323, "0")},
		{"perf", syscallScript("perf_event_open", 298, "buf, 0, -1, -1, 0")},
		{"keyring", syscallScript("add_key", 248, "b'user', b'atoll', b'x', 1, -3")},
		{"handles", syscallScript("open_by_handle_at", 304, "-100, buf, 0")},
		{"ports", syscallScript("iopl", 172, "3") + syscallScript("ioperm", 173, "0x70, 2, 1")},
		{"reboot", syscallScript("reboot", 169, "0xfee1dead, 672274793, 0x1234567")},
		{"swap", syscallScript("swapon", 167, "b'/tmp/x', 0")},
		{"clock", syscallScript("settimeofday", 164, "buf, 0")},
		{"kexec", syscallScript("kexec_load", 246, "0, 0, 0, 0")},
		{"syslog of the host", `dmesg 2>/dev/null | grep -iE 'virtio|BIOS|ext4' | sed 's/^/ESCAPED /'; true`},
		{"packets of the wire", `python3 -c '
import socket
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); print("ESCAPED")
except OSError: pass'`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := sh(t, in, tc.script)
			if strings.Contains(o.stdout, "ESCAPED") {
				t.Errorf("got out: %s%s", o.stdout, o.stderr)
			}
			if o.exit.Code == 127 || strings.Contains(o.stderr, "Traceback") {
				t.Errorf("the attack did not run: %+v", o)
			}
		})
	}
	if fileHash(t, hostBinary) != before {
		t.Error("the program of the host was overwritten")
	}
	stillWorks(t, in)
}

// syscallScript makes a system call that must fail.
func syscallScript(name string, number int, args string) string {
	return `python3 -c '
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buf = ctypes.create_string_buffer(256)
r = libc.syscall(` + strconv.Itoa(number) + `, ` + strings.ReplaceAll(args, "'", `"`) + `)
if r >= 0: print("ESCAPED ` + name + `", r)
'
`
}

func fileHash(tb testing.TB, path string) [32]byte {
	tb.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return sha256.Sum256(b)
}

// TestHostProcessesAreOutOfReach tries to kill and trace host processes.
func TestHostProcessesAreOutOfReach(t *testing.T) {
	in := create(t, newProvider(t, nil), sandbox.Spec{Image: "host"})
	victim := exec.Command("sleep", "300")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = victim.Process.Kill(); _ = victim.Wait() }()
	pid := strconv.Itoa(victim.Process.Pid)
	o := sh(t, in, `kill -9 `+pid+` 2>/dev/null && echo ESCAPED; [ -e /proc/`+pid+`/cmdline ] && grep -a sleep /proc/`+pid+`/cmdline && echo ESCAPED; kill -9 -1; true`)
	if strings.Contains(o.stdout, "ESCAPED") {
		t.Errorf("reached a process of the host: %+v", o)
	}
	if err := victim.Process.Signal(nullSignal); err != nil {
		t.Errorf("a process of the host died: %v", err)
	}
	stillWorks(t, in)
}

// TestHostSecretsAreNotInside searches for values that only the host has.
func TestHostSecretsAreNotInside(t *testing.T) {
	const canary = "canary-7f3a9c"
	t.Setenv("ATOLL_TEST_CANARY", canary)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(canary), 0o600); err != nil {
		t.Fatal(err)
	}
	in := create(t, newProvider(t, nil), sandbox.Spec{Image: "host"})
	o := sh(t, in, `cat `+file+` 2>/dev/null; env; cat /proc/*/environ 2>/dev/null | tr '\0' '\n'; cat /proc/*/cmdline 2>/dev/null | tr '\0' '\n' | grep -v grep; hostname`)
	if strings.Contains(o.stdout, canary) {
		t.Error("a secret of the host is visible inside")
	}
}

// TestHostImageHidesWhatIsPrivate checks that root inside can read only those
// files of the machine's toolchain that every user of the machine can read.
func TestHostImageHidesWhatIsPrivate(t *testing.T) {
	need.Root(t, "it makes a file that others cannot read below /opt")
	f, err := os.CreateTemp("/opt", "atoll-private-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString("private"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	in := create(t, newProvider(t, nil), sandbox.Spec{Image: "host"})
	if o := sh(t, in, "ls /opt >/dev/null; cat "+f.Name()); o.exit.Code == 0 || strings.Contains(o.stdout, "private") {
		t.Errorf("root inside read a private file of the host: %+v", o)
	}
}
