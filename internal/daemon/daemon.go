// Package daemon puts everything together: the node with its provider and
// images, the store, the logs, the control plane, the API and its listeners. It
// is the only package that knows all of them.
package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/machine"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/control/sessions"
	"github.com/atoll-run/atoll/internal/daemon/node"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/metrics"
	"github.com/atoll-run/atoll/internal/registry"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/telemetry"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/sandbox"
)

// Limits of a sandbox that asks for none, so that quotas can count them.
const (
	defaultMemory = 2 << 30
	defaultDisk   = 4 << 30
	defaultPIDs   = 4096
)

// Options of a daemon. The zero value serves the user's own state directory on
// its socket.
type Options struct {
	StateDir string // empty: the user's own
	// Provider makes sandboxes that ask for no other. Empty: the first of
	// Providers.
	Provider  string
	Providers []registry.Entry // nil: those that are built in
	// SharedProviders are those that callers with an API key may choose besides
	// Provider.
	SharedProviders []string
	// ProviderOptions are options of providers, as JSON objects, by name.
	ProviderOptions map[string]json.RawMessage
	// Store is the address of the database: "postgres://…" for several daemons
	// that share it, each with a state directory of its own. It may hold a
	// password, and is in no message. Empty: a file in the state directory.
	Store     string
	LookupEnv func(string) (string, bool)
	// Socket serves the socket in the state directory to its owner.
	Socket bool
	// Listen is a TCP address to serve to whoever bears an API key, with TLS
	// unless it is a loopback address and Plain is set. Empty: none.
	Listen string
	TLS    *tls.Config
	Plain  bool
	Hosts  []string // names of this machine, besides localhost and addresses
	// Blobs is the address of the store of workspaces and snapshots, as blob.Open
	// takes it. Empty: a directory in the state directory.
	Blobs string
	// Buckets are those that workspaces can be: "[TENANT/]NAME=ADDRESS", as
	// bucket.ParseNamed takes it.
	Buckets []string
	// Policies is a file, or a directory of files, with what sandboxes may be.
	// They are looked at all the time. Empty: there are none.
	Policies string
	// Egress is what the owner of the machine decides about all networks.
	// What is left open is looked for in ATOLL_EGRESS_ALLOW and its like.
	Egress Egress
	// PlainSnapshots saves snapshots there without encrypting them.
	PlainSnapshots bool
	// SnapshotCache is how many bytes the copies of saved snapshots may take on
	// this machine. Zero: snapshots.DefaultCache; negative: none stays.
	SnapshotCache int64
	// SessionGrace is how long the sandbox of a session is kept when nobody needs
	// it. Zero: lease.Default.
	SessionGrace time.Duration
	// SaveEvery is how often workspaces are saved that sandboxes have a copy of.
	// Zero: 5 minutes.
	SaveEvery time.Duration
	// E2B is where to serve the API of E2B, if anywhere.
	E2B E2B
	// Bridge is where to serve the API of Cloudflare's sandbox bridge, if
	// anywhere.
	Bridge Bridge
	// AuditKeep is how long events are kept before they are pruned. Zero: for
	// ever.
	AuditKeep time.Duration
	// Telemetry is the address of a collector of OpenTelemetry, to which traces
	// and events are sent. Empty: the one that the variables OTEL_EXPORTER_OTLP_…
	// name, if any.
	Telemetry string
	// Version is that of the program, for whom it is told.
	Version string
	// Pool is how many sandboxes of what is asked for most are made ahead.
	Pool int
	// Drain is how long requests may go on when the daemon ends. Zero: 5
	// seconds.
	Drain  time.Duration
	Logger *slog.Logger
	// Fault is for tests; see services.Config.
	Fault func(point string) error
	// Trace is for tests; see store.Options.
	Trace func(ctx context.Context, statement string)
	// wall is the clock on the wall, which somebody may set. Nil: the machine's.
	wall func() time.Time
	// memory tells how much is free, and how much there is; see admission.Config.
	memory func() (free, total int64)
}

