package daemon_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// A published port belongs to the sandbox until it is removed: a stop closes
// it, and a start or another daemon opens it again.
func TestPublishedPorts(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	port := freePort(t)
	at := sandbox.PublishedPort{HostPort: port, Port: 80}
	create(t, c, sandbox.Spec{Name: "web", Ports: []sandbox.PublishedPort{at, {Port: 81}}})
	if !listens(at) {
		t.Error("nobody listens on the published port")
	}
	all, err := c.PublishedPorts(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "web" || all[0].HostPort == 0 || all[1].HostPort == 0 {
		t.Errorf("the daemon lists %+v, %v", all, err)
	}

	// Another sandbox cannot use the port, and nothing is left of it.
	_, err = c.Create(t.Context(), sandbox.Spec{Name: "other", Ports: []sandbox.PublishedPort{{Port: 90}, at}}, atoll.CreateOptions{})
	if sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a port that is taken was published twice: %v", err)
	}
	if all, _ = c.PublishedPorts(t.Context()); len(all) != 2 {
		t.Errorf("a sandbox that could not be made has ports: %+v", all)
	}

	// A daemon that ends releases the port, and the next one publishes it again.
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if listens(at) {
		t.Error("a daemon that ended listens on")
	}
	d = m.Start(t, nil)
	c = daemontest.Client(t, d)
	s, err := c.Get(t.Context(), "web")
	if err != nil || !listens(at) {
		t.Errorf("the next daemon does not listen: %v", err)
	}

	// More can be published, and less.
	more, err := s.Publish(t.Context(), sandbox.PublishedPort{Port: 82})
	if err != nil || more.HostPort == 0 || !listens(more) {
		t.Errorf("a sandbox that runs published %+v: %v", more, err)
	}
	if _, err := s.Publish(t.Context(), sandbox.PublishedPort{HostPort: port, Port: 82}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a port that is taken was published: %v", err)
	}
	if err := s.Unpublish(t.Context(), more.HostPort); err != nil || listens(more) {
		t.Errorf("a port that is not published any more: %v", err)
	}
	if err := s.Unpublish(t.Context(), more.HostPort); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("unpublishing it again: %v", err)
	}

	if _, err := s.Stop(t.Context(), 0); err != nil || listens(at) {
		t.Errorf("a sandbox that is stopped holds its port: %v", err)
	}
	taken, err := net.Listen("tcp4", at.Listen())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(t.Context()); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("it started although its port is taken: %v", err)
	}
	_ = taken.Close()
	if _, err := s.Start(t.Context()); err != nil || !listens(at) {
		t.Errorf("it does not listen after a start: %v", err)
	}
	copies, err := s.Fork(t.Context(), durable.ForkRequest{})
	if err != nil || len(copies[0].Info().Ports) != 0 {
		t.Errorf("a copy has ports of its parent: %v", err)
	}
	if err := s.Destroy(t.Context()); err != nil || listens(at) {
		t.Errorf("a sandbox that was removed holds its port: %v", err)
	}
}

// Only the owner of the machine may use its ports.
func TestPublishingIsForTheOwner(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner := daemontest.Client(t, d)
	create(t, owner, sandbox.Spec{Name: "web"})
	k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	guest := daemontest.Bearer(t, d, k.Token)
	if _, err := guest.Create(t.Context(), sandbox.Spec{Ports: []sandbox.PublishedPort{{Port: 80}}}, atoll.CreateOptions{}); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("somebody with a key made a sandbox with a published port: %v", err)
	}
	s, err := guest.Get(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Publish(t.Context(), sandbox.PublishedPort{Port: 80}); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("somebody with a key published a port: %v", err)
	}
}

// listens reports whether a published port accepts connections.
func listens(p sandbox.PublishedPort) bool {
	conn, err := net.Dial("tcp", p.Listen())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, syscall.ECONNRESET) // nothing listens in the sandbox, and that was known at once
}
