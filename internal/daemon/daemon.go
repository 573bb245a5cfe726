// Package daemon assembles a daemon: the node with its providers and images,
// the store, the event log, the control plane, the APIs and their listeners. It
// is the only package that imports all of them.
package daemon

import (
	"cmp"
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
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/code"
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/machine"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/control/sessions"
	"github.com/atoll-run/atoll/internal/daemon/node"
	"github.com/atoll-run/atoll/internal/desk"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/idtoken"
	"github.com/atoll-run/atoll/internal/interpreter"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/metrics"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/telemetry"
	"github.com/atoll-run/atoll/internal/view"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Default limits of a sandbox, so that quotas can count them.
const (
	defaultMemory = 2 << 30
	defaultDisk   = 4 << 30
	defaultPIDs   = 4096
)

// Options configures a daemon. The zero value uses the user's default state
// directory and opens no listener except Memory.
type Options struct {
	StateDir string // empty: the user's default
	// Provider is the default provider. Empty: the first of Providers.
	Provider  string
	Providers []providerset.Entry // nil: the built-in ones
	// SharedProviders are the additional providers that callers with an API key
	// may choose.
	SharedProviders []string
	// ProviderOptions are options of providers by name, as JSON objects.
	ProviderOptions map[string]json.RawMessage
	// Store is the address of the database: "postgres://…" for several daemons
	// that share it, each with its own state directory. It may contain a password
	// and appears in no message. Empty: a file in the state directory.
	Store     string
	LookupEnv func(string) (string, bool)
	// Socket opens the socket in the state directory, for its owner.
	Socket bool
	// Listen is a TCP address for clients with an API key. It needs TLS, unless it
	// is a loopback address and Plain is set. Empty: none.
	Listen string
	TLS    *tls.Config
	Plain  bool
	Hosts  []string // names of this machine, in addition to localhost and its addresses
	// Key is an API key that another daemon made. It may read, exec and write in the
	// default tenant until a daemon starts without it. Empty: none.
	Key string
	// Blobs is the address of the blob store of workspaces and snapshots, as for
	// blob.Open. Empty: a directory in the state directory.
	Blobs string
	// ShareImages is the address of a blob store, as for blob.Open, below whose
	// images/ daemons share what images of registries consist of. Empty: Blobs, if
	// that is set.
	ShareImages string
	// ShareImagesKeep is how long parts of images that nobody uses stay in Blobs, at
	// least MinImagesKeep. Zero: forever.
	ShareImagesKeep time.Duration
	// Buckets are the buckets that workspaces can use: "[TENANT/]NAME=ADDRESS", as
	// for bucket.ParseNamed.
	Buckets []string
	// Policies is a file or directory with policies. Changes are noticed while the
	// daemon runs. Empty: there are no policies.
	Policies string
	// Egress are the machine owner's network settings. Empty fields are read from
	// the environment, such as ATOLL_EGRESS_ALLOW.
	Egress Egress
	// PlainSnapshots saves snapshots in Blobs without encryption.
	PlainSnapshots bool
	// SnapshotCache is the limit in bytes for copies of saved snapshots on this
	// machine. Zero: snapshots.DefaultCache; negative: no copies are kept.
	SnapshotCache int64
	// StreamRate is how many bytes per second a stream of a desktop, terminal or port
	// carries in each direction. Zero: 8 MiB. All streams of a tenant carry eight times
	// as many together.
	StreamRate int64
	// SessionGrace is how long the unused sandbox of a session is kept. Zero:
	// lease.Default.
	SessionGrace time.Duration
	// SaveEvery is the interval at which workspaces are saved that sandboxes use a
	// copy of. Zero: 5 minutes.
	SaveEvery time.Duration
	// E2B configures the E2B API.
	E2B E2B
	// Bridge configures the API of Cloudflare's sandbox bridge.
	Bridge Bridge
	// Machines is the NATS server of self-hosted machines. Nil: there is none.
	Machines *hub.Config
	// Fence refuses requests for an earlier epoch of another daemon's session than
	// was seen. Nil: none are.
	Fence func(session string, epoch int64) error
	// Fleet lists the daemons on which this one makes sandboxes. Its Dir, Scope,
	// Store, Logger and Cleared are set by Start. Nil: there are none.
	Fleet *fleet.Config
	// AuditKeep is how long events are kept before they are pruned. Zero: forever.
	AuditKeep time.Duration
	// Telemetry is the address of an OpenTelemetry collector for traces and
	// events. Empty: the one that the variables OTEL_EXPORTER_OTLP_… name, if any.
	Telemetry string
	// Version is the program's version, for display.
	Version string
	// Pool is the number of warm sandboxes to keep per image. Zero disables the
	// pool.
	Pool int
	// Drain is the time for requests in progress when the daemon ends. Zero: 5
	// seconds.
	Drain  time.Duration
	Logger *slog.Logger
	// Fault is for tests; see services.Config.
	Fault func(point string) error
	// Trace is for tests; see store.Options.
	Trace func(ctx context.Context, statement string)
	// wall returns the wall-clock time, which may be set. Nil: the machine's.
	wall func() time.Time
	// now is the clock of the store. Nil: the machine's.
	now func() time.Time
	// memory returns free and total memory in bytes; see admission.Config.
	memory func() (free, total int64)
}

// Egress are the machine owner's network settings.
type Egress struct {
	Allow []string // addresses and CIDRs that rules may allow although they are not public
	Proxy string   // http:// or socks5:// for all traffic; may contain a password
	Roots string   // PEM file of additional certificate authorities
	Hosts string   // file of names with addresses, in the format of /etc/hosts

	// HostPorts are ports of the machine's loopback that rules may open, under the
	// name sandbox.MachineHost.
	HostPorts []string
}

// Daemon is a running daemon. The caller closes it.
type Daemon struct {
	opts     Options
	node     *node.Node
	store    *store.Store
	member   membership
	log      *eventlog.Log
	gate     *admission.Gate
	services *services.Services
	egress   *egress
	// egressPrints are fingerprints of the machine owner's network settings.
	egressPrints map[string]string
	sessions     *sessions.Services
	leases       *metrics.Leases
	archive      *archive.Archive
	provider     driver.Provider
	server       *server.Server
	view         *view.Service
	desk         *desk.Service
	recordings   recordings
	blobs        blob.Store
	code         *interpreter.Service
	source       *code.Service
	memory       *server.Memory
	otel         *telemetry.Telemetry // nil: telemetry is disabled
	socket       string
	tcp          net.Addr
	e2b          e2bFace
	console      consoleFace
	identity     *idtoken.Issuer
	parts        *parts
	bridge       net.Addr
	hub          *hub.Hub     // nil: there are no self-hosted machines
	fleet        *fleet.Fleet // nil: there are no nodes
	machineMu    sync.Mutex
	machineOpen  map[string]providers.Opened // by provider, also those of nodes
	machineClose []io.Closer
	stop         context.CancelFunc
	work         sync.WaitGroup
	failed       chan error
	recovered    chan struct{}  // closed when the sandboxes of an earlier daemon have been reconciled
	undo         []func() error // in reverse order
	closed       sync.Once
	err          error
}

// Start starts a daemon. When it returns, requests are served. ctx limits only
// the start. The caller closes the daemon.
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
	ctx = store.WithReserve(ctx) // a daemon must be able to start with a full disk
	d := &Daemon{opts: opts, failed: make(chan error, 8), recovered: make(chan struct{}), machineOpen: map[string]providers.Opened{}}
	defer func() {
		if err != nil {
			_ = d.Close()
		}
	}()
	for _, step := range []func(context.Context) error{d.openState, d.openTelemetry, d.openMachines, d.openFleet, d.openControl, d.importKey, d.openSessions, d.recordParts, d.openServer, d.listenE2B, d.listenBridge, d.listen, d.recover} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// importKey accepts the key of the options, and no longer one of earlier options.
func (d *Daemon) importKey(ctx context.Context) error {
	return d.services.Tenants.ImportKey(guard.WithPrincipal(ctx, key.Peer(key.DefaultTenant, uint32(os.Geteuid()))), d.opts.Key)
}

// openState locks the state directory and opens its contents.
func (d *Daemon) openState(ctx context.Context) error {
	n, err := node.Open(d.opts.StateDir, d.opts.Providers, d.opts.LookupEnv)
	if err != nil {
		return err
	}
	n.SetOperator(node.Operator(d.opts.Egress))
	n.SetOptions(d.opts.ProviderOptions)
	n.SetLogger(d.opts.Logger)
	d.node = n
	d.onClose(n.Close)
	release, err := lock(filepath.Join(n.Dir(), "daemon.lock"))
	if err != nil {
		return err
	}
	d.onClose(release)
	if d.parts, err = openParts(n.Dir()); err != nil {
		return err
	}
	var elsewhere []string
	if d.opts.Store != "" {
		elsewhere = append(elsewhere, databaseName)
	}
	if d.opts.Blobs != "" {
		elsewhere = append(elsewhere, blobsName)
	}
	if err := d.parts.check(elsewhere); err != nil {
		return err
	}
	if err := errors.Join(d.openE2B(), d.openConsole()); err != nil {
		return err
	}
	if err := errors.Join(server.Sweep(n.Dir()), machine.Sweep(n.Dir())); err != nil {
		return err
	}
	address := d.opts.Store
	if address == "" {
		address = filepath.Join(n.Dir(), databaseName)
	}
	d.store, err = store.Open(ctx, address, store.Options{Trace: d.opts.Trace, Now: d.opts.now})
	if err != nil {
		return err
	}
	d.onClose(d.store.Close)
	if err := d.join(ctx); err != nil {
		return err
	}
	_, err = store.Write(ctx, d.store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Ensure(ctx, key.DefaultTenant) })
	if err == nil && d.opts.Store == "" {
		err = d.parts.checkDatabase(ctx, d.store)
	}
	return err
}