// Egress is what the owner of the machine decides about all networks.
type Egress struct {
	Allow []string // addresses and CIDRs that rules may allow although they are not public
	Proxy string   // http:// or socks5:// for all that leaves; it may hold a password
	Roots string   // PEM file of authorities that are trusted besides the machine's
	Hosts string   // file of names with addresses, as /etc/hosts

	// HostPorts are ports of the machine's loopback that rules may open, by the
	// name sandbox.MachineHost.
	HostPorts []string
}

// Daemon runs until Close.
type Daemon struct {
	opts     Options
	node     *node.Node
	store    *store.Store
	member   membership
	log      *eventlog.Log
	gate     *admission.Gate
	services *services.Services
	egress   *egress
	// egressPrints are fingerprints of what the owner decides about all networks.
	egressPrints map[string]string
	sessions     *sessions.Services
	leases       *metrics.Leases
	archive      *archive.Archive
	provider     driver.Provider
	server       *server.Server
	memory       *server.Memory
	otel         *telemetry.Telemetry // nil: nobody is told anything
	socket       string
	tcp          net.Addr
	e2b          e2bFace
	bridge       net.Addr
	stop         context.CancelFunc
	work         sync.WaitGroup
	failed       chan error
	recovered    chan struct{}  // closed when the sandboxes of an earlier daemon were found again
	undo         []func() error // in reverse order
	closed       sync.Once
	err          error
}

// Start starts a daemon: when it returns, requests are answered. The context
// bounds the start only. The caller closes the daemon.
func Start(ctx context.Context, opts Options) (_ *Daemon, err error) {
	if len(opts.Providers) == 0 {
		opts.Providers = all.Builtin()
	}
	if opts.LookupEnv == nil {
		opts.LookupEnv = os.LookupEnv
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if opts.wall == nil {
		opts.wall = wallClock
	}
	opts.Logger = slog.New(span.Logs(opts.Logger.Handler()))
	if opts.Drain <= 0 {
		opts.Drain = 5 * time.Second
	}
	if opts.Provider == "" {
		opts.Provider = opts.Providers[0].Name
	}
	ctx = store.WithReserve(ctx) // a full disk does not keep a daemon from starting
	d := &Daemon{opts: opts, failed: make(chan error, 8), recovered: make(chan struct{})}
	defer func() {
		if err != nil {
			_ = d.Close()
		}
	}()
	for _, step := range []func(context.Context) error{d.openState, d.openTelemetry, d.openPlane, d.openSessions, d.openServer, d.listenE2B, d.listenBridge, d.listen, d.recover} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// openState takes the state directory for this daemon alone.
func (d *Daemon) openState(ctx context.Context) error {
	n, err := node.Open(d.opts.StateDir, d.opts.Providers, d.opts.LookupEnv)
	if err != nil {
		return err
	}
	n.SetOperator(node.Operator(d.opts.Egress))
	n.SetOptions(d.opts.ProviderOptions)
	d.node = n
	d.onClose(n.Close)
	release, err := lock(filepath.Join(n.Dir(), "daemon.lock"))
	if err != nil {
		return err
	}
	d.onClose(release)
	if err := d.openE2B(); err != nil {
		return err
	}
	if err := errors.Join(server.Sweep(n.Dir()), machine.Sweep(n.Dir())); err != nil {
		return err
	}
	address := d.opts.Store
	if address == "" {
		address = filepath.Join(n.Dir(), "atoll.db")
	}
	d.store, err = store.Open(ctx, address, store.Options{Trace: d.opts.Trace})
	if err != nil {
		return err
	}
	d.onClose(d.store.Close)
	if err := d.join(ctx); err != nil {
		return err
	}
	_, err = store.Write(ctx, d.store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Ensure(ctx, core.DefaultTenant) })
	return err
}

// recover finds again what an earlier daemon left running. Requests wait for it.
func (d *Daemon) recover(ctx context.Context) error {
	if err := d.services.Sandboxes.Reconcile(ctx); err != nil {
		// What could not be brought up to date now will be later; nobody is
		// helped by a daemon that does not start.
		d.opts.Logger.Error("reconciliation failed", "error", err)
	}
	if err := d.services.Workspaces.SweepBuckets(ctx); err != nil {
		d.opts.Logger.Error("unmounting buckets", "error", err)
	}
	close(d.recovered)
	ctx, d.stop = context.WithCancel(context.Background())
	d.work.Go(func() { d.services.Sandboxes.Watch(ctx) })
	d.work.Go(func() { d.services.Sandboxes.WatchIdle(ctx) })
	d.work.Go(func() { d.sessions.Reaper.Watch(ctx) })
	d.work.Go(func() { d.services.Workspaces.Watch(ctx) })
	d.work.Go(func() { d.services.Tenants.WatchKeys(ctx) })
	if d.opts.Policies != "" {
		d.work.Go(func() { d.watchPolicies(ctx) })
	}
	d.work.Go(func() { d.services.Snapshots.Watch(ctx) })
	if d.otel.Events() {
		d.work.Go(func() { d.otel.Ship(ctx, d.log) })
	}
	if d.opts.AuditKeep > 0 {
		d.work.Go(func() { d.services.Events.WatchRetention(ctx, d.opts.AuditKeep) })
	}
	if d.store.Shared() {
		d.work.Go(func() { d.beat(ctx) })
	}
	d.work.Go(func() { d.services.Sandboxes.WatchExpiry(ctx) })
	d.onClose(func() error {
		d.stop()
		return nil
	})
	return nil
}

func (d *Daemon) listen(context.Context) error {
	d.memory = server.NewMemory()
	d.serve(d.memory)
	if d.opts.Socket {
		path := filepath.Join(d.node.Dir(), atoll.SocketName)
		l, err := server.ListenUnix(path)
		if err != nil {
			return err
		}
		d.socket = path
		d.serve(l)
	}
	if d.opts.Listen == "" {
		return nil
	}
	l, err := listenTCP(d.opts.Listen, d.opts.TLS, d.opts.Plain, "http/1.1") // which WebSockets need
	if err != nil {
		return err
	}
	d.tcp = l.Addr()
	d.serve(l)
	return nil
}

// listenTCP refuses to send keys over a network in the clear.
func listenTCP(addr string, config *tls.Config, plain bool, protocols ...string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "daemon.listen", Subject: addr, Message: "is not HOST:PORT"}
	}
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	if config == nil && !(plain && loopback) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "daemon.listen", Subject: addr, Message: "TCP needs TLS",
			Hint: "give a certificate and a key; only a loopback address may do without, if asked to",
		}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "daemon.listen", Subject: addr, Message: err.Error(), Cause: err}
	}
	l = server.Limit(l, server.MaxConnections)
	if config != nil {
		l = tls.NewListener(l, tlsOf(config, protocols...))
	}
	return l, nil
}

