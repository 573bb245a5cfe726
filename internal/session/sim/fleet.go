package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// FleetMutants are the rules of several daemons and their nodes, as in Mutants.
var FleetMutants = map[string]string{
	"daemons believe their clocks": "all daemons use the clock of the database",
	"unreachable is gone":          "a sandbox of a node that does not answer is not known to be gone",
	"moving sandboxes serve":       "a sandbox that a session is moving from serves no requests",
	"late movers arrive":           "of two daemons that move a session at once, one fails",
	"moves do not expire":          "a move whose time is over does not arrive, because the old sandbox serves again",
	"placement trusts its memory":  "a sandbox is recorded only if its node takes sandboxes then",
	"clearing ends what it finds":  "of a node that came back, only sandboxes end that are recorded as gone",
}

// state is the record of a node.
type state struct{ cordoned, removed, lost, cleared bool }

func (s state) takes() bool { return !s.cordoned && !s.removed }

// node is a machine with sandboxes.
type node struct {
	state
	name string
	dead bool
	cut  map[*daemon]bool // daemons that do not reach it
}

// daemon is a process with clients' requests, a reaper and operators.
type daemon struct {
	name string
	skew time.Duration
	view map[*node]state // what it remembers of the nodes
	runs int
}

// maxRuns limits how often a daemon is started.
const maxRuns = 6

// process names the process of an actor in leases.
func (a *actor) process() string {
	if a.d != nil {
		return a.d.name
	}
	return a.name
}

// settle makes the nodes and the daemons.
func (w *world) settle() {
	for i := range w.opts.Nodes {
		w.nodes = append(w.nodes, &node{name: fmt.Sprintf("node-%d", i), cut: map[*daemon]bool{}})
	}
	for i := range w.opts.Daemons {
		d := &daemon{name: fmt.Sprintf("daemon%d", i), view: map[*node]state{}}
		if w.opts.Skew > 0 {
			d.skew = time.Duration(w.rng.Int64N(int64(2*w.opts.Skew))) - w.opts.Skew
		}
		w.daemons = append(w.daemons, d)
	}
}

func (w *world) daemonOf(i int) *daemon {
	if len(w.daemons) == 0 {
		return nil
	}
	return w.daemons[i%len(w.daemons)]
}

// provider is what a client asks for: any node.
func (w *world) provider() string {
	if w.opts.Nodes > 0 {
		return ""
	}
	return "p"
}

// clock is the time of an actor: that of the database.
func (w *world) clock(a *actor) time.Time {
	if a.d != nil && w.opts.Mutant == "daemons believe their clocks" {
		return w.now.Add(a.d.skew)
	}
	return w.now
}

// kill ends all actors of a daemon at once, and starts it again. Its clients go
// to another daemon.
func (w *world) kill(d *daemon) {
	var dead []*actor
	for _, a := range w.actors {
		if a.d == d && !a.done {
			w.die(a)
			dead = append(dead, a)
		}
	}
	for _, a := range dead {
		w.bury(a)
	}
	if d.runs++; d.runs > maxRuns {
		return
	}
	clear(d.view)
	for _, a := range dead {
		name := fmt.Sprintf("%s'", a.name)
		switch {
		case strings.HasPrefix(a.name, "client"):
			w.start(name, w.daemonOf(w.rng.IntN(len(w.daemons))), w.client)
		case strings.HasPrefix(a.name, "reaper"):
			w.start(name, d, w.reaper)
		default:
			w.start(name, d, w.operator)
		}
	}
}

// reaches reports whether a node answers an actor.
func (w *world) reaches(a *actor, n *node) bool { return n == nil || !n.dead && !n.cut[a.d] }

// cut changes what is reachable: a node dies, with its sandboxes or without, or
// is cut off from a daemon, or comes back.
func (w *world) cut() {
	n, d := w.nodes[w.rng.IntN(len(w.nodes))], w.daemons[w.rng.IntN(len(w.daemons))]
	switch w.rng.IntN(4) {
	case 0:
		n.cut[d] = true
	case 1:
		n.dead = true
		w.log = append(w.log, n.name+": dies")
		for _, id := range w.ids() {
			if b := w.sandboxes[id]; b.node == n && b.alive && w.rng.IntN(3) == 0 {
				w.lost(b)
				b.alive = false
			}
		}
	default:
		n.dead = false
		clear(n.cut)
		w.log = append(w.log, n.name+": is back")
	}
}

// lost excuses the loss of unsaved work of a sandbox.
func (w *world) lost(b *simSandbox) {
	b.lost = true
	if w.lease.Sandbox == b.id {
		w.acked = min(w.acked, content(w.lease.Archive))
	}
}

