package daemon_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/eventtype"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// nodeDaemon is the daemon of a node. It can be killed and started again.
type nodeDaemon struct {
	m       *daemontest.Machine
	d       *daemon.Daemon
	address string
	free    int64
	gives   sandbox.Isolation
	key     string
	blobs   string // address of its blob store; empty: in its state directory
	images  string // address of the store of shared images; empty: blobs
	logger  *slog.Logger
}

// imaged is a provider that runs images.
type imaged struct{ *fake.Provider }

func (p imaged) Probe(ctx context.Context) (driver.Facts, error) {
	facts, err := p.Provider.Probe(ctx)
	facts.Capabilities.Images = true
	return facts, err
}

func (p imaged) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	plain := *spec
	plain.Image = ""
	return p.Provider.Create(ctx, &plain)
}

func (p imaged) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	plain := *spec
	plain.Image = ""
	return p.Provider.Restore(ctx, &plain, ref)
}

func withImages(m *daemontest.Machine, gives sandbox.Isolation, o *daemon.Options) {
	o.Providers = []providerset.Entry{{Name: "fake", Open: func(providerset.Host) (driver.Provider, error) {
		return imaged{fake.New(fake.Options{World: m.World, Limited: true, Isolation: gives, SnapshotDir: filepath.Join(m.Dir, "snapshots")})}, nil
	}}}
}

