package daemon_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// nodeKeys writes the keys of nodes to a file.
func nodeKeys(t *testing.T, nodes ...*nodeDaemon) string {
	t.Helper()
	var lines []string
	for i, n := range nodes {
		lines = append(lines, string(rune('a'+i))+"="+n.key)
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// nodeList names nodes as flags do: a, b and so on.
func nodeList(nodes ...*nodeDaemon) (list []string) {
	for i, n := range nodes {
		list = append(list, string(rune('a'+i))+"=http://"+n.address)
	}
	return list
}

// repeat tries again what fails, until another daemon has noticed something.
func repeat(t *testing.T, what string, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// inSession runs a script in a session by name, and returns its output.
func inSession(ctx context.Context, c *atoll.Client, session, script string) (string, error) {
	s, err := c.Sessions().Attach(ctx, session, atoll.SessionOptions{})
	if err != nil {
		return "", err
	}
	defer func() { _ = s.Close() }()
	res, err := s.Run(ctx, sandbox.Command{Shell: script}, atoll.RunOptions{})
	return strings.TrimSpace(string(res.Stdout)), err
}

// Two control daemons on one database have the same nodes. When one has ended,
// the other one serves its sandboxes on nodes.
func TestControlsTakeOver(t *testing.T) {
	address := storetest.Postgres(t)
	a, b := newNode(t, 32<<30), newNode(t, 16<<30)
	keys := nodeKeys(t, a, b)
	m1, m2 := daemontest.New(t), daemontest.New(t)
	options := func(every time.Duration) func(*daemon.Options) {
		return func(o *daemon.Options) {
			o.Store, o.SessionGrace = address, time.Hour
			o.Fleet = &fleet.Config{Nodes: nodeList(a, b), KeyFile: keys, Every: every}
		}
	}
	d1 := m1.Start(t, options(50*time.Millisecond))
	d2 := m2.Start(t, options(time.Hour)) // remembers the nodes as they were
	c1, c2 := daemontest.Client(t, d1), daemontest.Client(t, d2)

	s := openSession(t, c1, sandbox.Spec{}, atoll.SessionOptions{Name: "work"})
	runShell(t, s, "mkdir -p /workspace; echo kept > /workspace/note")
	create(t, c1, sandbox.Spec{Name: "alone", Provider: "node-b"})
	_, err := inSession(t.Context(), c2, "work", "true")
	if wantCode(t, err, sandbox.CodeUnavailable); !strings.Contains(err.Error(), "another daemon has the sandbox") {
		t.Errorf("while its daemon lives: %v", err)
	}

	// What one decides about a node holds for the other one at once.
	yes := true
	if _, err := c1.Admin().UpdateNode(t.Context(), "a", operator.NodeChange{Cordoned: &yes}); err != nil {
		t.Fatal(err)
	}
	if sb := create(t, c2, sandbox.Spec{}); sb.Info().Provider != "node-b" {
		t.Errorf("placed on %s, want b: a is cordoned", sb.Info().Provider)
	}
	_, err = c2.Create(t.Context(), sandbox.Spec{Provider: "node-a"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)

	_ = s.Close()
	if err := d1.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := inSession(t.Context(), c2, "work", "cat /workspace/note"); err != nil || got != "kept" {
		t.Errorf("after its daemon has ended: %q, %v", got, err)
	}
	alone, err := c2.Get(t.Context(), "alone")
	if err != nil {
		t.Fatal(err)
	}
	if res, err := alone.Run(t.Context(), sandbox.Command{Shell: "echo hello"}, atoll.RunOptions{}); err != nil || string(res.Stdout) != "hello\n" {
		t.Errorf("a sandbox without a session: %+v, %v", res, err)
	}
	if len(running(t, a.m)) != 1 || len(running(t, b.m)) != 2 {
		t.Errorf("%d and %d sandboxes on the nodes, want 1 and 2: the test moved none", len(running(t, a.m)), len(running(t, b.m)))
	}

	// The one that comes back leaves them alone.
	c1 = daemontest.Client(t, m1.Start(t, options(50*time.Millisecond)))
	_, err = inSession(t.Context(), c1, "work", "true")
	wantCode(t, err, sandbox.CodeUnavailable)
	out, err := c2.Admin().DrainNode(t.Context(), "a", false)
	if err != nil || len(out.Moved) != 1 || len(out.Kept) != 0 {
		t.Errorf("drained: %+v, %v", out, err)
	}
	if got, err := inSession(t.Context(), c2, "work", "cat /workspace/note"); err != nil || got != "kept" || len(running(t, a.m)) != 0 {
		t.Errorf("after the drain: %q, %v", got, err)
	}
}

// A file lists the nodes, and another one has the certificates to trust.
func TestNodesFile(t *testing.T) {
	certificate := httptest.NewTLSServer(nil) // for 127.0.0.1
	defer certificate.Close()
	dir := t.TempDir()
	list, ca := filepath.Join(dir, "nodes"), filepath.Join(dir, "ca.pem")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate().Raw})))
	secure := func(free int64) *nodeDaemon {
		n := &nodeDaemon{m: daemontest.New(t), free: free}
		opts := n.m.Options()
		withImages(n.m, n.gives, &opts)
		opts.Listen, opts.TLS = "127.0.0.1:0", &tls.Config{Certificates: certificate.TLS.Certificates}
		opts.SetMemory(func() (int64, int64) { return free, 64 << 30 })
		d, err := daemon.Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		n.d, n.address = d, d.TCP().String()
		k, err := n.client(t).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "write", "exec"}})
		if err != nil {
			t.Fatal(err)
		}
		n.key = k.Token
		return n
	}
	a, b := secure(16<<30), secure(32<<30)
	write(list, "# machines\na=https://"+a.address+"\n")
	start := func(ca string) *isle {
		s := &isle{m: daemontest.New(t)}
		s.d = s.m.Start(t, func(o *daemon.Options) {
			o.Fleet = &fleet.Config{File: list, CAFile: ca, KeyFile: nodeKeys(t, a, b), Every: 50 * time.Millisecond}
		})
		s.Client = daemontest.Client(t, s.d)
		return s
	}
	if n := start("").state(t, "a", operator.NodeUnreachable); !strings.Contains(n.Reason, "certificate") {
		t.Errorf("without the certificate: %+v", n)
	}
	s := start(ca)
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-a" {
		t.Errorf("placed on %s, want a", sb.Info().Provider)
	}
	write(list, "a=https://"+a.address+"\nb=https://"+b.address+"\n") // noticed
	repeat(t, "the new node", func() error {
		_, err := s.Admin().Node(t.Context(), "b")
		return err
	})
	s.state(t, "b", operator.NodeReady)
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-b" {
		t.Errorf("placed on %s, want b, which has more memory", sb.Info().Provider)
	}
	write(list, "b=https://"+b.address+"\n")
	if n := s.state(t, "a", operator.NodeCordoned); !strings.Contains(n.Reason, "not listed") {
		t.Errorf("left out: %+v", n)
	}
	opts := daemontest.New(t).Options()
	opts.Fleet = &fleet.Config{File: filepath.Join(dir, "nothing")}
	_, err := daemon.Start(t.Context(), opts)
	wantCode(t, err, sandbox.CodeUnavailable)
}

