package operate

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// defaultE2B is the default address for E2B clients, where their SDKs expect a
// local server.
const defaultE2B = "127.0.0.1:3000"

// defaultBridge is the default address for clients of Cloudflare's sandbox
// bridge, the address of its development server.
const defaultBridge = "127.0.0.1:8787"

// UpOptions configure a daemon.
type UpOptions struct {
	StateDir string
	Provider string
	Shared   []string // providers that callers with an API key may choose
	Store    string   // address of the database, with its password; empty: a file in StateDir
	Blobs    string   // address of the store of workspaces and snapshots; empty: a directory in StateDir
	// ShareImages is the address of the store of shared images; empty: Blobs, if set.
	ShareImages     string
	ShareImagesKeep time.Duration // of unused ones in Blobs; zero: without limit
	Buckets         []string      // [TENANT/]NAME=ADDRESS of buckets that workspaces can use
	Listen          string        // TCP address, empty for none
	TLS             *tls.Config   // for it
	Plain           bool          // allows a loopback address without TLS
	Hosts           []string
	Key             string // an API key that is accepted in addition to those that the daemon made; empty: none
	E2B             E2BOptions
	Bridge          BridgeOptions
	Egress          EgressOptions
	MachinesFile    string // describes the NATS server for self-hosted machines; empty: there is none
	Nodes           NodeOptions
	Policies        string // file or directory; empty: there are none
	// AuditKeep is how long events are kept; zero means without limit.
	AuditKeep time.Duration
	OTLP      string // address of a collector of OpenTelemetry; empty: as the environment says
	Pool      int    // number of prewarmed sandboxes
	Drain     time.Duration
	Logger    *slog.Logger
	// PlainSnapshots and SnapshotCache say how snapshots are stored, see
	// daemon.Options.
	PlainSnapshots bool
	SnapshotCache  int64
	StreamRate     int64 // bytes per second of a stream; zero means the default of daemon.Options
	// SessionGrace is how long the sandbox of a session without holders is kept;
	// zero means the default of daemon.Options.
	SessionGrace time.Duration
}

// NodeOptions name the daemons on which this one makes sandboxes.
type NodeOptions struct {
	Nodes   []string // [NAME=]URL
	File    string   // lists more
	Service string   // of Kubernetes, [NAMESPACE/]NAME, whose pods are more
	KeyFile string   // has their keys
	CAFile  string   // has certificates to trust
}

// E2BOptions configure the API for E2B clients.
type E2BOptions struct {
	Listen string // TCP address, empty for none
	TLS    *tls.Config
	Domain string // domain of sandboxes
	CA     string // file with the certificate that clients must trust
	// Plain serves a loopback address without TLS, too.
	Plain bool
	// Internet allows sandboxes everything that their clients do not deny.
	Internet bool
}

// BridgeOptions configure the API for clients of Cloudflare's sandbox bridge.
type BridgeOptions struct {
	Listen string // TCP address, empty for none
	TLS    *tls.Config
}

// EgressOptions are the machine owner's settings for all networks. Empty
// settings are taken from the environment.
type EgressOptions struct {
	Allow []string // addresses and CIDRs that rules may allow although they are not public
	Proxy string   // for all outgoing connections; may contain a password
	Roots string   // PEM file of authorities that are trusted in addition to the machine's
	Hosts string   // file of names with addresses

	// HostPorts are ports of the machine's loopback that rules may open, by the
	// name sandbox.MachineHost.
	HostPorts []string
}

// upCommands are atoll up and down.
type upCommands struct {
	*target.Env
	start func(context.Context, UpOptions) (Daemon, error) // nil in a client
}

// egressFlags are those of EgressOptions.
func egressFlags(flags *pflag.FlagSet, o *EgressOptions, proxyFile *string) {
	flags.StringSliceVar(&o.Allow, "egress-allow", nil, "non-public addresses or CIDRs that rules may allow, such as that of a company mirror (default: $ATOLL_EGRESS_ALLOW)")
	flags.StringSliceVar(&o.HostPorts, "egress-host-ports", nil, "ports of this machine's loopback that rules may open with the name host.atoll.internal (default: $ATOLL_EGRESS_HOST_PORTS)")
	flags.StringVar(&o.Proxy, "egress-proxy", "", "http:// or socks5:// proxy, without a password, for all traffic of sandboxes (default: $ATOLL_EGRESS_PROXY)")
	flags.StringVar(proxyFile, "egress-proxy-file", "", "file with the address of the proxy, including the password; only its owner may be able to read it")
	flags.StringVar(&o.Roots, "egress-roots", "", "PEM file of certificate authorities that the gateway trusts in addition to the machine's (default: $ATOLL_EGRESS_ROOTS)")
	flags.StringVar(&o.Hosts, "egress-hosts", "", "file like /etc/hosts that the gateway uses to resolve names first (default: $ATOLL_EGRESS_HOSTS)")
}