func (n *nodeDaemon) start(t *testing.T) {
	t.Helper()
	opts := n.m.Options()
	withImages(n.m, n.gives, &opts)
	opts.Listen, opts.Plain = cmp.Or(n.address, "127.0.0.1:0"), true
	opts.Blobs, opts.ShareImages, opts.Egress.Allow = n.blobs, n.images, []string{"127.0.0.1/32"} // the registries of tests
	opts.Logger = cmp.Or(n.logger, opts.Logger)
	opts.SetMemory(func() (int64, int64) { return n.free, 64 << 30 })
	d, err := daemon.Start(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	n.d, n.address = d, d.TCP().String()
}

func (n *nodeDaemon) kill(t *testing.T) {
	t.Helper()
	if err := n.d.Close(); err != nil {
		t.Error(err)
	}
}

// client is one of the node itself.
func (n *nodeDaemon) client(t *testing.T) *atoll.Client { return daemontest.Client(t, n.d) }

func newNode(t *testing.T, free int64) *nodeDaemon {
	t.Helper()
	n := &nodeDaemon{m: daemontest.New(t), free: free}
	n.start(t)
	t.Cleanup(func() { n.kill(t) })
	k, err := n.client(t).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	n.key = k.Token
	return n
}

// isle is a control daemon with two nodes, of which a has more memory.
type isle struct {
	*atoll.Client
	m    *daemontest.Machine
	d    *daemon.Daemon
	a, b *nodeDaemon

	blobs string // address of its blob store; empty: in its state directory
	plain bool   // see daemon.Options.PlainSnapshots
}

func newIsle(t *testing.T) *isle {
	t.Helper()
	s := &isle{m: daemontest.New(t), a: newNode(t, 32<<30), b: newNode(t, 16<<30)}
	s.start(t)
	return s
}

func (s *isle) start(t *testing.T) {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("a="+s.a.key+"\n"+s.b.key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.d = s.m.Start(t, func(o *daemon.Options) {
		o.Fleet = &fleet.Config{Nodes: []string{"a=http://" + s.a.address, "b=http://" + s.b.address}, KeyFile: keys, Every: 50 * time.Millisecond}
		o.SessionGrace, o.Blobs, o.PlainSnapshots = time.Hour, s.blobs, s.plain
	})
	s.Client = daemontest.Client(t, s.d)
}

// state waits until a node has a state.
func (s *isle) state(t *testing.T, name string, want operator.NodeState) operator.Node {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		n, err := s.Admin().Node(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if n.State == want {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("the node is %+v, want it %s", n, want)
		}
	}
}

func (s *isle) cordon(t *testing.T, name string, cordoned bool) {
	t.Helper()
	if _, err := s.Admin().UpdateNode(t.Context(), name, operator.NodeChange{Cordoned: &cordoned}); err != nil {
		t.Fatal(err)
	}
}

func (s *isle) create(t *testing.T, spec sandbox.Spec) *atoll.Sandbox {
	t.Helper()
	sb, err := s.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// livingOn returns how many sandboxes live on a node, whoever made them.
func livingOn(t *testing.T, n *nodeDaemon) int { return len(running(t, n.m)) }

// Sandboxes are placed by free memory, and used through one hop.
func TestNodesPlaceAndServe(t *testing.T) {
	s := newIsle(t)
	sb := s.create(t, sandbox.Spec{Name: "one"})
	if sb.Info().Provider != "node-a" || livingOn(t, s.a) != 1 || livingOn(t, s.b) != 0 {
		t.Fatalf("placed: %+v; want it on a, which has more memory", sb.Info())
	}
	res, err := sb.Run(t.Context(), sandbox.Command{Shell: "echo hello; exit 3"}, atoll.RunOptions{})
	if err != nil || string(res.Stdout) != "hello\n" || res.Exit.Code != 3 {
		t.Errorf("run: %+v, %v", res, err)
	}
	if _, err := sb.Files().Write(t.Context(), "/note", strings.NewReader("kept"), atoll.WriteOptions{}); err != nil {
		t.Error(err)
	}
	events, err := logged(t, s.Client, eventtype.NodePlaced)
	if err != nil || len(events) != 1 || events[0].Subject != "node-a" || !strings.Contains(events[0].Policy, "GiB of memory free") || events[0].Sandbox != sb.ID() {
		t.Errorf("the log has %+v, %v; want why a was chosen", events, err)
	}
	choice, err := s.ChooseProvider(t.Context(), catalog.Needs{})
	if err != nil || choice.Provider != "node-a" || !strings.Contains(strings.Join(choice.Candidates[0].Reasons, "; "), "GiB of memory free") {
		t.Errorf("the choice: %+v, %v", choice, err)
	}
	all, err := s.Admin().Nodes(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[0].Placed != 1 || all[0].State != operator.NodeReady || all[0].Load == nil {
		t.Errorf("the nodes: %+v, %v", all, err)
	}

	// After a restart, the sandbox is still reached.
	if err := s.d.Close(); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	again, err := s.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if res, err := again.Run(t.Context(), sandbox.Command{Shell: "cat /note"}, atoll.RunOptions{}); err != nil || string(res.Stdout) != "kept" {
		t.Errorf("after a restart: %+v, %v", res, err)
	}
}

// A node that has the image is preferred to one with more memory.
func TestNodesPlaceByImage(t *testing.T) {
	s := newIsle(t)
	images, err := image.Open(filepath.Join(s.b.m.Dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := images.Import(t.Context(), "dir:"+root, "tools:1", image.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	s.state(t, "b", operator.NodeReady) // asks it
	if sb := s.create(t, sandbox.Spec{Image: "tools:1"}); sb.Info().Provider != "node-b" {
		t.Errorf("placed: %+v; want it on b, which has the image", sb.Info())
	}
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-a" {
		t.Errorf("placed: %+v; want it on a, which has more memory", sb.Info())
	}
}

// A node that gives less than the demanded isolation gets no sandbox, also if
// another one that does is smaller.
func TestNodesPlaceByIsolation(t *testing.T) {
	s := newIsle(t)
	_, err := s.Create(t.Context(), sandbox.Spec{Isolation: sandbox.IsolationKernel})
	refusedFor(t, "no node is strong enough", err, "", "node-a: gives unknown isolation")
	s.b.kill(t)
	s.b.gives = sandbox.IsolationHardware
	s.b.start(t)
	s.state(t, "b", operator.NodeReady)
	sb := s.create(t, sandbox.Spec{Isolation: sandbox.IsolationKernel})
	if sb.Info().Provider != "node-b" || sb.Info().Isolation != sandbox.IsolationHardware {
		t.Errorf("placed: %+v; want it on b, which is strong enough", sb.Info())
	}
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-a" {
		t.Errorf("placed: %+v; want it on a, which has more memory", sb.Info())
	}
	choice, err := s.ChooseProvider(t.Context(), catalog.Needs{Isolation: sandbox.IsolationKernel})
	if err != nil || choice.Provider != "node-b" {
		t.Errorf("the choice: %+v, %v", choice, err)
	}
	s.cordon(t, "b", true)
	_, err = s.Create(t.Context(), sandbox.Spec{Isolation: sandbox.IsolationKernel})
	refusedFor(t, "the strong one is cordoned", err, "", "node-b: it is cordoned")
	s.cordon(t, "a", true)
	_, err = s.Create(t.Context(), sandbox.Spec{Isolation: sandbox.IsolationKernel})
	wantCode(t, err, sandbox.CodeUnavailable)
}

// A cordoned node gets no sandboxes, and keeps those that it has.
func TestNodesCordon(t *testing.T) {
	s := newIsle(t)
	kept := s.create(t, sandbox.Spec{Name: "kept"})
	s.cordon(t, "a", true)
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-b" {
		t.Errorf("placed on %s, want b", sb.Info().Provider)
	}
	if _, err := kept.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
		t.Error(err)
	}
	_, err := s.Create(t.Context(), sandbox.Spec{Provider: "node-a"})
	wantCode(t, err, sandbox.CodeUnavailable)
	s.cordon(t, "b", true)
	_, err = s.Create(t.Context(), sandbox.Spec{})
	if wantCode(t, err, sandbox.CodeUnavailable); !strings.Contains(fmt.Sprint(err), "node-a: it is cordoned") {
		t.Errorf("without a node: %v, want why", err)
	}
	s.cordon(t, "a", false)
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-a" {
		t.Errorf("placed on %s, want a", sb.Info().Provider)
	}
}

// A drain moves sessions with their files, and keeps other sandboxes.
func TestNodesDrain(t *testing.T) {
	s := newIsle(t)
	session := openSession(t, s.Client, sandbox.Spec{Env: map[string]string{"TOKEN": "sesame"}}, atoll.SessionOptions{Name: "agent"})
	runShell(t, session, "mkdir -p /workspace; echo kept > /workspace/note")
	first := session.Receipt()
	alone := s.create(t, sandbox.Spec{Name: "alone", Provider: "node-a"})
	out, err := s.Admin().DrainNode(t.Context(), "a", false)
	if err != nil || len(out.Moved) != 1 || out.Moved[0].Session != "agent" || out.Moved[0].Receipt.Epoch != 2 || out.Moved[0].Receipt.Provider != "node-b" ||
		len(out.Kept) != 1 || out.Kept[0].Sandbox != alone.ID() || out.Kept[0].Name != "alone" || len(out.Ended) != 0 {
		t.Fatalf("drained: %+v, %v", out, err)
	}
	if got := runShell(t, session, "cat /workspace/note; echo $TOKEN"); got != "kept\nsesame" || first.Provider != "node-a" {
		t.Errorf("after the drain it has %q", got)
	}
	if n := s.state(t, "a", operator.NodeCordoned); n.Placed != 1 || livingOn(t, s.a) != 1 || livingOn(t, s.b) != 1 {
		t.Errorf("after the drain: %+v", n)
	}
	wantCode(t, s.Admin().RemoveNode(t.Context(), "a", false), sandbox.CodeConflict)
	wantCode(t, s.Admin().RemoveNode(t.Context(), "a", true), sandbox.CodeConflict) // it answers
	if out, err = s.Admin().DrainNode(t.Context(), "a", true); err != nil || len(out.Ended) != 1 || len(out.Kept)+len(out.Moved) != 0 || livingOn(t, s.a) != 0 {
		t.Errorf("drained by force: %+v, %v", out, err)
	}
	if err := s.Admin().RemoveNode(t.Context(), "a", false); err != nil {
		t.Error(err)
	}
	if err := s.Admin().RemoveNode(t.Context(), "a", false); err != nil {
		t.Error("a second removal:", err)
	}
	s.state(t, "a", operator.NodeRemoved)
	s.cordon(t, "a", false)
	s.state(t, "a", operator.NodeReady)
	for _, want := range []string{eventtype.NodeDrained, eventtype.NodeRemoved, eventtype.NodeChanged} {
		if events, err := logged(t, s.Client, want); err != nil || len(events) == 0 || events[0].Subject != "a" {
			t.Errorf("%s: the log has %+v, %v", want, events, err)
		}
	}
}

// A session of a dead node is unavailable until the operator gives the node up,
// and then continues elsewhere with what was saved. If the node comes back, its
// old sandbox ends.
func TestNodesLost(t *testing.T) {
	s := newIsle(t)
	session := openSession(t, s.Client, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, session, "mkdir -p /workspace; echo saved > /workspace/note")
	if _, err := session.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	runShell(t, session, "echo late > /workspace/note")
	alone := s.create(t, sandbox.Spec{Name: "alone", Provider: "node-a"})
	s.a.kill(t)
	_, err := session.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	if wantCode(t, err, sandbox.CodeUnavailable); !strings.Contains(fmt.Sprint(err), "the node a: it does not answer") {
		t.Errorf("on a dead node: %v", err)
	}
	s.state(t, "a", operator.NodeUnreachable)
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-b" {
		t.Errorf("placed on %s, want b", sb.Info().Provider)
	}
	if _, err := session.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("before anybody gave the node up: %v", err)
	}
	wantCode(t, s.Admin().RemoveNode(t.Context(), "a", false), sandbox.CodeConflict)
	if err := s.Admin().RemoveNode(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	now, err := s.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = now.Close() })
	if got := runShell(t, now, "cat /workspace/note"); got != "saved" {
		t.Errorf("rebuilt, it has %q", got)
	}
	if r := now.Receipt(); r.Provider != "node-b" || r.Outcome != durable.OutcomeRebuilt || r.Epoch < 2 || !strings.Contains(r.Why, "its node was given up") {
		t.Errorf("the receipt: %+v", r)
	}
	if got, err := s.Get(t.Context(), string(alone.ID())); err != nil || got.Info().State != sandbox.Gone {
		t.Errorf("a sandbox without a session: %+v, %v", got, err)
	}
	yes := false
	_, err = s.Admin().UpdateNode(t.Context(), "a", operator.NodeChange{Cordoned: &yes})
	wantCode(t, err, sandbox.CodeConflict)

	if livingOn(t, s.a) != 2 {
		t.Fatalf("%d sandboxes live on the dead node, want 2: the test proves nothing", livingOn(t, s.a))
	}
	s.a.start(t)
	for deadline := time.Now().Add(time.Minute); livingOn(t, s.a) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the old sandboxes live on")
		}
	}
	if n := s.state(t, "a", operator.NodeRemoved); !n.Lost || n.Placed != 0 {
		t.Errorf("the node that came back: %+v", n)
	}
	if got := runShell(t, now, "cat /workspace/note"); got != "saved" {
		t.Errorf("after the node came back, the session has %q", got)
	}
}