// recordParts remembers what belongs to the state directory.
func (d *Daemon) recordParts(ctx context.Context) error {
	if d.opts.Store != "" {
		return d.parts.record(ctx, nil)
	}
	return d.parts.record(ctx, d.store)
}

// recover reconciles what an earlier daemon left. Requests wait for it.
func (d *Daemon) recover(ctx context.Context) error {
	if err := d.services.Sandboxes.Reconciler.Reconcile(ctx); err != nil {
		// Reconciliation will be tried again. Failing to start would not help.
		d.opts.Logger.Error("reconciliation failed", "error", err)
	}
	if err := d.sessions.Reaper.Recover(ctx); err != nil {
		d.opts.Logger.Error("ending what an earlier daemon did for sessions", "error", err)
	}
	if err := d.services.Workspaces.SweepBuckets(ctx); err != nil {
		d.opts.Logger.Error("unmounting buckets", "error", err)
	}
	close(d.recovered)
	ctx, d.stop = context.WithCancel(context.Background())
	d.work.Go(func() { d.services.Sandboxes.Reconciler.Watch(ctx) })
	d.work.Go(func() { d.services.Sandboxes.Expirer.WatchIdle(ctx) })
	d.work.Go(func() { d.sessions.Reaper.Watch(ctx) })
	d.work.Go(func() { d.services.Workspaces.Watch(ctx) })
	d.work.Go(func() { d.services.Tenants.WatchKeys(ctx) })
	d.work.Go(func() { d.services.Profiles.WatchTokens(ctx, idtoken.Renewal) })
	if d.fleet != nil {
		d.work.Go(func() { d.fleet.Watch(ctx) })
	}
	if d.opts.Policies != "" {
		d.work.Go(func() { d.watchPolicies(ctx) })
	}
	d.work.Go(func() { d.services.Snapshots.Watch(ctx) })
	d.work.Go(func() { d.recordings.Watch(ctx) })
	if d.otel.Events() {
		d.work.Go(func() { d.otel.Ship(ctx, d.log) })
	}
	if d.opts.AuditKeep > 0 {
		d.work.Go(func() { d.services.Events.WatchRetention(ctx, d.opts.AuditKeep) })
	}
	if d.opts.Blobs != "" && d.opts.ShareImagesKeep > 0 {
		d.work.Go(func() { d.expireImages(ctx, max(d.opts.ShareImagesKeep, MinImagesKeep)) })
	}
	if d.store.Shared() {
		d.work.Go(func() { d.beat(ctx) })
	}
	d.work.Go(func() { d.services.Sandboxes.Expirer.WatchExpiry(ctx) })
	d.onClose(func() error {
		d.stop()
		return nil
	})
	return nil
}

