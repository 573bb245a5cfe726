package ports_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// echo answers on every port with who connected, and where to.
type echo struct{}

func (echo) DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		fmt.Fprintf(far, "%s/%s:%d", who.Tenant, ref, port)
	}()
	return near, nil
}

func open(t *testing.T) *ports.Service { return ports.New(coretest.Open(t), echo{}) }

// record returns the record of the sandbox sb-1 of the tenant acme.
func record(state sandbox.State, all ...sandbox.PublishedPort) *store.Sandbox {
	b := &store.Sandbox{}
	b.Tenant, b.ID, b.Name, b.State, b.Spec.Ports = coretest.Acme, "sb-1", "web", state, all
	return b
}

// reserve publishes port 80 of sb-1 on a free port, which it returns.
func reserve(t *testing.T, s *ports.Service) sandbox.PublishedPort {
	t.Helper()
	made, err := s.Reserve(coretest.Acme, "sb-1", "web", []sandbox.PublishedPort{{Port: 80}})
	coretest.OK(t, err)
	if len(made) != 1 || made[0].HostPort == 0 || made[0].Port != 80 {
		t.Fatalf("Reserve() = %+v, want port 80 on a port of the machine", made)
	}
	return made[0]
}

// said is what a published port answers; empty: nobody listens there.
func said(t *testing.T, p sandbox.PublishedPort) string {
	t.Helper()
	c, err := net.Dial("tcp4", p.Listen())
	if err != nil {
		return ""
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	coretest.OK(t, err)
	return string(text)
}

// A published port leads to its sandbox, on behalf of its tenant.
func TestReserve(t *testing.T) {
	p := reserve(t, open(t))
	if got, want := said(t, p), "acme/sb-1:80"; got != want {
		t.Errorf("the port answers %q, want %q", got, want)
	}
}

// Either all ports are published or none.
func TestReserveAllOrNone(t *testing.T) {
	s := open(t)
	taken := reserve(t, s)
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	coretest.OK(t, err)
	other := sandbox.PublishedPort{Port: 81, HostPort: uint16(free.Addr().(*net.TCPAddr).Port)}
	coretest.OK(t, free.Close())
	_, err = s.Reserve(coretest.Acme, "sb-2", "other", []sandbox.PublishedPort{other, {Port: 80, HostPort: taken.HostPort}})
	coretest.WantCode(t, err, sandbox.CodeConflict)
	if got := said(t, other); got != "" {
		t.Errorf("the other port answers %q, want that nobody listens", got)
	}
	if got, want := said(t, taken), "acme/sb-1:80"; got != want {
		t.Errorf("the taken port answers %q, want as before %q", got, want)
	}
}

// A sandbox has its ports while it runs or is paused.
func TestSync(t *testing.T) {
	for state, open := range map[sandbox.State]bool{
		sandbox.Creating: true, sandbox.Running: true, sandbox.Paused: true, sandbox.Lost: true,
		sandbox.Stopped: false, sandbox.Failed: false, sandbox.Gone: false,
	} {
		t.Run(string(state), func(t *testing.T) {
			s := ports.New(coretest.Open(t), echo{})
			p := reserve(t, s)
			s.Sync(record(state, p))
			if got := said(t, p) != ""; got != open {
				t.Errorf("the port of a sandbox that is %s is open: %v, want %v", state, got, open)
			}
		})
	}
}

// A port that was taken is published as soon as it is free and asked for again.
func TestSyncTriesAgain(t *testing.T) {
	s := open(t)
	other, err := net.Listen("tcp4", "127.0.0.1:0")
	coretest.OK(t, err)
	p := sandbox.PublishedPort{Port: 80, HostPort: uint16(other.Addr().(*net.TCPAddr).Port)}
	s.Sync(record(sandbox.Running, p))
	if all := list(t, s, coretest.Acme); len(all) != 1 || all[0].Error == "" {
		t.Errorf("the ports are %+v, want one with the error that it is taken", all)
	}
	coretest.OK(t, other.Close())
	s.Sync(record(sandbox.Running, p))
	if all := list(t, s, coretest.Acme); len(all) != 1 || all[0].Error != "" {
		t.Errorf("the ports are %+v, want one without an error", all)
	}
	s.Sync(record(sandbox.Running))
	if all := list(t, s, coretest.Acme); len(all) != 0 {
		t.Errorf("the ports are %+v after they were removed from the record, want none", all)
	}
}

// Tenants see their own ports, in the order of names.
func TestList(t *testing.T) {
	s := open(t)
	for _, name := range []string{"b", "a"} {
		_, err := s.Reserve(coretest.Acme, sandbox.ID("sb-"+name), name, []sandbox.PublishedPort{{Port: 80}})
		coretest.OK(t, err)
	}
	var names []string
	for _, p := range list(t, s, coretest.Acme) {
		if names = append(names, p.Name); p.Address != sandbox.LoopbackAddress {
			t.Errorf("the address of %s is %q, want %q", p.Name, p.Address, sandbox.LoopbackAddress)
		}
	}
	if want := []string{"a", "b"}; !slices.Equal(names, want) {
		t.Errorf("the ports are of %q, want %q", names, want)
	}
	if all := list(t, s, coretest.Rival); len(all) != 0 {
		t.Errorf("another tenant sees %+v, want none", all)
	}
}

func list(t *testing.T, s *ports.Service, tenant string) []sandbox.Publication {
	t.Helper()
	all, err := s.List(coretest.As(t, tenant, key.Read))
	coretest.OK(t, err)
	return all
}
