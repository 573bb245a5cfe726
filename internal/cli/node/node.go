// Package node opens the node that the command line acts on when no daemon is
// involved: its state directory, its images and its providers, each when it is
// first needed.
package node

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
	"github.com/atoll-run/atoll/internal/cli"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/sandbox"
)

// Node is this machine, seen through one state directory. Its methods may be
// called concurrently.
type Node struct {
	dir       string
	providers *all.Registry
	images    func() (*image.Store, error)
	kernel    string // what processes of this program are started from; empty: itself
	env       func(string) (string, bool)
	decide    Egress
	operator  Operator
	pool      int                                       // sandboxes that a provider makes ahead
	networks  map[bool]func() (*gateway.Gateway, error) // by whether they end with this process

	mu     sync.Mutex
	opened map[opening]driver.Provider
	store  *image.Store       // once it is open
	egress []*gateway.Gateway // those that a sandbox has asked for
}

// opening tells the ways apart in which a provider can be opened.
type opening struct {
	name     string
	attached bool
}

var _ cli.System = (*Node)(nil)

// Open opens the node whose state is in dir, making the directory if it is
// missing. An empty dir means the user's own. The caller closes the node.
func Open(dir string, providers *all.Registry, env func(string) (string, bool)) (*Node, error) {
	dir, err := stateDir(dir, env)
	if err != nil {
		return nil, err
	}
	n := &Node{dir: dir, providers: providers, opened: map[opening]driver.Provider{}}
	n.images = sync.OnceValues(func() (*image.Store, error) {
		store, err := image.Open(filepath.Join(dir, "images"), image.Options{})
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.store = store
		return store, nil
	})
	n.env = env
	n.kernel, _ = env("ATOLL_KERNEL")
	n.networks = map[bool]func() (*gateway.Gateway, error){
		true:  sync.OnceValues(func() (*gateway.Gateway, error) { return n.openGateway(true) }),
		false: sync.OnceValues(func() (*gateway.Gateway, error) { return n.openGateway(false) }),
	}
	return n, nil
}

// Dir returns the state directory.
func (n *Node) Dir() string { return n.dir }

// Config returns what a control plane of the named provider is made of.
func (n *Node) Config(name string, attached bool) (control.Config, error) {
	p, err := n.provider(name, attached)
	if err != nil {
		return control.Config{}, err
	}
	return control.Config{Provider: p, Images: images{n}, LockNames: n.lockNames, Network: n.linked(name)}, nil
}

// KeepReady lets providers that are opened from now on make so many sandboxes
// ahead. It is for programs that live long.
func (n *Node) KeepReady(pool int) { n.pool = pool }

// Images returns the node's images, which the node closes.
func (n *Node) Images() (*image.Store, error) { return n.images() }

// provider opens a provider, once. The node closes it.
func (n *Node) provider(name string, attached bool) (driver.Provider, error) {
	entry, err := n.providers.Lookup(name)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	p := n.opened[opening{name, attached}]
	n.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err = n.open(entry, attached, network{n, attached})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if other := n.opened[opening{name, attached}]; other != nil {
		return other, p.Close()
	}
	n.opened[opening{name, attached}] = p
	return p, nil
}

// open opens a provider anew; the caller closes it.
func (n *Node) open(entry all.Entry, attached bool, net network) (driver.Provider, error) {
	p, err := entry.Open(all.Options{
		StateDir: filepath.Join(n.dir, entry.Name), Images: n.Images, Attached: attached, Network: net, Pool: n.pool,
	})
	var known *sandbox.Error
	if err != nil && !errors.As(err, &known) {
		err = &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "provider.open", Subject: entry.Name, Message: err.Error(),
			Hint: "see what this machine lacks with: atoll doctor", Cause: err,
		}
	}
	return p, err
}

// Control returns the control plane of the named provider.
func (n *Node) Control(name string, attached bool) (*control.Control, error) {
	config, err := n.Config(name, attached)
	if err != nil {
		return nil, err
	}
	return control.New(config), nil
}

// Probe tells what the named provider can do here.
func (n *Node) Probe(ctx context.Context, name string) (driver.Facts, error) {
	c, err := n.Control(name, false)
	if err != nil {
		return driver.Facts{}, err
	}
	return c.Probe(ctx)
}

// Check runs the conformance suite against the named provider.
func (n *Node) Check(ctx context.Context, name string, each func(drivertest.Result)) (drivertest.Report, error) {
	entry, err := n.providers.Lookup(name)
	if err != nil {
		return drivertest.Report{}, err
	}
	return drivertest.Check(ctx, drivertest.Harness{
		// The sandboxes are to outlive a provider; a gateway that outlived the suite
		// would be left behind.
		New:     func(context.Context) (driver.Provider, error) { return n.open(entry, false, network{n, true}) },
		Close:   n.closeGateways,
		Spec:    func() sandbox.Spec { return sandbox.Spec{Image: control.HostImage} },
		Observe: each,
	}), nil
}

// Close closes what was opened. It ends no sandbox.
func (n *Node) Close() error {
	n.mu.Lock()
	var failed []error
	for key, p := range n.opened {
		failed = append(failed, p.Close())
		delete(n.opened, key)
	}
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

// lockNames keeps every other process that uses this state directory from
// taking a name. The kernel releases the lock of a process that dies.
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
		go func() { // the wait cannot be ended early
			<-locked //nolint:errcheck // whatever came of it, the descriptor is to be closed
			release()
		}()
		return nil, ctx.Err()
	}
}
