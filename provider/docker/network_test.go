//go:build docker

package docker_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// addNetwork creates a network of the daemon.
func addNetwork(t *testing.T, name string) {
	t.Helper()
	if _, err := api.NetworkCreate(t.Context(), name, client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = api.NetworkRemove(context.Background(), name, client.NetworkRemoveOptions{}) })
}

// cut disconnects a sandbox from its network.
func cut(t *testing.T, id, network string) {
	t.Helper()
	for _, c := range containers(t, id) {
		if _, err := api.NetworkDisconnect(t.Context(), network, client.NetworkDisconnectOptions{Container: c.ID}); err != nil {
			t.Error(err)
		}
	}
	if got := networks(t, id); got != "" {
		t.Errorf("%s is still connected to %q", id, got)
	}
}

// networks lists the networks of a sandbox, as reported by the daemon.
func networks(t *testing.T, id string) string {
	t.Helper()
	var names []string
	for _, c := range containers(t, id) {
		for name := range c.NetworkSettings.Networks {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// counted forwards requests and counts those that connect a container.
func counted(n *atomic.Int32) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, daemon http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/connect") {
			n.Add(1)
		}
		daemon.ServeHTTP(w, r)
	}
}

// openSpec is the spec of a sandbox with unrestricted network access.
func openSpec(id string) sandbox.Spec {
	return sandbox.Spec{ID: sandbox.ID(id), Network: sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}}}
}

// address prints the number of IPv4 addresses in the sandbox, without loopback.
const address = `ip -o -4 addr | grep -v ' lo ' | wc -l`

// A sandbox is connected to its network when it is created, resumed or
// attached. There is no request if it is connected. RB-13.
func TestNetworkIsConnected(t *testing.T) {
	addNetwork(t, "rb13")
	var connects atomic.Int32
	opts := options(t.TempDir())
	opts.Network, opts.Host = "rb13", forwarder(t, counted(&connects))
	in := create(t, open(t, opts), openSpec("net-1"))
	attach := func() driver.Instance {
		t.Helper()
		again, err := open(t, opts).Attach(t.Context(), "net-1")
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	check := func(what string, in driver.Instance, want int32) {
		t.Helper()
		if got := networks(t, "net-1"); got != "rb13" {
			t.Errorf("%s: the sandbox is connected to %q", what, got)
		}
		if got := shell(t, in, address); got != "1" {
			t.Errorf("%s: the sandbox has %s addresses", what, got)
		}
		if got := connects.Swap(0); got != want {
			t.Errorf("%s: %d requests to connect it, want %d", what, got, want)
		}
	}
	turn := func(lost bool) {
		t.Helper()
		if err := in.(driver.Pauser).Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if lost {
			cut(t, "net-1", "rb13")
		}
		if err := in.(driver.Pauser).Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	check("made", in, 0)
	turn(false)
	check("resumed", in, 0)
	turn(true)
	check("resumed after the network was lost", in, 1)
	check("attached", attach(), 0)
	cut(t, "net-1", "rb13")
	again := attach()
	if got := networks(t, "net-1"); got != "rb13" {
		t.Errorf("Attach left the sandbox connected to %q", got)
	}
	check("attached after the network was lost", again, 1)
}

// A sandbox without a network is never connected. RB-13.
func TestClosedSandboxesStayClosed(t *testing.T) {
	addNetwork(t, "rb13-closed")
	var connects atomic.Int32
	opts := options(t.TempDir())
	opts.Network, opts.Host = "rb13-closed", forwarder(t, counted(&connects))
	in := create(t, open(t, opts), sandbox.Spec{ID: "net-2"})
	if err := in.(driver.Pauser).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := in.(driver.Pauser).Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := open(t, opts).Attach(t.Context(), "net-2")
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, again, address); got != "0" || networks(t, "net-2") != "none" || connects.Load() != 0 {
		t.Errorf("%s addresses, networks %q, %d requests to connect", got, networks(t, "net-2"), connects.Load())
	}
}

// The network is disconnected during creation, right after the start. RB-13.
func TestConnectedAfterStart(t *testing.T) {
	addNetwork(t, "rb13-start")
	var connects atomic.Int32
	opts := options(t.TempDir())
	opts.Network = "rb13-start"
	opts.Host = forwarder(t, func(w http.ResponseWriter, r *http.Request, daemon http.Handler) {
		counted(&connects)(w, r, daemon)
		if strings.HasSuffix(r.URL.Path, "/start") && strings.Contains(r.URL.Path, "/containers/") {
			cut(t, "net-6", "rb13-start")
		}
	})
	in := create(t, open(t, opts), openSpec("net-6"))
	if got := shell(t, in, address); got != "1" || connects.Load() != 1 {
		t.Errorf("%s addresses and %d requests to connect, want 1 and 1", got, connects.Load())
	}
}

// If another client connects the container first, "already exists" is success.
// RB-13.
func TestAlreadyConnected(t *testing.T) {
	addNetwork(t, "rb13-race")
	var connects atomic.Int32
	opts := options(t.TempDir())
	opts.Network = "rb13-race"
	in := create(t, open(t, opts), openSpec("net-3"))
	if err := in.(driver.Pauser).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	cut(t, "net-3", "rb13-race")
	opts.Host = forwarder(t, func(w http.ResponseWriter, r *http.Request, daemon http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/connect") {
			for _, c := range containers(t, "net-3") {
				if _, err := api.NetworkConnect(r.Context(), "rb13-race", client.NetworkConnectOptions{Container: c.ID}); err != nil {
					t.Error(err)
				}
			}
		}
		counted(&connects)(w, r, daemon)
	})
	again, err := open(t, opts).Attach(t.Context(), "net-3")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.(driver.Pauser).Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, again, address); got != "1" || connects.Load() != 1 {
		t.Errorf("%s addresses and %d requests to connect, want 1 and 1", got, connects.Load())
	}
}

