//go:build microvm

package microvm_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/provider/microvm"
	"github.com/atoll-run/atoll/sandbox"
)

// The network that the sandboxes of the tests see.
var (
	addresses = []netip.Prefix{netip.MustParsePrefix("198.18.0.2/32"), netip.MustParsePrefix("fd61:746f:6c6c::2/128")}
	server    = netip.MustParseAddr("198.18.0.1")
)

// What the tests share. TestMain sets it.
var (
	root  string // a directory with a small root file system
	state string // of all providers: the boot files are made once
	accel string
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, remove, err := scratch.Dir("atoll-microvm-")
	if err == nil {
		defer func() { _ = remove() }()
		root, state = filepath.Join(dir, "root"), filepath.Join(dir, "state")
		err = makeRoot(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if accel = os.Getenv("ATOLL_MICROVM_ACCEL"); accel == "" {
		accel = microvm.AccelTCG
	}
	return m.Run()
}

// makeRoot makes a root file system with busybox and a program that tests ports.
func makeRoot(dir string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("these tests need busybox: apt-get install busybox-static")
	}
	for _, d := range []string{"bin", "etc", "root", "tmp", "var"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(busybox)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755)
	}
	if err != nil {
		return err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return err
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
				return err
			}
		}
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "bin/helper"), "../docker/testdata/helper")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the helper: %w\n%s", err, out)
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", "etc/group": "root:x:0:\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(dir, "tmp"), 0o1777|os.ModeSticky)
}

// options returns the options of a provider.
func options(t testing.TB) microvm.Options {
	t.Helper()
	store, err := image.Open(filepath.Join(state, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return microvm.Options{StateDir: filepath.Join(state, "microvm"), Images: store, Accel: accel, Kernel: os.Getenv("ATOLL_MICROVM_KERNEL")}
}

func spec() sandbox.Spec {
	return sandbox.Spec{Image: "dir:" + root, Resources: sandbox.Resources{Memory: 128 << 20, Disk: 256 << 20, CPUs: 1}}
}

func TestConformance(t *testing.T) {
	opts := options(t)
	drivertest.Run(t, drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return microvm.New(opts) },
		Spec: spec,
		Echo: []string{"/bin/helper"},
		SnapshotFiles: func(ref driver.SnapshotRef) string {
			return filepath.Join(opts.StateDir, "snapshots", ref.Data, "files")
		},
		Only:     strings.Fields(os.Getenv("ATOLL_MICROVM_ONLY")),
		Slow:     true,
		Parallel: true,
	})
}
