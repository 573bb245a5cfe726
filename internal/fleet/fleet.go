// Package fleet knows the node daemons on which this daemon makes sandboxes. It
// reads their list, asks each for its load at intervals, and opens each as a
// provider of package remote.
package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Config configures a Fleet.
type Config struct {
	Nodes []string // each as for Parse
	// File lists nodes, one in a line. Changes are noticed. Empty: there is none.
	File string
	// Discover finds more nodes, at every check. Nil: there are no more.
	Discover func(ctx context.Context) ([]Found, error)
	// KeyFile has the keys for the nodes. Keys are read again at every check.
	KeyFile string
	// CAFile has certificates that are trusted in addition to the system's.
	CAFile string
	Dir    string // for the providers of the nodes
	// Scope is what sandboxes on nodes belong to: this installation.
	Scope  string
	Store  *store.Store
	Logger *slog.Logger
	// Every is the interval between checks of a node. Zero: 5 seconds.
	Every time.Duration
	// Cleared is called when the old sandboxes of a node that was given up were
	// ended. Nil: no call.
	Cleared func(ctx context.Context, name string, ended int)
}

// Found is a node that was discovered.
type Found struct {
	Name, URL string
	// Dial is where the host of URL is now, HOST:PORT.
	Dial string
}

const (
	every = 5 * time.Second
	// patience is how long a node may take to answer a check, and strikes is how
	// many checks may fail. A refused connection counts at once.
	patience = 5 * time.Second
	strikes  = 2
)

// Fleet knows the nodes. It is safe for concurrent use. The caller closes it.
type Fleet struct {
	cfg  Config
	base *http.Transport

	mu    sync.Mutex
	nodes map[string]*node
	keys  map[string]string
	dial  map[string]string // where to dial for the HOST:PORT of URLs
}

// node is what is known of a node. Its fields are protected by Fleet.mu.
type node struct {
	store.FleetNode
	listed   bool
	provider string     // its name as a provider
	check    sync.Mutex // one check at a time
	direct   *remote.Provider
	client   *atoll.Client

	load    *operator.Load
	images  map[string]bool // of load
	promise int64           // memory of sandboxes that were placed there since
	seen    time.Time       // of the last answer
	strikes int
	problem string // why it counts as unreachable; empty: it answers
}

// Open reads the list of nodes and asks each of them once. A node need not
// answer. The caller closes the Fleet.
func Open(ctx context.Context, cfg Config) (_ *Fleet, err error) {
	if cfg.Every <= 0 {
		cfg.Every = every
	}
	f := &Fleet{cfg: cfg, nodes: map[string]*node{}}
	if f.base, err = remote.Transport(cfg.CAFile); err != nil {
		return nil, err
	}
	f.base.Proxy = nil // the key is for the node alone
	dial := f.base.DialContext
	f.base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		f.mu.Lock()
		if now := f.dial[address]; now != "" {
			address = now
		}
		f.mu.Unlock()
		return dial(ctx, network, address)
	}
	if err := f.read(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.checkAll(ctx)
	return f, nil
}

// Close closes the connections to the nodes. Their sandboxes go on.
func (f *Fleet) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var failed []error
	for _, n := range f.nodes {
		failed = append(failed, n.direct.Close(), n.client.Close())
	}
	f.base.CloseIdleConnections()
	return errors.Join(failed...)
}

// Watch reads the list again and checks the nodes at intervals, until ctx ends.
func (f *Fleet) Watch(ctx context.Context) {
	t := time.NewTicker(f.cfg.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := f.read(ctx); err != nil && ctx.Err() == nil {
			f.cfg.Logger.Error("reading the list of nodes; the former one stays in force", "error", err)
		}
		f.checkAll(ctx)
	}
}

// read reads the list of nodes and their keys, and what was decided about them.
func (f *Fleet) read(ctx context.Context) error {
	var found []Found
	if f.cfg.Discover != nil {
		var err error
		if found, err = f.cfg.Discover(ctx); err != nil {
			return err
		}
	}
	all, dial, err := f.cfg.list(found)
	if err != nil {
		return err
	}
	keys, err := readKeys(f.cfg.KeyFile)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.keys, f.dial = keys, dial
	f.mu.Unlock()
	known, err := f.records(ctx)
	if err != nil {
		return err
	}
	var fresh []listed
	for _, one := range all {
		if known[one.name].URL != one.url {
			fresh = append(fresh, one)
		}
	}
	if len(fresh) > 0 {
		err := f.cfg.Store.Update(ctx, func(tx *store.Tx) error {
			var failed []error
			for _, one := range fresh {
				failed = append(failed, tx.Operator().AddFleetNode(ctx, one.name, one.url))
			}
			return errors.Join(failed...)
		})
		if err != nil {
			return err
		}
	}
	if err := f.Reload(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		n.listed = slices.ContainsFunc(all, func(one listed) bool { return one.name == name })
	}
	return nil
}

func (f *Fleet) records(ctx context.Context) (map[string]store.FleetNode, error) {
	rows, err := store.Read(ctx, f.cfg.Store, func(tx *store.Tx) ([]store.FleetNode, error) { return tx.Operator().Fleet(ctx) })
	all := map[string]store.FleetNode{}
	for _, row := range rows {
		all[row.Name] = row
	}
	return all, err
}

