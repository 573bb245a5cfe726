package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// archipelago is three nodes and three control daemons on one PostgreSQL. All of
// them hang on one switch. The third control daemon joins later.
type archipelago struct {
	hub      *network
	plugs    int
	database string
	dir      string
	nodes    []*member
	controls []*member
	faults   map[string]int

	mu       sync.Mutex
	sessions map[string]int        // the last number that was acknowledged to be in a session
	saw      map[string]int        // operations that were acknowledged
	alive    map[string]sandbox.ID // sandboxes without a session that must be there
	dead     map[string]sandbox.ID // and that must not
	gone     []string              // sessions whose removal was acknowledged
}

// TestArchipelago lets clients use sessions and sandboxes of several control
// daemons on several nodes while all of these are killed, cut off from each other
// and from the database, drained, and their disks fill. In the end everything that
// was acknowledged is there, nothing lives twice, and all of it works again without
// a hand.
func TestArchipelago(t *testing.T) {
	need.Full(t, "TestFleetSchedules simulates the same faults")
	a := newArchipelago(t)
	a.control(t)
	a.control(t)
	a.wantReady(t)
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for worker := range 3 {
		workers.Go(func() { a.useSessions(ctx, t, worker) })
	}
	workers.Go(func() { a.useSandboxes(ctx, t) })
	begin, length := time.Now(), soakTime(t)
	order := rand.Perm(len(a.harms(t, a.nodes[0], a.controls[0], nil)))
	for n := 0; (n < len(order) || time.Since(begin) < length) && !t.Failed(); n++ {
		if len(a.controls) < 3 && (time.Since(begin) > length/3 || n == len(order)/3) {
			a.control(t)
		}
		if n < len(order) {
			a.fault(t, order[n])
		} else {
			a.fault(t, rand.IntN(len(order)))
		}
	}
	healed := time.Now()
	cancel()
	workers.Wait()
	t.Logf("faults %v, acknowledged %v; the last operation was over %v after the last fault", a.faults, a.saw, time.Since(healed).Round(time.Second))
	a.wantReady(t)
	a.compare(t)
}

// A command on a node that falls silent ends with an error within a minute, and
// meanwhile the control daemon goes on with the others.
func TestNodeFallsSilent(t *testing.T) {
	need.Full(t, "it waits until a connection is given up")
	a := newArchipelago(t)
	a.control(t)
	a.wantReady(t)
	c, dead := a.controls[0].client, a.nodes[0]
	lost, err := c.Sessions().Create(t.Context(), sandbox.Spec{Provider: "node-a", Resources: small.Resources}, atoll.SessionOptions{Name: "lost"})
	if err != nil {
		t.Fatal(err)
	}
	running, err := lost.Exec(t.Context(), sandbox.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	idle, err := c.Sessions().Create(t.Context(), sandbox.Spec{Provider: "node-b", Resources: small.Resources}, atoll.SessionOptions{Name: "idle"})
	if err != nil {
		t.Fatal(err)
	}
	dead.inside.cable(t, "down")
	if err := lost.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := idle.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	late, done := context.WithTimeout(t.Context(), time.Minute+remote.Silence)
	defer done()
	began := time.Now()
	if exit, err := running.Wait(late); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("the command on a silent node ends with %+v, %v after %v; want %s", exit, err, time.Since(began), sandbox.CodeUnavailable)
	}
	t.Logf("the command on a silent node ended after %v", time.Since(began).Round(time.Second))
	if err := soon(func() error {
		got, err := c.Sessions().Get(t.Context(), "idle")
		if err == nil && got.Info().Lease.State != "cold" {
			err = fmt.Errorf("the lease of a session on another node is %s, want it saved and cold", got.Info().Lease.State)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	dead.inside.cable(t, "up")
	a.wantReady(t)
	if err := a.onSession(t.Context(), "lost", func(ctx context.Context, x *atoll.Session) error {
		_, err := x.Run(ctx, sandbox.Command{Args: []string{"true"}})
		return err
	}); err != nil {
		t.Errorf("after the silence: %v", err)
	}
	for _, name := range []string{"lost", "idle"} {
		if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Sessions().Remove(ctx, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// newArchipelago starts the nodes.
func newArchipelago(t *testing.T) *archipelago {
	t.Helper()
	a := &archipelago{
		hub: isolated(t), database: storetest.Postgres(t), dir: t.TempDir(), faults: map[string]int{},
		sessions: map[string]int{}, saw: map[string]int{}, alive: map[string]sandbox.ID{}, dead: map[string]sandbox.ID{},
	}
	if err := os.Chmod(a.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ip(t, a.hub, "link add br0 type bridge")
	ip(t, a.hub, "link set br0 up")
	var keys, trusted []byte
	for _, name := range []string{"a", "b", "c"} {
		m := a.member(t, name)
		m.disk = smallDisk(t, "1g")
		m.state = filepath.Join(m.disk, "state")
		certs := t.TempDir()
		certify(t, certs, m.address)
		m.args = []string{"--listen", m.address + ":7070", "--host", m.address, "--tls-cert", filepath.Join(certs, "cert.pem"), "--tls-key", filepath.Join(certs, "key.pem")}
		m.begin(t)
		k, err := m.client.Admin().CreateKey(t.Context(), operator.NewKey{Name: "control", Verbs: []string{"read", "write", "exec"}})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, name+"="+k.Token+"\n"...)
		one, err := os.ReadFile(filepath.Join(certs, "cert.pem"))
		if err != nil {
			t.Fatal(err)
		}
		trusted = append(trusted, one...)
		a.nodes = append(a.nodes, m)
	}
	for name, text := range map[string][]byte{"keys": keys, "trusted.pem": trusted} {
		if err := os.WriteFile(filepath.Join(a.dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a
}
