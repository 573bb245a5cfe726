// Package gateway is the control-plane side of the egress gateway. It creates
// the links of sandboxes, runs a gateway process that serves them (package
// egress), and tells it the policy of each sandbox.
//
// A link is a pair of connected sockets. One end becomes the network card of a
// sandbox's kernel, and the gateway process serves the other. This package
// keeps a duplicate of the second: when the gateway process dies, a new one
// takes over the links. Until then no traffic flows.
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

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/sandbox"
)

// Event is one decision about the traffic of a sandbox.
type Event = messages.Event

// Policy is the egress policy of one sandbox. It contains secrets.
type Policy = messages.Policy

// Settings are the settings for outgoing connections.
type Settings = messages.Settings

// Known is what programs in a sandbox may have learned about its network. A
// sandbox that continues with their memory or files needs the same.
type Known struct {
	Names map[string]uint16 // numbers of the synthetic addresses of names
	CA    []byte            // certificate of the trusted authority, DER
}

// Options configures a Gateway.
type Options struct {
	// Dir is a directory for the gateway alone. It is created if missing.
	Dir string
	// Executable is the program of the gateway process. Empty: this program.
	Executable string
	// Linger keeps the gateway process running after this process ends, as long as
	// it has a link, so that traffic continues. The next Gateway with the same Dir
	// takes over the links. Without Linger, the gateway process ends with this
	// one.
	Linger bool
	// Settings is called each time a gateway process starts. Nil: use the
	// machine's settings, see MachineSettings.
	Settings func() Settings
	// Event is called for every decision, one at a time. It must not block for
	// long. Nil ignores them.
	Event  func(sandbox.ID, Event)
	Logger *slog.Logger // nil: no logging

	patience time.Duration // zero: processPatience
}

// Gateway serves the links of sandboxes. It is safe for concurrent use. The
// caller closes it.
type Gateway struct {
	opts   Options
	master []byte // the keys of authorities are derived from it

	// op is held while starting a process or sending it requests, so that its
	// state matches the fields below. Responses and events arrive without it.
	op sync.Mutex

	mu      sync.Mutex // guards the following fields; never held while waiting
	links   map[sandbox.ID]*link
	process *process // nil: not running
	closed  bool

	inherited bool // guarded by op: whether an earlier gateway process has been looked for
	work      sync.WaitGroup
	life      context.Context // canceled by Close
	stop      context.CancelFunc
}

// link is the state of a sandbox that the next gateway process needs.
type link struct {
	file *os.File // the gateway's end
	add  messages.Add
}

// New returns a gateway. It starts a process when the first link is created.
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
	// Other users may not enter or write to it.
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

// Connect creates a link for a sandbox. The policy applies as soon as the
// sandbox's kernel has the link. The caller closes Link.File after passing it
// on. The gateway removes a link when its other end is closed, so callers need
// not clean up when a sandbox ends. former is what the sandbox's programs
// already know; see Known.
func (g *Gateway) Connect(ctx context.Context, id sandbox.ID, p Policy, former Known) (*Link, error) {
	return g.connect(ctx, id, messages.Add{Policy: p}, former)
}

// ConnectEthernet is like Connect for the network card of a virtual machine:
// each message of the link is an Ethernet frame.
func (g *Gateway) ConnectEthernet(ctx context.Context, id sandbox.ID, p Policy, former Known) (*Link, error) {
	return g.connect(ctx, id, messages.Add{Policy: p, Ethernet: true}, former)
}

func (g *Gateway) connect(ctx context.Context, id sandbox.ID, add messages.Add, former Known) (*Link, error) {
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
	add.Names, add.CACert, add.CAKey = map[string]uint16{}, ca.cert, ca.key
	l := &link{file: ours, add: add}
	maps.Copy(l.add.Names, former.Names)
	if err := g.attach(ctx, id, l); err != nil {
		ours.Close()
		theirs.Close()
		return nil, err
	}
	return newLink(theirs, ca.pem), nil
}