// listen opens the listeners of the API. The socket comes last: when it
// answers, the daemon serves all its other addresses.
func (d *Daemon) listen(context.Context) error {
	d.memory = server.NewMemory()
	d.serve(d.memory)
	if d.opts.Listen != "" {
		l, err := listenTCP(d.opts.Listen, d.opts.TLS, d.opts.Plain, "http/1.1") // WebSockets need HTTP/1.1
		if err != nil {
			return err
		}
		d.tcp = l.Addr()
		d.serve(l)
	}
	if err := d.listenConsole(); err != nil {
		return err
	}
	if !d.opts.Socket {
		return nil
	}
	path := filepath.Join(d.node.Dir(), atoll.SocketName)
	l, err := server.ListenUnix(path)
	if err != nil {
		return err
	}
	d.socket = path
	d.serve(l)
	return nil
}

// listenTCP opens a TCP listener. It refuses to serve without TLS on addresses
// other than loopback.
func listenTCP(addr string, config *tls.Config, plain bool, protocols ...string) (net.Listener, error) {
	if err := secure(addr, config, plain); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		failed := &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "daemon.listen", Subject: addr, Message: err.Error(), Cause: err}
		if errors.Is(err, unix.EADDRINUSE) {
			failed.Message, failed.Hint = "the address is already in use", "choose another port, or end the program that uses this one"
		}
		return nil, failed
	}
	l = server.Limit(l, server.MaxConnections)
	if config != nil {
		l = tls.NewListener(l, tlsOf(config, protocols...))
	}
	return l, nil
}