// tlsOf completes the TLS of a server.
func tlsOf(config *tls.Config, protocols ...string) *tls.Config {
	config = config.Clone()
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	config.NextProtos = protocols
	if config.CipherSuites == nil {
		config.CipherSuites = aeadSuites()
	}
	return config
}

// aeadSuites are the cipher suites of TLS 1.2 that authenticate what they
// encrypt. Those of TLS 1.3 all do.
func aeadSuites() (out []uint16) {
	for _, s := range tls.CipherSuites() {
		if !strings.Contains(s.Name, "_CBC_") {
			out = append(out, s.ID)
		}
	}
	return out
}

// serve answers on l in the background; the server closes it.
func (d *Daemon) serve(l net.Listener) {
	d.serveWith(d.server, l)
}

func (d *Daemon) serveWith(s *server.Server, l net.Listener) {
	d.work.Go(func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			d.failed <- fmt.Errorf("listener %s: %w", l.Addr(), err)
		}
	})
}

// authenticate lets in the owner of the daemon and root, who act for the
// default tenant, and whoever bears a key.
func (d *Daemon) authenticate(ctx context.Context, c server.Caller) (context.Context, error) {
	if c.Token != "" {
		who, err := d.services.Tenants.Authenticate(ctx, c.Token)
		if err != nil {
			return nil, err
		}
		return d.services.Tenants.As(ctx, who), nil
	}
	if c.UID != nil && (*c.UID == uint32(os.Geteuid()) || *c.UID == 0) {
		return guard.WithPrincipal(ctx, key.Peer(core.DefaultTenant, *c.UID)), nil
	}
	return nil, &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Message: "an API key is needed",
		Hint: "create one with: atoll key create, and set ATOLL_KEY",
	}
}

