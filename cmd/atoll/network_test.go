package main

import (
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/need"
)

// network is a network namespace with a cable to this machine's.
type network struct {
	ns          *os.File
	here, there string // addresses at the ends of the cable
	link        string // the end of the cable in the namespace
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := isolated(t)
	id := mathrand.IntN(1 << 13)
	at := func(host int) string { return fmt.Sprintf("198.18.%d.%d", id>>6, id&63<<2|host) } // RFC 2544
	n.here, n.there = at(1), at(2)
	outer := fmt.Sprintf("atoll%d", id)
	n.connect(t, nil, outer)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", outer).Run() })
	ip(t, nil, "addr add "+n.here+"/30 dev "+outer)
	ip(t, n, "addr add "+n.there+"/30 dev "+n.link)
	n.cable(t, "up")
	return n
}

// isolated makes a network namespace without a cable.
func isolated(t *testing.T) *network {
	t.Helper()
	need.Root(t, "others may not make network namespaces with cables")
	need.Program(t, "ip")
	n := &network{link: "v0"}
	n.inside(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		n.ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	t.Cleanup(func() { n.ns.Close() })
	ip(t, n, "link set lo up")
	return n
}

// connect makes a cable to another namespace, or to this machine's network, where
// its end has a name.
func (n *network) connect(t *testing.T, to *network, name string) {
	t.Helper()
	hold := exec.Command("sleep", "60") // names the namespace
	n.inside(t, hold.Start)
	defer func() { _ = hold.Process.Kill(); _ = hold.Wait() }()
	ip(t, to, "link add "+name+" type veth peer name "+n.link+" netns "+strconv.Itoa(hold.Process.Pid))
	ip(t, to, "link set "+name+" up")
}

// cable pulls the machine's cable, or puts it back.
func (n *network) cable(t *testing.T, state string) {
	t.Helper()
	ip(t, n, "link set "+n.link+" "+state)
}

func ip(t *testing.T, n *network, args string) {
	t.Helper()
	cmd := exec.Command("ip", strings.Fields(args)...)
	run := func() error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
		return err
	}
	if n != nil {
		n.inside(t, run)
	} else if err := run(); err != nil {
		t.Fatal(err)
	}
}

// inside runs f on a thread in the namespace, which comes back afterwards.
func (n *network) inside(t *testing.T, f func() error) {
	t.Helper()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if n.ns != nil {
		err = unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNET)
	}
	if err == nil {
		err = f()
	}
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		t.Fatal(back) // with the thread locked, so that it ends
	}
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
}

// command returns a command that runs in the namespace.
func (n *network) command(env []string, program string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), n.ns.Fd()), program}, args...)...)
	cmd.Env = env
	return cmd
}

// processes lists what runs in the namespace.
func (n *network) processes(t *testing.T) (list []string) {
	t.Helper()
	want, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", n.ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range all {
		if is, err := os.Readlink(path); err == nil && is == want {
			line, _ := os.ReadFile(filepath.Join(path, "../../cmdline"))
			list = append(list, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return list
}
