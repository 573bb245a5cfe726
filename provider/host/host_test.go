package host_test

import (
	"context"
	"os"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	_ "github.com/atoll-run/atoll/internal/guest/early" // the test binary is the guest, too
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// stateDir is a directory that other users can traverse, unlike t.TempDir.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-host") //nolint:usetesting // other users cannot traverse t.TempDir
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

		Parallel: true,
	})
}

// TestEgress checks that rules are refused unless a policy says that nothing
// has to be enforced.
func TestEgress(t *testing.T) {
	p, err := host.New(host.Options{Dir: stateDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if a := p.EgressAbility(); a.Kind != enforce.None {
		t.Errorf("it enforces %q", a.Kind)
	}
	for _, plain := range []*sandbox.EgressRules{nil, {}, {Allow: []sandbox.EgressTarget{{Host: "a.test"}}}, {Open: true}} {
		in, err := p.Create(t.Context(), &sandbox.Spec{ID: "egress", Image: "host", Network: sandbox.Network{Egress: []string{"a.test"}, Plain: plain}})
		if open := plain != nil && plain.Open; open != (err == nil) || !open && p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%+v: %v", plain, err)
		}
		if err == nil {
			if err := in.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
