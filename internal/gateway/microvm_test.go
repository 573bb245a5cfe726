//go:build microvm

package gateway_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/provider/microvm"
	"github.com/atoll-run/atoll/sandbox"
)

// frames connects virtual machines to the gateway of a rig.
type frames struct{ *rig }

func (f frames) Connect(ctx context.Context, spec *sandbox.Spec, former microvm.Known) (*microvm.Link, error) {
	profile, _ := spec.Network.Local()
	l, err := f.gateway.ConnectEthernet(ctx, spec.ID, gateway.Policy{Profile: profile}, gateway.Known(former))
	return (*microvm.Link)(l), err
}

func (f frames) Known(ctx context.Context, id sandbox.ID) (microvm.Known, error) {
	k, err := f.gateway.Known(ctx, id)
	return microvm.Known(k), err
}

// connect is Harness.Connect with busybox.
const connect = `began=$(date +%s)
said=$(timeout 60 nc "$1" "$2" </dev/null 2>/dev/null)
if [ -n "$said" ]; then echo "$said"
elif [ $(($(date +%s) - began)) -gt 40 ]; then echo late
else echo refused
fi`

// TestConformanceMicrovm is TestConformance for virtual machines: the rules hold
// behind a card with Ethernet frames, too.
func TestConformanceMicrovm(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("these tests need busybox: apt-get install busybox-static")
	}
	root := t.TempDir()
	for _, dir := range []string{"bin", "etc", "root", "tmp", "var"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n", "bin/busybox": string(program)} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil {
				t.Fatal(err)
			}
		}
	}
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	accel := os.Getenv("ATOLL_MICROVM_ACCEL")
	if accel == "" {
		accel = microvm.AccelTCG
	}
	opts := microvm.Options{
		StateDir: t.TempDir(), Images: store, Accel: accel, Kernel: os.Getenv("ATOLL_MICROVM_KERNEL"),
		Network: frames{newRig(t, loopback("machine.test"))},
	}
	drivertest.Run(t, drivertest.Harness{
		New: func(context.Context) (driver.Provider, error) { return microvm.New(opts) },
		Spec: func() sandbox.Spec {
			return sandbox.Spec{Image: "dir:" + root, Resources: sandbox.Resources{Memory: 128 << 20, Disk: 256 << 20, CPUs: 1}}
		},
		Host:    "machine.test",
		Connect: []string{"/bin/sh", "-c", connect, "sh"},
		Only:    []string{"capabilities/network", "network/"},
		Slow:    true,
	})
}