// attach passes a link to the gateway process.
func (g *Gateway) attach(ctx context.Context, id sandbox.ID, l *link) error {
	g.op.Lock()
	defer g.op.Unlock()
	p, err := g.running()
	if err != nil {
		return err
	}
	// Store it first: the process may report a new name immediately.
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

// addMessage returns the message that passes on a link, with a copy of its
// mutable state.
func (g *Gateway) addMessage(id sandbox.ID, l *link) *messages.Message {
	g.mu.Lock()
	defer g.mu.Unlock()
	add := l.add
	add.Names = maps.Clone(add.Names)
	return &messages.Message{Op: messages.OpAdd, Sandbox: id, Add: &add}
}

// State reports whether the process is running, whether it responds before ctx
// ends, and how many links it should have.
func (g *Gateway) State(ctx context.Context) (runs, answers bool, links int) {
	g.mu.Lock()
	p, links := g.process, len(g.links)
	g.mu.Unlock()
	return p != nil, p != nil && p.answers(ctx), links
}

// Flush waits until Options.Event has been called for every decision that the
// gateway process has made so far.
func (g *Gateway) Flush(ctx context.Context) error {
	g.mu.Lock()
	p := g.process
	g.mu.Unlock()
	if p == nil {
		return nil
	}
	// The process sends its answer after the events.
	if _, err := p.ask(ctx, &messages.Message{Op: messages.OpNames}); !errors.Is(err, errGatewayEnded) {
		return err
	}
	return nil
}

// running returns the process, and starts it if necessary. The caller holds
// g.op.
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

// Reconfigure sends new settings to the gateway process, if it is running.
func (g *Gateway) Reconfigure(ctx context.Context) error {
	g.op.Lock()
	defer g.op.Unlock()
	g.mu.Lock()
	p := g.process
	g.mu.Unlock()
	if p == nil {
		return nil // the next process gets them when it starts
	}
	settings := g.opts.Settings()
	return p.call(ctx, &messages.Message{Op: messages.OpSettings, Settings: &settings})
}

// SetPolicy replaces the policy of a sandbox immediately: connections that are
// no longer allowed are cut. It returns CodeNotFound for a sandbox without a
// link.
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
		err := p.call(ctx, &messages.Message{Op: messages.OpPolicy, Sandbox: id, Policy: &policy})
		if err != nil && !errors.Is(err, errGatewayEnded) {
			return err
		}
	}
	// If the process has ended, the next one gets the policy at its start.
	g.mu.Lock()
	l.add.Policy = policy
	g.mu.Unlock()
	return nil
}

// Disconnect removes the link of a sandbox.
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
	return p.call(ctx, &messages.Message{Op: messages.OpRemove, Sandbox: id})
}

// Known returns what programs in a sandbox know about its network. Pass it to
// Connect when their memory or files continue in another sandbox. It is empty
// for a sandbox without a link.
func (g *Gateway) Known(ctx context.Context, id sandbox.ID) (Known, error) {
	g.mu.Lock()
	l, p := g.links[id], g.process
	g.mu.Unlock()
	if l == nil {
		return Known{}, nil
	}
	if p != nil {
		// Notifications of new names may still be in transit.
		names, err := p.ask(ctx, &messages.Message{Op: messages.OpNames, Sandbox: id})
		if err == nil || !errors.Is(err, errGatewayEnded) {
			return Known{names, l.add.CACert}, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return Known{maps.Clone(l.add.Names), l.add.CACert}, nil
}

// Close ends the gateway process and all traffic, unless Options.Linger is set.
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

// start starts a process and passes it all links. The caller holds g.op.
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

// replay sends all links and policies to a new process.
func (g *Gateway) replay(ctx context.Context, p *process) error {
	settings := g.opts.Settings()
	if err := p.call(ctx, &messages.Message{Op: messages.OpSettings, Settings: &settings}); err != nil {
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

// read handles messages of a process until it ends, and then replaces it if
// there are links.
func (g *Gateway) read(p *process) {
	for {
		m, files, err := p.conn.Receive()
		if err != nil {
			break
		}
		messages.CloseAll(files) // the process has no files to send
		switch m.Op {
		case messages.OpAnswer:
			p.answered(m)
		case messages.OpEvents:
			for _, e := range m.Events {
				g.opts.Event(m.Sandbox, e)
			}
		case messages.OpNames:
			g.named(m)
		case messages.OpEnded:
			g.ended(m.Sandbox)
		}
	}
	p.close()
	g.replace(p)
}

func (g *Gateway) named(m *messages.Message) {
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

// replace starts a new process for one that has ended, and retries until it
// works or no link is left.
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

// restart reports whether no further attempt is needed.
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
