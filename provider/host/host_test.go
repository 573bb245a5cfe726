package host_test

import (
	"context"
	"os"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
	_ "github.com/atoll-run/atoll/internal/guest/early" // the test binary is the guest, too
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/sandbox"
)

// stateDir is a directory that other users can pass, unlike t.TempDir.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-host") //nolint:usetesting // others cannot pass t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("something is left: %v", err)
			os.RemoveAll(dir)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestConformance(t *testing.T) {
	dir := stateDir(t)
	drivertest.Run(t, drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return host.New(host.Options{Dir: dir}) },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Dir:  func(in driver.Instance) string { return in.(*host.Instance).Dir() },
	})
}