// secure refuses an address other than loopback without TLS.
func secure(addr string, config *tls.Config, plain bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "daemon.listen", Subject: addr, Message: "is not HOST:PORT"}
	}
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	if config == nil && !(plain && loopback) {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "daemon.listen", Subject: addr, Message: "TCP needs TLS",
			Hint: "set a certificate and a key; only a loopback address may be served without TLS, if that is enabled",
		}
	}
	return nil
}

// tlsOf fills in the TLS configuration of a server.
func tlsOf(config *tls.Config, protocols ...string) *tls.Config {
	config = config.Clone()
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	config.NextProtos = protocols
	if config.CipherSuites == nil {
		config.CipherSuites = aeadSuites()
	}
	return config
}

// aeadSuites are the TLS 1.2 cipher suites with authenticated encryption. All
// suites of TLS 1.3 have it.
func aeadSuites() (out []uint16) {
	for _, s := range tls.CipherSuites() {
		if !strings.Contains(s.Name, "_CBC_") {
			out = append(out, s.ID)
		}
	}
	return out
}

// serve serves requests on l in the background. The server closes l.
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

// authenticate accepts the owner of the daemon and root, who act for the
// default tenant or the one they name, and callers with an API key, who act for
// its tenant.
func (d *Daemon) authenticate(ctx context.Context, c server.Caller) (context.Context, error) {
	if c.Token != "" {
		who, err := d.services.Tenants.Authenticate(ctx, c.Token)
		if err != nil {
			return nil, err
		}
		if c.Tenant != "" && c.Tenant != who.Tenant {
			return nil, &sandbox.Error{
				Code: sandbox.CodeDenied, Subject: "tenant", Message: "only the owner of the machine may act in another tenant",
				Hint: "use the daemon's socket, without a key",
			}
		}
		return d.services.Tenants.As(ctx, who), nil
	}
	if c.UID != nil && (*c.UID == uint32(os.Geteuid()) || *c.UID == 0) {
		tenant := cmp.Or(c.Tenant, key.DefaultTenant)
		if tenant != key.DefaultTenant {
			if err := d.services.Tenants.Exists(ctx, tenant); err != nil {
				return nil, err
			}
		}
		return guard.WithPrincipal(ctx, key.Peer(tenant, *c.UID)), nil
	}
	return nil, &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Message: "an API key is needed",
		Hint: "create one with: atoll key create, and set ATOLL_KEY",
	}
}