// nodeFlags are those of NodeOptions.
func nodeFlags(flags *pflag.FlagSet, o *NodeOptions) {
	flags.StringArrayVar(&o.Nodes, "node", nil, "a daemon on which this one makes sandboxes, [NAME=]https://HOST:PORT; may be repeated; see: atoll node")
	flags.StringVar(&o.File, "nodes-file", "", "file that lists such daemons, one [NAME=]URL in a line; changes are noticed")
	flags.StringVar(&o.Service, "node-service", "", "service of Kubernetes whose pods are such daemons, [NAMESPACE/]NAME; needs the right to list its endpoint slices")
	flags.StringVar(&o.KeyFile, "node-key-file", "", "file with their API keys, NAME=KEY in a line, or one KEY for all others; only its owner may be able to read it")
	flags.StringVar(&o.CAFile, "node-ca-file", "", "file with certificates to trust for them, in PEM, in addition to the machine's")
}

// proxyAddress refuses a password on the command line.
func proxyAddress(flag, file string) (string, error) {
	if flag == "" && file != "" {
		return addressFile("egress-proxy-file", file)
	}
	u, err := url.Parse(flag)
	if err != nil {
		return "", term.BadFlag("egress-proxy", "is not a usable address")
	}
	if _, password := u.User.Password(); password {
		e := term.BadFlag("egress-proxy", "every user of this machine can read a password on a command line")
		e.Hint = "put the address into $ATOLL_EGRESS_PROXY, or into a file for --egress-proxy-file"
		return "", e
	}
	return flag, nil
}

// Daemon is a running daemon.
type Daemon interface {
	Socket() string // its path
	TCP() net.Addr  // nil without one
	E2B() net.Addr  // nil without one
	// Bridge is nil without one.
	Bridge() net.Addr
	// Reload reads its policies anew.
	Reload(ctx context.Context) error
	// Failed yields fatal errors.
	Failed() <-chan error
	Close() error
}

