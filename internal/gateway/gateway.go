// Package gateway is the control plane's side of the egress gateway: it makes
// the links of sandboxes, keeps a gateway process running that serves them
// (package egress), and tells it what each sandbox may do.
//
// A link is a pair of connected sockets. One end becomes the network card of a
// sandbox's kernel, the other is served by the gateway process, and a duplicate
// of that stays here: when the gateway process dies, another one takes over the
// links, and until then nothing flows.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/gateway/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// Event is one decision about the traffic of a sandbox.
type Event = wire.Event

// Policy says what one sandbox may do. It holds secrets.
type Policy = wire.Policy

// Settings say how the gateway reaches the world.
type Settings = wire.Settings

// Known is what programs in a sandbox may know about its network, and what a
// sandbox that goes on with their memory or their files has to have as well.
type Known struct {
	Names map[string]uint16 // numbers of the addresses that stand for names
	CA    []byte            // the certificate of the authority that they trust, DER
}

// Options configure a Gateway.
type Options struct {
	// Dir is a directory of the gateway's own. It is made if missing.
	Dir string
	// Executable is what the gateway process is started from. Empty: this
	// program itself.
	Executable string
	// Linger lets the gateway process outlive this one as long as it holds a
	// link, so that traffic goes on; the next Gateway with the same Dir takes
	// the links over. Otherwise the process ends with this one.
	Linger bool
	// Settings is asked, each time a gateway process starts, how it reaches
	// the world. Nil: as this machine does.
	Settings func() Settings
	// Event is called with every decision, one after the other. It must not
	// block for long. Nil ignores them.
	Event  func(sandbox.ID, Event)
	Logger *slog.Logger // nil: none

	patience time.Duration // zero: processPatience
}

// Gateway serves the links of sandboxes. Its methods may be called
// concurrently. The caller closes it.
type Gateway struct {
	opts   Options
	master []byte // of which the keys of authorities are derived

	// op is held by whoever starts a process or speaks to it, so that what is
	// said and what is remembered agree. Answers and events come in without.
	op sync.Mutex

	mu      sync.Mutex // of what follows; never held while waiting
	links   map[sandbox.ID]*link
	process *process // nil: none runs
	closed  bool

	inherited bool // of g.op: what an earlier one left has been looked for
	work      sync.WaitGroup
	life      context.Context // ends with Close
	stop      context.CancelFunc
}

// link is the state of a sandbox that another gateway process needs to
// continue.
type link struct {
	file *os.File // the gateway's end
	add  wire.Add
}