// If the network is missing, the sandbox stays paused and is unavailable, not
// gone. It works again once the network exists, and Destroy always works. RB-13.
func TestMissingNetwork(t *testing.T) {
	addNetwork(t, "rb13-lost")
	opts := options(t.TempDir())
	opts.Network = "rb13-lost"
	p := open(t, opts)
	in := create(t, p, openSpec("net-4"))
	if err := in.(driver.Pauser).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	drop := func() {
		t.Helper()
		cut(t, "net-4", "rb13-lost")
		if _, err := api.NetworkRemove(t.Context(), "rb13-lost", client.NetworkRemoveOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	drop()
	if err := in.(driver.Pauser).Resume(t.Context()); p.ErrorCode(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "rb13-lost") {
		t.Errorf("Resume: %v, want unavailable and the name of the network", err)
	}
	if state, err := p.State(t.Context(), "net-4"); state != sandbox.Paused {
		t.Errorf("after Resume has failed: %s, %v, want paused", state, err)
	}
	addNetwork(t, "rb13-lost")
	if err := in.(driver.Pauser).Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, in, address); got != "1" {
		t.Errorf("%s addresses after the network is back", got)
	}
	drop()
	again, err := open(t, opts).Attach(t.Context(), "net-4")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Exec(t.Context(), &sandbox.Command{Shell: "true"}); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Exec: %v, want unavailable", err)
	}
	if err := again.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Create with a missing network leaves nothing behind. RB-13.
func TestCreateWithoutNetwork(t *testing.T) {
	opts := options(t.TempDir())
	opts.Network = "rb13-never"
	p, spec := open(t, opts), openSpec("net-5")
	spec.Image = "host"
	if _, err := p.Create(t.Context(), &spec); err == nil || !strings.Contains(err.Error(), "rb13-never") {
		t.Errorf("Create: %v, want an error that names the network", err)
	}
	if left := containers(t, "net-5"); len(left) != 0 {
		t.Errorf("a container is left: %+v", left)
	}
}
