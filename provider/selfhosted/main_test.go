package selfhosted_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/machines"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/machine/agent"
	"github.com/atoll-run/atoll/internal/machine/broker"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/machine/local"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/provider/selfhosted"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// The test binary is the program of a machine, too, of any version.
const (
	machineEnv = "ATOLL_TEST_MACHINE"
	versionEnv = "ATOLL_TEST_VERSION"
	installed  = "v1.0.0"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(machineEnv); dir != "" {
		serve(dir)
	}
	os.Exit(m.Run())
}

// serve is the program of a machine. Its sandboxes are processes in directories
// of their own, or in memory.
func serve(dir string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := agent.Run(ctx, agent.Config{
		Dir: dir, Version: cmp.Or(os.Getenv(versionEnv), installed), Again: []string{}, Logger: log, Serve: serveLocal(dir, log),
		Restore: func(ctx context.Context, backup string) error { return local.Restore(ctx, dir, backup) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveLocal(dir string, log *slog.Logger) func(context.Context, agent.Enrolled) (agent.Local, error) {
	// Commands of other users need a way to the files, which is not through the
	// directory of the machine.
	sandboxes := filepath.Join(filepath.Dir(dir), "boxes")
	entry := providerset.Entry{Name: host.Name, Open: func(providerset.Host) (driver.Provider, error) { return host.New(host.Options{Dir: sandboxes}) }}
	if strings.HasSuffix(dir, "memory") {
		entry = providerset.Entry{Name: "fake", Open: func(h providerset.Host) (driver.Provider, error) {
			return fake.New(fake.Options{World: new(fake.World), SnapshotDir: h.Snapshots}), nil
		}}
	}
	return func(ctx context.Context, e agent.Enrolled) (agent.Local, error) {
		return local.Start(ctx, e, local.Options{Dir: dir, Sandboxes: entry, Version: "test", Logger: log})
	}
}

// world is a daemon's side, without the daemon: a store, a NATS server and a
// hub. Machines reach the server through a proxy that a test can cut.
type world struct {
	store  *store.Store
	broker *broker.Server
	hub    *hub.Hub
	proxy  *proxy

	program *hub.Program // of the hub that is opened next
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{}
	var err error
	if w.store, err = store.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), store.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.store.Close() })
	if w.broker, err = broker.Start(broker.Options{Listen: "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.broker.Close)
	w.openHub(t)
	w.proxy = newProxy(t, w.broker.Addr().String())
	return w
}

func (w *world) openHub(t *testing.T) {
	t.Helper()
	config := hub.Config{Store: w.store, Program: w.program, Logger: slog.New(slog.DiscardHandler)}
	w.broker.Configure(&config)
	h, err := hub.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	w.hub = h
	t.Cleanup(h.Close)
}

// token returns a token that enrols a machine.
func (w *world) token(t *testing.T, tenant string, allows operator.Consents) string {
	t.Helper()
	token := rand.Text()
	err := w.store.Update(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Tenants().Ensure(t.Context(), tenant); err != nil {
			return err
		}
		return tx.Machines().Set(t.Context(), store.Machine{Tenant: tenant, Secret: machines.Hash(token), Machine: operator.Machine{
			Consents: allows,
			ID:       machines.NewID(), Name: "laptop", State: operator.MachineInvited, Created: tx.Now(), Expires: tx.Now().Add(time.Hour),
		}})
	})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// invite enrols a machine in a directory, and returns its id.
func (w *world) invite(t *testing.T, tenant, dir, mode, workdir string) string {
	t.Helper()
	e, err := agent.Enrol(t.Context(), agent.Request{
		Dir: dir, URL: "nats://" + w.proxy.addr(), Name: "laptop", Mode: mode, Workdir: workdir, Token: w.token(t, tenant, operator.Consents{operator.Consent(mode)}),
		Version: "test", Consents: map[operator.Consent]string{operator.Consent(mode): "agreed"},
	}, func(string, time.Duration) { t.Error("a code, in spite of the token") })
	if err != nil {
		t.Fatal(err)
	}
	return e.Machine
}

// dir returns a short directory that other users can traverse.
func dir(t *testing.T, name string) string {
	t.Helper()
	base, err := os.MkdirTemp("", "atoll-machine") //nolint:usetesting // the path of a socket is short
	if err == nil {
		err = os.Chmod(base, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	return filepath.Join(base, name)
}

// program is a running program of a machine.
type program struct {
	cmd *exec.Cmd
	out *buffer
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts the program of a machine in a process of its own.
func start(t *testing.T, dir string) *program {
	t.Helper()
	p := &program{exec.Command(os.Args[0]), &buffer{}}
	p.cmd.Env = append(os.Environ(), machineEnv+"="+dir)
	p.cmd.Stderr = p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("the machine: %s", p.out)
		}
	})
	return p
}

func (p *program) stop(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	_ = p.cmd.Wait()
}

func (w *world) options(dir, id string, whole bool) selfhosted.Options {
	return selfhosted.Options{Dir: dir, Machine: id, Name: "laptop", Whole: whole, Link: w.hub, Idle: 100 * time.Millisecond}
}

func (w *world) open(t *testing.T, id string, whole bool) *selfhosted.Provider {
	t.Helper()
	p, err := selfhosted.New(w.options(t.TempDir(), id, whole))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// await waits until a machine has a liveness.
func (w *world) await(t *testing.T, id, want string) {
	t.Helper()
	m := &store.Machine{Machine: operator.Machine{ID: id, State: operator.MachineActive}}
	var got string
	for range 1200 {
		if got, _ = w.hub.Liveness(m); got == want {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("the machine is %s and not %s", got, want)
}

// proxy is a TCP proxy whose connections a test can cut.
type proxy struct {
	l      net.Listener
	target string

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, target: target, conns: map[net.Conn]bool{}}
	go p.accept()
	t.Cleanup(func() {
		l.Close()
		p.cut(true)
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) accept() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		down, target := p.down, p.target
		p.mu.Unlock()
		far, err := net.Dial("tcp", target)
		if err != nil || down {
			near.Close()
			if err == nil {
				far.Close()
			}
			continue
		}
		p.mu.Lock()
		p.conns[near], p.conns[far] = true, true
		p.mu.Unlock()
		go p.pipe(near, far)
		go p.pipe(far, near)
	}
}

func (p *proxy) pipe(to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	to.Close()
	from.Close()
	p.mu.Lock()
	delete(p.conns, to)
	delete(p.conns, from)
	p.mu.Unlock()
}

// cut cuts all connections. With down, no new one is possible until cut(false).
func (p *proxy) cut(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

var _ = daemontest.New // its import makes this binary the guest of provider host