// Reload reads what was decided about the nodes.
func (f *Fleet) Reload(ctx context.Context) error {
	all, err := f.records(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, row := range all {
		n := f.nodes[name]
		if n == nil {
			if n, err = f.add(row); err != nil {
				return err
			}
			f.nodes[name] = n
		}
		n.FleetNode = row
	}
	return nil
}

func (f *Fleet) add(row store.FleetNode) (*node, error) {
	n := &node{FleetNode: row, provider: Prefix + row.Name, problem: "it was not asked yet"}
	var err error
	line := line{f: f, n: n}
	if n.client, err = atoll.New(atoll.Options{Host: local, Transport: line}); err != nil {
		return nil, err
	}
	n.direct, err = remote.New(f.options(row, line))
	return n, err
}

// local is the address of all nodes for clients. line replaces it.
const local = "http://localhost"

func (f *Fleet) options(row store.FleetNode, t http.RoundTripper) remote.Options {
	return remote.Options{Dir: filepath.Join(f.cfg.Dir, row.Name), Scope: f.cfg.Scope, Address: local, Name: "the node " + row.Name, Binding: row.Binding, Transport: t}
}

// Provider opens the provider of a node. The node need not answer, but it must
// have answered once. The caller closes it.
func (f *Fleet) Provider(name string) (p *remote.Provider, binding string, err error) {
	f.mu.Lock()
	n := f.nodes[name]
	var row store.FleetNode
	if n != nil {
		row = n.FleetNode
	}
	f.mu.Unlock()
	switch {
	case n == nil:
		return nil, "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "provider.open", Subject: Prefix + name, Message: "there is no such node", Hint: "list them with: atoll node ls"}
	case row.Binding == "":
		return nil, "", &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "provider.open", Subject: Prefix + name, Message: "the node has never answered", Hint: "see: atoll node inspect " + name}
	}
	p, err = remote.New(f.options(row, line{f: f, n: n, guarded: true}))
	return p, row.Binding, err
}

// line carries requests to a node. Guarded, it refuses them while the node does
// not answer or after it was removed.
type line struct {
	f       *Fleet
	n       *node
	guarded bool
}

// RoundTrip implements http.RoundTripper.
func (l line) RoundTrip(r *http.Request) (*http.Response, error) {
	l.f.mu.Lock()
	address, key := l.n.URL, l.f.keys[l.n.Name]
	if key == "" {
		key = l.f.keys[""]
	}
	refused := l.n.refusal()
	u, err := url.Parse(address)
	var host string // a node that was discovered knows its address, and not its name in the URL
	if err == nil {
		host = l.f.dial[u.Host]
	}
	l.f.mu.Unlock()
	if l.guarded && refused != nil {
		return nil, refused
	}
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host, r.Host = u.Scheme, u.Host, host
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := l.f.base.RoundTrip(r)
	if err == nil || r.Context().Err() != nil {
		return resp, err
	}
	if undialled(err) {
		l.f.mu.Lock()
		l.n.strikes, l.n.problem = strikes, err.Error()
		refused = l.n.refusal()
		l.f.mu.Unlock()
		return nil, refused
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: l.n.Name, Message: "its certificate is not trusted: " + bad.Err.Error(),
			Hint: "name a file with certificates to trust: --node-ca-file FILE", Cause: err,
		}
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: l.n.Name, Message: "the connection was lost", Hint: "see: atoll node inspect " + l.n.Name, Cause: err}
}

// CloseIdleConnections implements the method that http.Client looks for. The
// connections are shared.
func (line) CloseIdleConnections() {}

// undialled reports whether no connection could be made.
func undialled(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// silent begins the reason why a node counts as unreachable.
const silent = "it does not answer: "

// refusal returns why no request may be sent to the node. Nil: none is known.
func (n *node) refusal() error {
	switch {
	case n.State == store.FleetRemoved:
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: n.Name, Message: "it was removed", Hint: "take it back with: atoll node uncordon " + n.Name}
	case n.problem != "":
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: n.Name, Message: silent + n.problem,
			Hint: "wait for it; if it never comes back, give it up with: atoll node rm --lost " + n.Name,
		}
	}
	return nil
}

// state returns the state of the node, and why it gets no new sandboxes.
func (n *node) state() (operator.NodeState, string) {
	switch {
	case n.State == store.FleetRemoved:
		return operator.NodeRemoved, "it was removed"
	case n.problem != "":
		return operator.NodeUnreachable, silent + n.problem
	case n.State == store.FleetDraining:
		return operator.NodeDraining, "its sessions are being moved"
	case n.State == store.FleetCordoned:
		return operator.NodeCordoned, "it is cordoned"
	case !n.listed:
		return operator.NodeCordoned, "it is not listed any more"
	}
	return operator.NodeReady, ""
}

func (n *node) public() operator.Node {
	out := operator.Node{Name: n.Name, URL: n.URL, Provider: n.provider, Seen: n.seen, Removed: n.Removed, Lost: n.Lost}
	out.State, out.Reason = n.state()
	if n.load != nil {
		load := *n.load
		load.MemoryFree, load.MemoryReserved = max(load.MemoryFree-n.promise, 0), load.MemoryReserved+n.promise
		out.Load = &load
	}
	return out
}

// Nodes returns all nodes, by name.
func (f *Fleet) Nodes() []operator.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]operator.Node, 0, len(f.nodes))
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		all = append(all, f.nodes[name].public())
	}
	return all
}

// Node returns a node. CodeNotFound: there is none with that name.
func (f *Fleet) Node(name string) (operator.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	if n == nil {
		return operator.Node{}, missing(name)
	}
	return n.public(), nil
}

func missing(name string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "there is no node with that name", Hint: "list them with: atoll node ls"}
}