// ready returns an error if sandboxes cannot be created.
func (d *Daemon) ready(p driver.Provider) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := d.store.Ping(ctx); err != nil {
			return err
		}
		if readOnly(d.node.Dir()) {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "daemon.ready", Message: "no sandbox can be created, because the file system of the state has become read-only",
				Hint: readOnlyFix,
			}
		}
		if d.diskFull() {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "daemon.ready", Message: "no sandbox can be created, because the disk of the machine is full",
				Hint: "remove what is not needed: rm and prune still work",
			}
		}
		if d.fleet != nil && slices.ContainsFunc(d.fleet.Nodes(), func(n operator.Node) bool { return n.State == operator.NodeReady }) {
			return nil // whatever this machine lacks
		}
		if d.gatewaySilent(ctx) {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "daemon.ready", Message: "no sandbox with a network can be created, because the gateway does not respond",
				Hint: "the daemon replaces it within a minute",
			}
		}
		facts, err := p.Probe(ctx)
		if err != nil || !facts.Available {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "daemon.ready", Message: "no sandbox can be created", Hint: "see what this machine lacks with: atoll doctor", Cause: err,
			}
		}
		return nil
	}
}

// gatewaySilent reports whether the gateway process runs but does not respond.
func (d *Daemon) gatewaySilent(ctx context.Context) bool {
	g, err := d.node.Gateway()
	if err != nil {
		return false // requests that need it get the error
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	runs, answers, _ := g.State(ctx)
	return runs && !answers
}

// minSpace is the free disk space, in bytes, needed in the state directory to
// create a sandbox.
const minSpace = 32 << 20

// diskFull reports whether the disk is too full to create a sandbox.
func (d *Daemon) diskFull() bool {
	var fs unix.Statfs_t
	err := unix.Statfs(d.node.Dir(), &fs)
	return d.store.Full() || err == nil && int64(fs.Bavail)*fs.Bsize < minSpace
}

// readOnly reports whether a directory's file system cannot be written to. Linux
// makes one read-only after an error of its disk, and the flags of the mount need
// not say so.
func readOnly(dir string) bool {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.EROFS)
}

const readOnlyFix = "see dmesg for the cause, repair the file system, mount it again, and start the daemon again"

// Memory returns the in-memory listener.
func (d *Daemon) Memory() *server.Memory { return d.memory }

// Socket returns the path of the socket, empty if there is none.
func (d *Daemon) Socket() string { return d.socket }

// TCP returns the TCP address, nil if there is none.
func (d *Daemon) TCP() net.Addr { return d.tcp }

// E2B returns the address of the E2B API, nil if it is disabled.
func (d *Daemon) E2B() net.Addr { return d.e2b.address() }

// Failed yields fatal errors, such as that of a listener.
func (d *Daemon) Failed() <-chan error { return d.failed }

func (d *Daemon) onClose(f func() error) { d.undo = append(d.undo, f) }

// Close stops accepting requests, gives those in progress time to end, and
// releases all resources. Sandboxes keep running. Close is idempotent.
func (d *Daemon) Close() error {
	d.closed.Do(func() {
		var failed []error
		// The server does not own the memory listener before Serve.
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

// lockPatience is how long a lock may outlive a daemon that was killed while it
// started a process: until its exec, the new process holds the descriptor of
// the lock.
const lockPatience = 3 * time.Second

// tryLock takes the lock, and waits up to lockPatience.
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

// lock ensures that a single daemon uses a state directory. The kernel releases
// the lock of a process that dies.
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
	_, _ = fmt.Fprintln(f, os.Getpid()) // for the message above
	return f.Close, nil
}