func (a upCommands) upCmd() *cobra.Command {
	var opts UpOptions
	var cert, key, keyIn, address, addressIn, proxyIn, config string
	var drain resource.DurationFlag
	var keep, shared resource.DaysFlag
	var verbose, background bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the daemon",
		Long: `Up runs the daemon in the foreground. The daemon manages sandboxes that outlive a
command, lets other programs find them by name, and logs every action. Other commands
use it as soon as it answers on its socket in the state directory, which only its
owner and root can use. Over TCP, every caller needs an API key; see: atoll key.

SIGHUP makes it reload the policies, which also happens when their files change.
SIGTERM and Ctrl-C shut it down. Sandboxes keep running, and the next daemon takes
them over. With --detach the daemon runs in the background, and up returns when it
answers; its log is daemon.log in the state directory. Shut it down with: atoll down.

Commands that need a daemon start one in the background themselves, and say so,
unless ATOLL_NO_DAEMON is set or --no-daemon is given.`,
		Example: `  atoll up
  atoll up --listen 127.0.0.1:7070 --plain
  atoll up --config /etc/atoll/atoll.yaml
  atoll up --e2b
  atoll up --bridge
  atoll up --detach`,
		GroupID: resource.GroupDaemon,
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&config, "config", "", "YAML file with settings, each named as a flag of this command; flags on the command line win")
	flags.StringVar(&address, "store", "", "address of a PostgreSQL database that daemons share, without a password: postgres://USER@HOST/DATABASE (default: $ATOLL_STORE, else a file)")
	flags.StringVar(&addressIn, "store-file", "", "file with the address, including the password; only its owner may be able to read it")
	flags.StringVar(&opts.Blobs, "blobs", "", "where workspaces and snapshots are stored: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME with credentials as AWS's tools find them (default: $ATOLL_BLOBS, else in the state directory)")
	flags.StringVar(&opts.ShareImages, "share-images", "", "share images of registries with other daemons below images/ here, an address as for --blobs (default: --blobs, if given)")
	flags.Var(&shared, "share-images-keep", "remove what nobody used for this long from images/ in --blobs, at least 14d; 0 keeps all (default 90d)")
	flags.StringArrayVar(&opts.Buckets, "bucket", nil, "a bucket that can be a workspace, [TENANT/]NAME=s3://BUCKET/PREFIX?endpoint=URL&region=NAME, with credentials as for --blobs; may be repeated; see: atoll workspace create")
	flags.BoolVar(&opts.PlainSnapshots, "plain-snapshots", false, "do not encrypt snapshots and images of templates there with workspace.key")
	flags.Var((*resource.SizeFlag)(&opts.SnapshotCache), "snapshot-cache", "disk space for copies of saved snapshots on this machine, in bytes (default 16g)")
	flags.Var((*resource.SizeFlag)(&opts.StreamRate), "stream-rate", "bytes per second that a stream of a desktop, terminal or port carries in each direction; all streams of a tenant carry eight times as many (default 8m)")
	flags.StringSliceVar(&opts.Shared, "share-provider", nil, "provider that callers with an API key may choose, besides the one of this daemon; may be repeated")
	flags.StringVar(&opts.Listen, "listen", "", "also listen on this TCP address, HOST:PORT; needs --tls-cert and --tls-key")
	flags.StringVar(&cert, "tls-cert", "", "file with the certificate, in PEM")
	flags.StringVar(&key, "tls-key", "", "file with its private key, in PEM")
	flags.BoolVar(&opts.Plain, "plain", false, "serve a loopback address without TLS")
	flags.StringVar(&keyIn, "key-file", "", "file with an API key, from another daemon, that may read, exec and write in the tenant default; only its owner may be able to read it. The key is valid until a start without it")
	flags.StringArrayVar(&opts.Hosts, "host", nil, "a name under which this machine is reached over TCP; may be repeated")
	flags.StringVar(&opts.E2B.Listen, "e2b", "", "also serve the API of E2B on this TCP address (without one: "+defaultE2B+")")
	flags.Lookup("e2b").NoOptDefVal = defaultE2B
	flags.StringVar(&opts.E2B.Domain, "e2b-domain", "", "reach sandboxes there as PORT-ID.DOMAIN, with TLS; without --tls-cert for it, see ca.pem in the state directory (default on a loopback address: "+operator.DefaultE2BDomain+", with TLS and without; empty for no domain)")
	flags.StringVar(&opts.Bridge.Listen, "bridge", "", "also serve the API of Cloudflare's sandbox bridge on this TCP address (without one: "+defaultBridge+")")
	flags.Lookup("bridge").NoOptDefVal = defaultBridge
	flags.StringVar(&opts.MachinesFile, "machines-file", "", "JSON file with the url, user, password, account and issuer of the NATS server for self-hosted machines, as atoll-nats writes it; only its owner may be able to read it")
	nodeFlags(flags, &opts.Nodes)
	flags.StringVar(&opts.Policies, "policy", "", "policy file, or directory of policy files; see: atoll policy (default: $ATOLL_POLICY)")
	egressFlags(flags, &opts.Egress, &proxyIn)
	flags.BoolVar(&opts.E2B.Internet, "e2b-internet", false, "let sandboxes of E2B clients reach everything that the clients do not deny, as E2B does; otherwise only what they allow")
	flags.Var(&keep, "audit-keep", "remove events older than this, such as 90d; see: atoll audit prune (default: keep all)")
	flags.StringVar(&opts.OTLP, "otlp", "", "send traces and events to this OpenTelemetry collector, http://HOST:4318 (default: as the OTEL_EXPORTER_OTLP_ variables say, else nowhere)")
	flags.IntVar(&opts.Pool, "pool", defaultPool(), "number of warm sandboxes to keep per image (0 disables the pool)")
	flags.Var(&drain, "drain", "how long requests may go on when the daemon ends (default 5s)")
	flags.Var((*resource.DurationFlag)(&opts.SessionGrace), "session-grace", "how long to keep the sandbox of a session without holders (default 15m)")
	flags.BoolVarP(&background, "detach", "d", false, "run it in the background")
	flags.BoolVarP(&verbose, "verbose", "v", false, "log more")
	cmd.MarkFlagsRequiredTogether("tls-cert", "tls-key")
	cmd.MarkFlagsMutuallyExclusive("store", "store-file")
	cmd.MarkFlagsMutuallyExclusive("egress-proxy", "egress-proxy-file")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if config == "" {
			return nil
		}
		if err := applyConfig(cmd, config); err != nil {
			return err
		}
		return cmd.ValidateFlagGroups()
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if background {
			return a.detach(cmd.Context(), cmd)
		}
		level := slog.LevelWarn
		if verbose {
			level = slog.LevelDebug
		}
		opts.Logger = slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: level}))
		opts.StateDir, opts.Provider, opts.Drain = a.StateDir, a.ChosenProvider(), time.Duration(drain)
		opts.AuditKeep, opts.ShareImagesKeep = time.Duration(keep), time.Duration(shared)
		if !cmd.Flags().Changed("share-images-keep") {
			opts.ShareImagesKeep = defaultImagesKeep
		} else if shared != 0 && time.Duration(shared) < minImagesKeep {
			return term.BadFlag("share-images-keep", "%s is neither 0 nor at least 14d", cmd.Flags().Lookup("share-images-keep").Value)
		}
		if g := opts.SessionGrace; g != 0 && (g < minGrace || g > maxGrace) {
			return term.BadFlag("session-grace", "%v is not between %v and %v", g, minGrace, maxGrace)
		}
		if opts.Blobs == "" {
			opts.Blobs, _ = a.LookupEnv("ATOLL_BLOBS")
		}
		for flag, address := range map[string]string{"blobs": opts.Blobs, "share-images": opts.ShareImages} {
			if err := checkAddress(flag, address); err != nil {
				return err
			}
		}
		if opts.Policies == "" {
			opts.Policies, _ = a.LookupEnv("ATOLL_POLICY")
		}
		if n := opts.Nodes; len(n.Nodes) == 0 && n.File+n.Service == "" && n.KeyFile+n.CAFile != "" {
			return term.BadFlag("node-key-file", "there are no nodes; name some with --node, --nodes-file or --node-service")
		}
		var err error
		if opts.Store, err = storeAddress(a.Env, address, addressIn); err != nil {
			return err
		}
		if opts.Egress.Proxy, err = proxyAddress(opts.Egress.Proxy, proxyIn); err != nil {
			return err
		}
		if keyIn != "" {
			if opts.Key, err = addressFile("key-file", keyIn); err != nil {
				return err
			}
		}
		if cert != "" {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return term.BadFlag("tls-cert", "the certificate and its key cannot be used: %v", err)
			}
			opts.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
			opts.E2B.TLS, opts.Bridge.TLS = opts.TLS, opts.TLS
		}
		if !cmd.Flags().Changed("e2b-domain") && opts.TLS == nil && isLoopback(opts.E2B.Listen) {
			opts.E2B.Domain, opts.E2B.Plain = operator.DefaultE2BDomain, true
		}
		return a.runDaemon(cmd.Context(), opts)
	}
	return cmd
}