// New returns a gateway. No process is started before the first link.
func New(opts Options) (*Gateway, error) {
	if opts.Dir == "" {
		return nil, errors.New("gateway: Dir is required")
	}
	if opts.Executable == "" {
		opts.Executable = "/proc/self/exe"
	}
	if opts.patience == 0 {
		opts.patience = processPatience
	}
	if opts.Settings == nil {
		opts.Settings = MachineSettings
	}
	if opts.Event == nil {
		opts.Event = func(sandbox.ID, Event) {}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	root := filepath.Join(opts.Dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	// No other user may enter it or write to it.
	if err := os.Chmod(root, 0o555); err != nil {
		return nil, err
	}
	master, err := masterKey(opts.Dir)
	if err != nil {
		return nil, err
	}
	g := &Gateway{opts: opts, master: master, links: map[sandbox.ID]*link{}}
	g.life, g.stop = context.WithCancel(context.Background())
	return g, nil
}

// Connect makes a link for a sandbox, which may do what the policy says as soon
// as its kernel has the link. The caller closes Link.File once it has handed
// it over. The gateway lets go of a link when its other end is closed, so that
// a sandbox that ends, or never begins, needs no care. former is what the
// sandbox knows from an earlier life; see Known.
func (g *Gateway) Connect(ctx context.Context, id sandbox.ID, p Policy, former Known) (*Link, error) {
	ours, theirs, err := linkPair()
	if err != nil {
		return nil, err
	}
	ca, err := authorityFor(g.master, string(id), former.CA)
	if err != nil {
		ours.Close()
		theirs.Close()
		return nil, err
	}
	l := &link{file: ours, add: wire.Add{Policy: p, Names: map[string]uint16{}, CACert: ca.cert, CAKey: ca.key}}
	maps.Copy(l.add.Names, former.Names)
	if err := g.attach(ctx, id, l); err != nil {
		ours.Close()
		theirs.Close()
		return nil, err
	}
	return newLink(theirs, ca.pem), nil
}

// attach gives a link to the gateway process.
func (g *Gateway) attach(ctx context.Context, id sandbox.ID, l *link) error {
	g.op.Lock()
	defer g.op.Unlock()
	p, err := g.running()
	if err != nil {
		return err
	}
	// Remembered first: the process may name something at once.
	g.mu.Lock()
	old := g.links[id]
	g.links[id] = l
	g.mu.Unlock()
	if err := p.call(ctx, g.addMessage(id, l), l.file); err != nil {
		g.mu.Lock()
		delete(g.links, id)
		g.mu.Unlock()
		return err
	}
	if old != nil {
		old.file.Close()
	}
	return nil
}

// addMessage hands a link over, with a copy of what may change meanwhile.
func (g *Gateway) addMessage(id sandbox.ID, l *link) *wire.Message {
	g.mu.Lock()
	defer g.mu.Unlock()
	add := l.add
	add.Names = maps.Clone(add.Names)
	return &wire.Message{Op: wire.OpAdd, Sandbox: id, Add: &add}
}

// State reports whether the process runs and answers before ctx ends, and how
// many links it is to serve.
func (g *Gateway) State(ctx context.Context) (runs, answers bool, links int) {
	g.mu.Lock()
	p, links := g.process, len(g.links)
	g.mu.Unlock()
	return p != nil, p != nil && p.answers(ctx), links
}

// running returns the process, and starts one if there is none. g.op is held.
func (g *Gateway) running() (*process, error) {
	g.mu.Lock()
	p, closed := g.process, g.closed
	g.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case p != nil:
		return p, nil
	}
	if err := g.inherit(); err != nil {
		return nil, err
	}
	return g.start()
}

var errClosed = errors.New("the gateway is closed")

// Reconfigure tells a gateway process that runs how to reach the world from now on.
func (g *Gateway) Reconfigure(ctx context.Context) error {
	g.op.Lock()
	defer g.op.Unlock()
	g.mu.Lock()
	p := g.process
	g.mu.Unlock()
	if p == nil {
		return nil // the next one asks when it starts
	}
	settings := g.opts.Settings()
	return p.call(ctx, &wire.Message{Op: wire.OpSettings, Settings: &settings})
}

// SetPolicy changes what a sandbox may do, at once: connections that it may not
// have any more are cut. A sandbox without a link is CodeNotFound.
func (g *Gateway) SetPolicy(ctx context.Context, id sandbox.ID, policy Policy) error {
	g.op.Lock()
	defer g.op.Unlock()
	g.mu.Lock()
	l, p := g.links[id], g.process
	g.mu.Unlock()
	if l == nil {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "egress.policy", Subject: string(id), Message: "the sandbox has no network"}
	}
	if p != nil {
		err := p.call(ctx, &wire.Message{Op: wire.OpPolicy, Sandbox: id, Policy: &policy})
		if err != nil && !errors.Is(err, errGatewayEnded) {
			return err
		}
	}
	// The code that starts the next process passes it on.
	g.mu.Lock()
	l.add.Policy = policy
	g.mu.Unlock()
	return nil
}

// Disconnect ends the link of a sandbox for good.
func (g *Gateway) Disconnect(ctx context.Context, id sandbox.ID) error {
	g.op.Lock()
	defer g.op.Unlock()
	g.mu.Lock()
	l, p := g.links[id], g.process
	delete(g.links, id)
	g.mu.Unlock()
	if l == nil {
		return nil
	}
	l.file.Close()
	if p == nil {
		return nil
	}
	return p.call(ctx, &wire.Message{Op: wire.OpRemove, Sandbox: id})
}