// ready reports what keeps sandboxes from being made.
func (d *Daemon) ready(p driver.Provider) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := d.store.Ping(ctx); err != nil {
			return err
		}
		if d.diskFull() {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "daemon.ready", Message: "no sandbox can be made, because the disk of the machine is full",
				Hint: "remove what is not needed: rm and prune work",
			}
		}
		if d.gatewaySilent(ctx) {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "daemon.ready", Message: "no sandbox with a network can be made, because the gateway does not answer",
				Hint: "the daemon replaces it within a minute",
			}
		}
		facts, err := p.Probe(ctx)
		if err != nil || !facts.Available {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "daemon.ready", Message: "no sandbox can be made", Hint: "see what this machine lacks with: atoll doctor", Cause: err,
			}
		}
		return nil
	}
}

// gatewaySilent reports whether the process of the gateway runs and does not
// answer.
func (d *Daemon) gatewaySilent(ctx context.Context) bool {
	g, err := d.node.Gateway()
	if err != nil {
		return false // whoever needs it is told
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	runs, answers, _ := g.State(ctx)
	return runs && !answers
}

// minSpace is how many bytes must be free where the state directory is for a
// sandbox to be made.
const minSpace = 32 << 20

// diskFull reports whether nothing can be made because the disk is full.
func (d *Daemon) diskFull() bool {
	var fs unix.Statfs_t
	err := unix.Statfs(d.node.Dir(), &fs)
	return d.store.Full() || err == nil && int64(fs.Bavail)*fs.Bsize < minSpace
}

// Memory returns the listener that needs no place.
func (d *Daemon) Memory() *server.Memory { return d.memory }

// Socket returns the path of the socket, empty without one.
func (d *Daemon) Socket() string { return d.socket }

// TCP returns the address that is listened on, nil without one.
func (d *Daemon) TCP() net.Addr { return d.tcp }

// E2B returns the address at which the API of E2B is served, nil without one.
func (d *Daemon) E2B() net.Addr { return d.e2b.address() }

// Failed yields what makes the daemon useless, such as a listener that broke.
func (d *Daemon) Failed() <-chan error { return d.failed }

func (d *Daemon) onClose(f func() error) { d.undo = append(d.undo, f) }

// Close takes no more requests, gives those that run some time, and lets go of
// everything. Sandboxes live on. Close is idempotent.
func (d *Daemon) Close() error {
	d.closed.Do(func() {
		var failed []error
		// The memory listener is not the server's before Serve has seen it.
		if d.memory != nil {
			failed = append(failed, d.memory.Close())
		}
		for i := len(d.undo) - 1; i >= 0; i-- {
			failed = append(failed, d.undo[i]())
		}
		d.err = errors.Join(failed...)
	})
	return d.err
}

// lockPatience is how long a lock may outlive a daemon that was killed while
// it was starting a process: until it has executed its program, the new
// process holds what its maker held.
const lockPatience = 3 * time.Second

// tryLock takes the lock, unless somebody holds on to it.
func tryLock(f *os.File) error {
	deadline := time.Now().Add(lockPatience)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// lock makes sure that one daemon works on a state directory. The kernel lets
// go of the lock of a process that dies.
func lock(path string) (release func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(f); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		text := make([]byte, 32)
		n, _ := f.ReadAt(text, 0)
		message := "a daemon already runs on this state directory"
		if pid := strings.TrimSpace(string(text[:n])); pid != "" {
			message += ", as process " + pid
		}
		return nil, &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "daemon.start", Subject: filepath.Dir(path), Message: message,
			Hint: "use that one, stop it first, or choose another directory with --state-dir",
		}
	}
	_ = f.Truncate(0)
	_, _ = fmt.Fprintln(f, os.Getpid()) // only for the message above
	return f.Close, nil
}