// An address at which another daemon answers proves nothing about sandboxes.
func TestAttackNodeIsAnother(t *testing.T) {
	s := newIsle(t)
	sb := s.create(t, sandbox.Spec{})
	s.a.kill(t)
	other := &nodeDaemon{m: daemontest.New(t), free: 1 << 40, address: s.a.address}
	other.start(t)
	t.Cleanup(func() { other.kill(t) })
	s.state(t, "a", operator.NodeUnreachable)
	if sb := s.create(t, sandbox.Spec{}); sb.Info().Provider != "node-b" {
		t.Errorf("placed on %s, want b", sb.Info().Provider)
	}
	if got, err := s.Get(t.Context(), string(sb.ID())); err != nil || got.Info().State == sandbox.Gone {
		t.Errorf("the sandbox: %+v, %v; want no claim that it is gone", got, err)
	}
	s.a.d = other.d
}

// Keys of a tenant see neither nodes nor the load of others.
func TestAttackLoadAndNodes(t *testing.T) {
	s := newIsle(t)
	images, err := image.Open(filepath.Join(s.a.m.Dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"secret-project:1", "shared:1"} {
		if _, err := images.Import(t.Context(), "dir:"+root, name, image.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.create(t, sandbox.Spec{Provider: "node-a", Resources: sandbox.Resources{Memory: 1 << 30}})
	tenant := func(d *daemon.Daemon) *atoll.Client {
		owner := daemontest.Client(t, d).Admin()
		if _, err := owner.CreateTenant(t.Context(), "acme", operator.Limits{}); err != nil {
			t.Fatal(err)
		}
		k, err := owner.CreateKey(t.Context(), operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
		if err != nil {
			t.Fatal(err)
		}
		return daemontest.Bearer(t, d, k.Token)
	}
	acme := tenant(s.a.d)
	load, err := acme.Admin().Load(t.Context())
	if err != nil || load.Sandboxes != 0 || load.MemoryReserved != 0 || len(load.Images) != 0 {
		t.Errorf("another tenant sees %+v, %v", load, err)
	}
	if _, err := acme.Create(t.Context(), sandbox.Spec{Image: "shared:1"}); err != nil {
		t.Fatal(err)
	}
	if load, err = acme.Admin().Load(t.Context()); err != nil || load.Sandboxes != 1 || !slices.Equal(load.Images, []string{"shared:1"}) {
		t.Errorf("with a sandbox of its own, the tenant sees %+v, %v", load, err)
	}
	if load, err = s.a.client(t).Admin().Load(t.Context()); err != nil || load.Sandboxes != 2 || !slices.Equal(load.Images, []string{"secret-project:1", "shared:1"}) {
		t.Errorf("the owner sees %+v, %v", load, err)
	}
	acme = tenant(s.d)
	yes := true
	_, list := acme.Admin().Nodes(t.Context())
	_, get := acme.Admin().Node(t.Context(), "a")
	_, missing := acme.Admin().Node(t.Context(), "nothing")
	_, change := acme.Admin().UpdateNode(t.Context(), "a", operator.NodeChange{Cordoned: &yes})
	_, drain := acme.Admin().DrainNode(t.Context(), "a", true)
	for i, err := range []error{list, get, missing, change, drain, acme.Admin().RemoveNode(t.Context(), "a", true)} {
		if sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("attempt %d: %v", i, err)
		}
	}
	if n := s.state(t, "a", operator.NodeReady); n.Placed != 1 {
		t.Errorf("the node: %+v", n)
	}
}
