package daemon_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// personal is a provider whose sandboxes are machines of their users. It may
// falsely report that one is gone.
type personal struct {
	driver.Provider
	lies *atomic.Bool
}

func (personal) Permanent() bool { return true }

func (p personal) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	if p.lies.Load() {
		return nil, &sandbox.Error{Code: sandbox.CodeGone, Subject: string(id), Message: "404: no such machine"}
	}
	return p.Provider.Attach(ctx, id)
}

// A user's machine is never gone. Even if its provider says so, the session
// waits for it, creates no other, and uses it again afterwards. Neither
// reconciliation nor the reaper removes its record or ends it. RB-34.
func TestMachinesAreNeverGone(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	var lies atomic.Bool
	var world fake.World
	change := func(o *daemon.Options) {
		shortGrace(o)
		o.Providers = []providerset.Entry{{Name: "personal", Open: func(providerset.Host) (driver.Provider, error) {
			return personal{fake.New(fake.Options{World: &world, Limited: true}), &lies}, nil
		}}}
	}
	d := m.Start(t, change)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	first := s.Receipt().Sandbox
	runShell(t, s, "echo kept > /note")

	check := func(c *atoll.Client) {
		t.Helper()
		lies.Store(true)
		_, err := c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
		wantCode(t, err, sandbox.CodeUnavailable)
		if all := sandboxes(t, c); len(all) != 1 || all[0].ID != first {
			t.Fatalf("the machine was forgotten or replaced: %+v", all)
		}
		lies.Store(false)
		other, err := c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
		for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			other, err = c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{}) // the daemon looks for the machine now and then
		}
		if err != nil || other.Receipt().Sandbox != first {
			t.Fatalf("afterwards: %+v, %v", other, err)
		}
		defer other.Close()
		if got := runShell(t, other, "cat /note"); got != "kept" {
			t.Errorf("it has %q", got)
		}
	}
	check(c)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info := untilCold(t, c, "agent"); info.Lease.Sandbox != first {
		t.Errorf("the reaper forgot the machine: %+v", info.Lease)
	}
	check(c)

	all, err := c.Providers(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(p catalog.Provider) bool { return p.Name == "personal" && p.Descriptor.Permanent }) {
		t.Errorf("the descriptor says nothing of it: %v", err)
	}
	lies.Store(true) // while a daemon finds its sandboxes again
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	check(daemontest.Client(t, m.Start(t, change)))
}