// heal makes all nodes reachable.
func (w *world) heal() {
	w.opts.Cuts = 0
	for _, n := range w.nodes {
		n.dead = false
		clear(n.cut)
	}
}

// look makes a daemon read the records of the nodes.
func (w *world) look(d *daemon) {
	for _, n := range w.nodes {
		d.view[n] = n.state
	}
}

// place chooses a node as a daemon remembers them: the wanted one, else the one
// with the fewest sandboxes.
func (w *world) place(a *actor, wanted string) *node {
	var best *node
	count := map[*node]int{}
	for _, b := range w.sandboxes {
		if b.alive {
			count[b.node]++
		}
	}
	for _, n := range w.nodes {
		switch {
		case !a.d.view[n].takes() || !w.reaches(a, n):
		case n.name == wanted:
			return n
		case best == nil || count[n] < count[best]:
			best = n
		}
	}
	return best
}

// createOn makes a sandbox on a node: it is recorded first.
func (p *simProvider) createOn(plan session.Plan) (session.Sandbox, error) {
	w := p.w
	n := w.place(p.a, plan.Provider)
	none := &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no node takes a sandbox"}
	if n == nil {
		w.look(p.a.d)
		return session.Sandbox{}, none
	}
	w.wait(p.a)
	if !n.takes() && w.opts.Mutant != "placement trusts its memory" {
		w.look(p.a.d)
		return session.Sandbox{}, none
	}
	w.made++
	b := &simSandbox{id: sandbox.ID(fmt.Sprintf("sb-%d", w.made)), key: plan.Key, node: n, made: w.now, making: p.a}
	w.sandboxes[b.id] = b
	err := p.call("create "+plan.Key+" on "+n.name, b, func() error {
		if n.removed && !n.lost {
			w.violated("%s makes a sandbox on %s, which was removed", p.a.name, n.name)
		}
		w.rivals(p.a, plan.Key)
		b.alive = true
		return nil
	})
	b.making = nil
	switch {
	case b.gone: // its node was given up meanwhile; a reaper ends it
		return session.Sandbox{}, none
	case err != nil:
		b.gone = !b.alive
		return session.Sandbox{}, err
	}
	return w.handle(b), nil
}

// unreachable is the error for a node that does not answer.
func unreachable(w *world, err error) error {
	if w.opts.Mutant == "unreachable is gone" {
		return &sandbox.Error{Code: sandbox.CodeGone, Message: err.Error()}
	}
	return err
}

// beat keeps a holder alive, as its client does.
func (w *world) beat(a *actor, op lease.Acquire, held session.Held) {
	_, _, _ = (&leases{w, a}).Apply(context.Background(), group, lease.Heartbeat{Kind: op.Kind, ID: op.ID, Epoch: held.Epoch})
}

// beating checks that an operation drops no holder that sent a heartbeat.
func (w *world) beating(op lease.Op, before lease.Lease) {
	switch o := op.(type) {
	case lease.Acquire:
		w.beats[string(o.Kind)+o.ID] = w.now
	case lease.Heartbeat:
		w.beats[string(o.Kind)+o.ID] = w.now
	case lease.Tick:
		for _, h := range before.Holders {
			if last := w.beats[string(h.Kind)+h.ID]; !w.lease.Holds(h.Kind, h.ID) && w.now.Sub(last) < w.cfg.ViewerTTL {
				w.violated("%s was dropped %s after its heartbeat", h.ID, w.now.Sub(last))
			}
		}
	}
}

// check is what a daemon does about its nodes at intervals: it reads what is
// recorded, and clears those that were given up and came back.
func (w *world) check(a *actor) {
	if len(w.nodes) == 0 {
		return
	}
	w.look(a.d)
	w.wait(a)
	for _, n := range w.nodes {
		if v := a.d.view[n]; v.removed && v.lost && !v.cleared && w.reaches(a, n) {
			w.clear(a, n)
		}
	}
}

// clear ends the old sandboxes of a node.
func (w *world) clear(a *actor, n *node) {
	w.wait(a)
	for _, id := range w.ids() {
		b := w.sandboxes[id]
		if b.node != n || !b.alive {
			continue
		}
		w.wait(a)
		if !w.reaches(a, n) {
			return
		}
		if b.gone || w.opts.Mutant == "clearing ends what it finds" {
			w.note(a, "clears %s of %s", b.id, n.name)
			w.end(a, b)
		}
	}
	w.wait(a)
	if n.removed && n.lost {
		n.cleared = true
	}
}