// checkAddress refuses the address of a blob store that was rather meant to be
// something else than a new directory.
func checkAddress(flag, address string) error {
	if address == "" || strings.ContainsAny(address, "/:") {
		return nil
	}
	if _, err := os.Stat(address); !errors.Is(err, fs.ErrNotExist) {
		return nil // what opens it says what is wrong
	}
	e := term.BadFlag(flag, "there is no directory %q here, and it is no address of a bucket", address)
	e.Hint = "use s3://BUCKET/PREFIX?region=NAME, or ./" + address + " for a new directory"
	return e
}

// Values of --share-images-keep. Daemons write what they use again every 7 days.
const (
	minImagesKeep     = 14 * 24 * time.Hour
	defaultImagesKeep = 90 * 24 * time.Hour
)

// Limits of --session-grace: a sandbox must outlast the way to its first use, and
// one that nobody uses must end some day.
const (
	minGrace = time.Second
	maxGrace = 24 * time.Hour
)

// isLoopback reports whether only this machine can reach HOST:PORT.
func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// attend waits for the end of a daemon, and makes it reload its policies after
// every signal.
func (a upCommands) attend(ctx context.Context, d Daemon, again <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case failed := <-d.Failed():
			return failed
		case <-again:
			if err := d.Reload(ctx); err != nil {
				text, _ := term.Explain(err)
				if sandbox.CodeOf(err) == sandbox.CodeInvalid {
					text = "the policies cannot be used; the previous ones stay in force: " + text
				}
				a.SayLines("error", text)
			}
		}
	}
}

// defaultPool is the default number of prewarmed sandboxes: no more than this
// machine can start at once.
func defaultPool() int { return min(runtime.NumCPU(), 8) }

// runDaemon runs a daemon until a signal ends it, or it fails.
func (a upCommands) runDaemon(ctx context.Context, opts UpOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A SIGHUP that arrives while the daemon starts would end it. It waits in the
	// channel until the daemon can reload.
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	if a.start == nil {
		return a.InEngine("no daemon can run on this machine")
	}
	a.Warn(a.WarningOf(opts.Provider))
	d, err := a.start(ctx, opts)
	if err != nil {
		return err
	}
	a.Notef("atoll: listening on %s\n", d.Socket())
	if d.TCP() != nil {
		a.Notef("atoll: listening on %s\n", d.TCP())
	}
	if d.E2B() != nil {
		a.Notef("atoll: serving clients of E2B on %s; see: atoll e2b env\n", d.E2B())
	}
	if d.Bridge() != nil {
		a.Notef("atoll: serving clients of Cloudflare's sandbox bridge on %s\n", d.Bridge())
	}
	failed := a.attend(ctx, d, again)
	stop() // another signal ends it at once
	if err := d.Close(); failed == nil {
		failed = err
	}
	return failed
}