// Control daemons share the snapshots that are in their blob store. One that
// starts leaves those alone that another one has not saved yet.
func TestControlsShareSnapshots(t *testing.T) {
	address, blobs := storetest.Postgres(t), t.TempDir()
	a, b := newNode(t, 32<<30), newNode(t, 16<<30)
	keys := nodeKeys(t, a, b)
	with := func(fault func(string) error) func(*daemon.Options) {
		return func(o *daemon.Options) {
			o.Store, o.Blobs, o.PlainSnapshots, o.Fault = address, blobs, true, fault
			o.Fleet = &fleet.Config{Nodes: nodeList(a, b), KeyFile: keys, Every: 50 * time.Millisecond}
		}
	}
	m1, m2 := daemontest.New(t), daemontest.New(t)
	var saves atomic.Bool
	c1 := daemontest.Client(t, m1.Start(t, with(func(at string) error {
		if at == "save.begun" && !saves.Load() {
			return errors.New("the test saves nothing yet")
		}
		return nil
	})))
	d2 := m2.Start(t, with(nil))
	create(t, daemontest.Client(t, d2), sandbox.Spec{Name: "two", Provider: "node-a"})

	sb := create(t, c1, sandbox.Spec{Name: "one", Provider: "node-a"})
	shell(t, sb, "echo far > /f")
	if _, err := sb.Snapshot(t.Context(), durable.SnapshotRequest{Name: "unsaved"}); err != nil {
		t.Fatal(err)
	}
	if err := d2.Close(); err != nil {
		t.Fatal(err)
	}
	c2 := daemontest.Client(t, m2.Start(t, with(nil))) // it reconciles with node a, where it has a sandbox
	if out := shell(t, create(t, c1, sandbox.Spec{Snapshot: "unsaved"}), "cat /f"); out != "far\n" {
		t.Errorf("the snapshot of the other daemon: %q", out)
	}
	_, err := c2.Create(t.Context(), sandbox.Spec{Snapshot: "unsaved"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	saves.Store(true)
	saved(t, sb, "before")
	for _, node := range []string{"node-a", "node-b"} {
		if out := shell(t, create(t, c2, sandbox.Spec{Snapshot: "before", Provider: node}), "cat /f"); out != "far\n" {
			t.Errorf("through the other daemon, on %s: %q", node, out)
		}
	}
}