// Known is what a sandbox has been given, to be given to Connect when its
// memory or its files go on in another sandbox. It is empty for a sandbox
// without a link.
func (g *Gateway) Known(ctx context.Context, id sandbox.ID) (Known, error) {
	g.mu.Lock()
	l, p := g.links[id], g.process
	g.mu.Unlock()
	if l == nil {
		return Known{}, nil
	}
	if p != nil {
		// Its notifications may still be in transit.
		names, err := p.ask(ctx, &wire.Message{Op: wire.OpNames, Sandbox: id})
		if err == nil || !errors.Is(err, errGatewayEnded) {
			return Known{names, l.add.CACert}, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return Known{maps.Clone(l.add.Names), l.add.CACert}, nil
}

// Close ends the gateway process, and with it all traffic, unless it is to
// linger.
func (g *Gateway) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	g.stop()
	p := g.process
	for id, l := range g.links {
		l.file.Close()
		delete(g.links, id)
	}
	g.mu.Unlock()
	switch {
	case p == nil:
	case g.opts.Linger:
		p.leave()
	default:
		p.close()
	}
	g.work.Wait()
	return nil
}

// start starts a process and gives it everything that is known. g.op is held.
func (g *Gateway) start() (*process, error) {
	p, err := startProcess(g.opts.Executable, g.opts.Dir, g.opts.Linger, g.opts.patience)
	if err != nil {
		return nil, fmt.Errorf("starting the gateway: %w", err)
	}
	g.work.Go(func() { g.read(p) })
	g.work.Go(p.watch)
	ctx, cancel := context.WithTimeout(g.life, startTimeout)
	defer cancel()
	if err := g.replay(ctx, p); err != nil {
		p.close()
		return nil, fmt.Errorf("starting the gateway: %w", errors.Join(err, p.said()))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		go p.close()
		return nil, errClosed
	case p.over():
		return nil, errGatewayEnded
	}
	g.process = p
	return p, nil
}

// replay sends a new process the current links and policies.
func (g *Gateway) replay(ctx context.Context, p *process) error {
	settings := g.opts.Settings()
	if err := p.call(ctx, &wire.Message{Op: wire.OpSettings, Settings: &settings}); err != nil {
		return err
	}
	g.mu.Lock()
	links := maps.Clone(g.links)
	g.mu.Unlock()
	for id, l := range links {
		if err := p.call(ctx, g.addMessage(id, l), l.file); err != nil {
			return err
		}
	}
	return nil
}

const (
	startTimeout = 10 * time.Second
	firstPause   = 50 * time.Millisecond // before a gateway that died is replaced
	longestPause = 10 * time.Second
)

// read takes what a process tells, until it ends, and then replaces it if
// anybody needs it.
func (g *Gateway) read(p *process) {
	for {
		m, files, err := p.conn.Receive()
		if err != nil {
			break
		}
		wire.CloseAll(files) // it has none to give
		switch m.Op {
		case wire.OpAnswer:
			p.answered(m)
		case wire.OpEvents:
			for _, e := range m.Events {
				g.opts.Event(m.Sandbox, e)
			}
		case wire.OpNames:
			g.named(m)
		case wire.OpEnded:
			g.ended(m.Sandbox)
		}
	}
	p.close()
	g.replace(p)
}

func (g *Gateway) named(m *wire.Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.links[m.Sandbox]; l != nil {
		for name, n := range m.Names {
			l.add.Names[name] = n
		}
	}
}

func (g *Gateway) ended(id sandbox.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.links[id]; l != nil {
		l.file.Close()
		delete(g.links, id)
	}
}

// replace starts another process for one that served and ended, again and again
// until it works or nobody needs it.
func (g *Gateway) replace(dead *process) {
	g.mu.Lock()
	served := g.process == dead
	if served {
		g.process = nil
	}
	g.mu.Unlock()
	if !served {
		return
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if g.restart(dead) {
			return
		}
		select {
		case <-g.life.Done():
			return
		case <-time.After(pause):
		}
	}
}

// restart reports whether there is nothing left to do.
func (g *Gateway) restart(dead *process) bool {
	g.op.Lock()
	defer g.op.Unlock()
	g.mu.Lock()
	enough := g.closed || g.process != nil || len(g.links) == 0
	g.mu.Unlock()
	if enough {
		return true
	}
	g.opts.Logger.Error("the gateway process ended; sandboxes have no network until it is restarted", "why", dead.said())
	_, err := g.start()
	if err != nil {
		g.opts.Logger.Error("gateway failed", "error", err)
	}
	return err == nil
}
