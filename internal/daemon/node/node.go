// Package node opens the resources of a daemon or a command: a state directory,
// its images, egress gateway and providers, each on first use.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/statedir"
)

// Node is this machine with one state directory. It is safe for concurrent use.
type Node struct {
	dir      string
	images   func() (*image.Store, error)
	kernel   string // the executable that helper processes run; empty: this one
	env      func(string) (string, bool)
	decide   Egress
	operator Operator
	pool     int                        // number of warm sandboxes per image
	options  map[string]json.RawMessage // of providers, by name
	fetch    func(ctx context.Context, tenant, ref string) error
	logger   *slog.Logger                              // of the images; nil: none
	networks map[bool]func() (*gateway.Gateway, error) // by whether they end with this process
	// providers have sandboxes that outlive this process, attached have sandboxes
	// that end with it, and trial is for the conformance suite.
	providers, attached, trial *providerset.Registry

	mu     sync.Mutex
	store  *image.Store       // nil until it is open
	egress []*gateway.Gateway // the gateways that were opened
}

// Open opens the node with the state directory dir, which is created if
// missing. Empty dir means the user's default. The caller closes the node.
func Open(dir string, providers []providerset.Entry, env func(string) (string, bool)) (*Node, error) {
	dir, err := statedir.Open(dir, env)
	if err != nil {
		return nil, err
	}
	n := &Node{dir: dir, env: env}
	ecr, _ := env("AWS_ENDPOINT_URL_ECR") // the variable of AWS's own tools
	n.images = sync.OnceValues(func() (*image.Store, error) {
		store, err := image.Open(filepath.Join(dir, "images"), image.Options{ECR: ecr, Logger: n.logger})
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.store = store
		return store, nil
	})
	n.kernel, _ = env("ATOLL_KERNEL")
	n.networks = map[bool]func() (*gateway.Gateway, error){
		true:  sync.OnceValues(func() (*gateway.Gateway, error) { return n.openGateway(true) }),
		false: sync.OnceValues(func() (*gateway.Gateway, error) { return n.openGateway(false) }),
	}
	for _, r := range []struct {
		registry         **providerset.Registry
		attached, bounds bool // sandboxes, or only their gateway, end with this process
	}{{&n.providers, false, false}, {&n.attached, true, true}, {&n.trial, false, true}} {
		*r.registry, err = providerset.New(func(name string) providerset.Host { return n.host(name, r.attached, r.bounds) }, providers...)
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

// host returns the resources of this node for a provider.
func (n *Node) host(name string, attached, bounds bool) providerset.Host {
	return providerset.Host{
		Dir: filepath.Join(n.dir, name), Snapshots: n.snapshots(name), LookupEnv: n.env, Options: n.options[name], Images: n.Images,
		Network: network{n, bounds}, Attached: attached, Pool: n.pool,
	}
}

// snapshots returns the snapshot directory of a provider. That of gVisor has no
// subdirectory, for compatibility with versions that had no other provider.
func (n *Node) snapshots(name string) string {
	if name == "gvisor" {
		return filepath.Join(n.dir, "snapshots")
	}
	return filepath.Join(n.dir, name, "snapshots")
}

// Dir returns the state directory.
func (n *Node) Dir() string { return n.dir }

// KeepReady sets the number of warm sandboxes per image for providers opened
// from now on. It is for long-running programs.
func (n *Node) KeepReady(pool int) { n.pool = pool }

// SetLogger sets where problems with images that are no errors are logged. Call it
// before the images are used.
func (n *Node) SetLogger(l *slog.Logger) { n.logger = l }

// SetOptions sets the options of providers, by name. Call it before the first
// provider is opened.
func (n *Node) SetOptions(options map[string]json.RawMessage) { n.options = options }

// FetchImages sets a function that is called before an image is used. If the store
// lacks the image, it gets it if it is somewhere else and the tenant may use it. Call
// FetchImages before the first sandbox is made.
func (n *Node) FetchImages(get func(ctx context.Context, tenant, ref string) error) { n.fetch = get }

// Images returns the node's image store. The node closes it.
func (n *Node) Images() (*image.Store, error) { return n.images() }

// Providers returns the providers whose sandboxes outlive this process. The
// node closes it.
func (n *Node) Providers() *providerset.Registry { return n.providers }

// Config returns the configuration of the engine for an open provider.
func (n *Node) Config(p *providerset.Provider) engine.Config {
	return engine.Config{Provider: p.Provider, Facts: p.Facts, Images: images{n}, LockNames: n.lockNames}
}

// Engine returns the engine of a provider. With attached, its sandboxes end
// with this process.
func (n *Node) Engine(ctx context.Context, name string, attached bool) (*engine.Engine, error) {
	from := n.providers
	if attached {
		from = n.attached
	}
	p, err := from.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return engine.New(n.Config(p)), nil
}

// Probe returns the capabilities of a provider.
func (n *Node) Probe(ctx context.Context, name string) (driver.Facts, error) {
	c, err := n.Engine(ctx, name, false)
	if err != nil {
		return driver.Facts{}, err
	}
	return c.Probe(ctx)
}

// Trial returns functions for the conformance suite: open opens a new instance
// of the provider, and end must be called at the end.
func (n *Node) Trial(name string) (open func(context.Context) (driver.Provider, error), end func() error, err error) {
	if _, err := n.trial.Lookup(name); err != nil {
		return nil, nil, err
	}
	return func(context.Context) (driver.Provider, error) { return n.trial.Fresh(name) }, n.closeGateways, nil
}

// Close closes what was opened. It does not end sandboxes.
func (n *Node) Close() error {
	var failed []error
	for _, r := range []*providerset.Registry{n.providers, n.attached, n.trial} {
		failed = append(failed, r.Close())
	}
	n.mu.Lock()
	if n.store != nil {
		failed = append(failed, n.store.Close())
		n.store = nil
	}
	n.mu.Unlock()
	return errors.Join(append(failed, n.closeGateways())...)
}

func (n *Node) closeGateways() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed []error
	for _, g := range n.egress {
		failed = append(failed, g.Close())
	}
	n.egress = nil
	return errors.Join(failed...)
}

// lockNames prevents all other processes with this state directory from using a
// name. The kernel releases the lock of a process that dies.
func (n *Node) lockNames(ctx context.Context) (func(), error) {
	fd, err := unix.Open(filepath.Join(n.dir, "names.lock"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(fd, unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				locked <- err
				return
			}
		}
	}()
	release := func() { _ = unix.Close(fd) }
	select {
	case err := <-locked:
		if err != nil {
			release()
			return nil, err
		}
		return release, nil
	case <-ctx.Done():
		go func() { // the wait cannot be interrupted
			<-locked //nolint:errcheck // the descriptor is closed in any case
			release()
		}()
		return nil, ctx.Err()
	}
}