// operator drains, removes and takes back nodes.
func (w *world) operator(a *actor) {
	w.look(a.d)
	for w.busy() {
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		if at := slices.IndexFunc(w.nodes, func(n *node) bool { return n.removed && n.cleared }); at >= 0 {
			n = w.nodes[at]
		}
		w.wait(a)
		switch {
		case n.removed:
			if !n.lost || n.cleared {
				n.state = state{}
				w.note(a, "takes %s back", n.name)
			}
		case !w.reaches(a, n) && w.rng.IntN(4) == 0:
			w.giveUp(a, n)
		case w.rng.IntN(2) == 0:
			w.drain(a, n)
		default:
			n.cordoned = false
		}
		w.look(a.d)
		for range w.rng.IntN(12) {
			w.wait(a)
		}
	}
}

// giveUp removes a node, on the operator's word that it never comes back.
func (w *world) giveUp(a *actor, n *node) {
	w.note(a, "gives %s up", n.name)
	n.state = state{removed: true, lost: true}
	for _, id := range w.ids() {
		if b := w.sandboxes[id]; b.node == n && !b.gone {
			w.wait(a)
			w.lost(b)
			b.gone = true
		}
	}
}

// drain moves the session away from a node, and removes the node if it is empty.
func (w *world) drain(a *actor, n *node) {
	n.cordoned = true
	w.look(a.d)
	for range 2 {
		w.wait(a)
		if b := w.sandboxes[w.lease.Sandbox]; w.lease.State == lease.Warm && b != nil && b.node == n {
			w.note(a, "moves from %s: %v", n.name, w.move(a, n))
		}
	}
	w.wait(a)
	left := slices.ContainsFunc(slices.Collect(maps.Values(w.sandboxes)), func(b *simSandbox) bool { return b.node == n && !b.gone })
	if n.cordoned && !n.removed && !left {
		n.state = state{removed: true}
		w.note(a, "removes %s", n.name)
	}
}

// move moves the session from a node to another one.
func (w *world) move(a *actor, from *node) error {
	op := lease.Acquire{Kind: lease.Operator, ID: fmt.Sprintf("%s.move%d", a.name, w.rng.Int())}
	a.attach = []lease.Acquire{op}
	defer func() { a.attach = nil }()
	held, err := w.manager(a).Acquire(context.Background(), session.Plan{Group: group}, op, nil)
	if err != nil {
		return err
	}
	if to := w.place(a, ""); held.Sandbox.Provider == from.name && to != nil {
		cfg := w.config(a)
		// The mover below renews the move, because all actors take turns.
		cfg.Sleep = func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }
		beat := lease.Heartbeat{Kind: op.Kind, ID: op.ID, Epoch: held.Epoch}
		_, err = session.NewManager(cfg).Move(context.Background(), session.Plan{Group: group, Provider: to.name}, held.Epoch, beat, &mover{w: w, a: a, epoch: held.Epoch})
	}
	_, _, _ = (&leases{w, a}).Apply(context.Background(), group, lease.Release{Kind: op.Kind, ID: op.ID})
	return err
}

// mover copies the files of a session that moves.
type mover struct {
	w       *world
	a       *actor
	epoch   int64
	attempt int64
}

func (m *mover) Quiet(_ context.Context, l lease.Lease) error {
	m.attempt = l.Attempt
	return nil // a request is one step
}

func (m *mover) SaveWorkspaces(context.Context, session.Sandbox) ([]durable.WorkspaceRef, error) {
	return nil, nil
}

func (m *mover) Carry(ctx context.Context, from, to session.Sandbox) ([]string, error) {
	sandboxes := &simProvider{m.w, m.a}
	old, fresh := m.w.sandboxes[from.ID], m.w.sandboxes[to.ID]
	data := 0
	err := sandboxes.call("read "+string(from.ID), old, func() error {
		data = old.data
		return sandboxes.alive(from)
	})
	if err != nil {
		return nil, err
	}
	for range m.w.rng.IntN(30) { // a large one takes longer than a move may, and renewals may fail
		m.w.wait(m.a)
		if m.w.rng.IntN(8) == 0 {
			_, effect, err := (&leases{m.w, m.a}).Apply(ctx, group, lease.Depart{Epoch: m.epoch, Attempt: m.attempt})
			if err == nil && !effect.Done {
				return nil, &sandbox.Error{Code: sandbox.CodeStale, Message: "the sandbox was replaced meanwhile"}
			}
		}
	}
	return nil, sandboxes.call("write "+string(to.ID), fresh, func() error {
		fresh.data = data
		return sandboxes.alive(to)
	})
}
