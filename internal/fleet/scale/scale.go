// Package scale runs the real placement, lease and reaper code in a discrete-event
// simulation of a large fleet: thousands of nodes, some control daemons that
// remember them as they were, and one database that does a number of transactions
// per second. Nothing sleeps: time is that of the next event.
//
// Most sandboxes are counts: one session of the simulation stands for several.
package scale

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Options configures a run.
type Options struct {
	Seed      uint64
	Nodes     int
	Zones     int // the first one is lost
	Daemons   int // control daemons
	Sandboxes int // that run at first, each of a session
	Weight    int // sandboxes that one session stands for
	Burst     int // sandboxes that are created one by one
	Within    time.Duration
	Images    int           // number of nodes that have the image of the burst; 0: all
	Word      time.Duration // from the loss of the zone until the operator gives its nodes up
	Return    time.Duration // from then on, until all lost sessions have been used again
	Database  float64       // transactions per second
}

// Memory of a node and of a sandbox.
const (
	nodeMemory    = 512 << 30
	sandboxMemory = 256 << 20
	report        = 5 * time.Second // interval of checks of a node; see package fleet
	strikes       = 2
)

// Result is what was measured.
type Result struct {
	PlaceTime time.Duration // of the processor, per create of the burst
	Refused   int           // times that a full node refused a create of the burst; it is tried again
	// Imbalance is the most sandboxes on a node, over the mean, after all.
	Filled, Imbalance float64
	BurstDone         time.Duration // from the first create of the burst to the last answer
	PerCreate         float64       // transactions on leases per create of a session
	PerRebuild        float64       // transactions on leases per rebuilt session
	GivenUp           time.Duration // from the operator's word until all records say it
	Recovered         time.Duration // from the operator's word until all lost sessions serve again
	Rebuilt           int           // sandboxes
	Sweep             float64       // transactions per second that reapers need, every 30 seconds for all
	Twice, Missing    int           // sessions with two sandboxes, or with none; both must be zero
}

type node struct {
	name      string
	zone      int
	used      int64
	sandboxes int // sandboxes there
	dead      bool
	gone      bool // given up
}

// daemon is a control daemon.
type daemon struct {
	facts []catalog.Facts
	fails []int
}

type group struct {
	name    string
	lease   lease.Lease
	on      int // node of the sandbox; -1: none
	sandbox int // number of the sandbox
}

type event struct {
	at time.Time
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) } //nolint:forcetypeassert // heap.Interface
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type world struct {
	o       Options
	rng     *rand.Rand
	now     time.Time
	queue   events
	nodes   []node
	daemons []daemon
	groups  []*group
	free    time.Time // when the database has done all that it was asked
	txs     int       // transactions on leases
	made    int
	living  map[int]*group // by sandbox
	placing time.Duration
	res     Result
}

// Run runs the simulation.
func Run(o Options) Result {
	w := &world{o: o, rng: rand.New(rand.NewPCG(o.Seed, 2)), now: time.Unix(1_000_000, 0), living: map[int]*group{}}
	for i := range o.Nodes {
		w.nodes = append(w.nodes, node{name: fmt.Sprintf("node-%05d", i), zone: i % o.Zones})
	}
	w.daemons = make([]daemon, o.Daemons)
	for i := range w.daemons {
		d := &w.daemons[i]
		d.facts, d.fails = make([]catalog.Facts, o.Nodes), make([]int, o.Nodes)
		w.after(time.Duration(i)*report/time.Duration(o.Daemons), func() { w.watch(d) })
	}
	w.run(w.now.Add(report))
	w.fill()
	w.burst()
	w.lose()
	w.measure()
	return w.res
}

func (w *world) after(d time.Duration, do func()) { heap.Push(&w.queue, event{w.now.Add(d), do}) }

// run runs events until a time.
func (w *world) run(until time.Time) {
	for len(w.queue) > 0 && !w.queue[0].at.After(until) {
		e, _ := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
	}
	w.now = until
}

// transact is n transactions. It returns when the database has done them.
func (w *world) transact(n int) time.Time {
	w.free = later(w.free, w.now).Add(time.Duration(float64(n) / w.o.Database * float64(time.Second)))
	return w.free
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// watch asks all nodes for their load, as a control daemon does at intervals.
func (w *world) watch(d *daemon) {
	for i := range w.nodes {
		n, f := &w.nodes[i], &d.facts[i]
		if n.dead {
			if d.fails[i]++; d.fails[i] >= strikes && f.Node != nil {
				f.Node.Refused = "it does not answer"
			}
			continue
		}
		*f = catalog.Facts{
			Descriptor: catalog.Descriptor{Name: n.name}, Available: true,
			Node: &catalog.Node{Free: nodeMemory - n.used, HasImage: w.o.Images == 0 || i < w.o.Images},
		}
	}
	w.after(report, func() { w.watch(d) })
}

// place chooses a node, as a daemon remembers them.
func (w *world) place(d *daemon, weight int) (at int, ok bool) {
	memory := int64(weight) * sandboxMemory
	began := time.Now()
	best, ok := catalog.Best(catalog.Needs{}, func(yield func(catalog.Facts) bool) {
		for i := range d.facts {
			f := d.facts[i]
			if f.Node == nil { // a node that it has not asked yet
				continue
			}
			f.Node.Full = f.Node.Free < memory
			if !yield(f) {
				return
			}
		}
	})
	w.placing += time.Since(began)
	if !ok {
		return 0, false
	}
	at, _ = slices.BinarySearchFunc(d.facts, best.Descriptor.Name, func(f catalog.Facts, name string) int { return cmp.Compare(f.Descriptor.Name, name) })
	d.facts[at].Node.Free -= memory
	return at, true
}

// put makes sandboxes on a node, unless it is full or dead.
func (w *world) put(at, weight int) bool {
	n := &w.nodes[at]
	if n.dead || n.used+int64(weight)*sandboxMemory > nodeMemory {
		return false
	}
	n.used, n.sandboxes = n.used+int64(weight)*sandboxMemory, n.sandboxes+weight
	return true
}

// fill makes the sandboxes that run at first.
func (w *world) fill() {
	before, count := w.txs, w.o.Sandboxes/w.o.Weight
	for i := range count {
		if i%1000 == 0 { // so that the daemons learn of one another
			w.run(w.now.Add(time.Second))
		}
		g := &group{name: fmt.Sprintf("g%d", i), on: -1}
		w.groups = append(w.groups, g)
		for !w.acquire(g) { // the nodes that it knows with room are full
			w.run(w.now.Add(report))
		}
	}
	w.res.PerCreate = float64(w.txs-before) / float64(count)
	w.res.Filled = w.imbalance()
	before = w.txs
	for _, g := range w.groups { // one sweep of all reapers
		_ = w.manager(g).SweepGroup(context.Background(), g.name)
	}
	around := (perSweep + w.o.Daemons - 1) * count // every daemon reads the leases of the others, too
	w.res.Sweep = float64(w.txs-before+around) * float64(w.o.Weight) / lease.Sweep.Seconds()
	w.free = w.now
}

// imbalance is the most sandboxes on a living node, over the mean.
func (w *world) imbalance() float64 {
	most, sum, count := 0, 0, 0
	for _, n := range w.nodes {
		if !n.dead {
			most, sum, count = max(most, n.sandboxes), sum+n.sandboxes, count+1
		}
	}
	return float64(most) * float64(count) / float64(sum)
}

// burst creates sandboxes one by one, at a constant rate.
func (w *world) burst() {
	w.placing = 0
	began, done := w.now, w.now
	placed, left := 0, w.o.Burst
	var create func()
	create = func() {
		placed++
		at, ok := w.place(&w.daemons[w.rng.IntN(len(w.daemons))], 1)
		if ok && w.put(at, 1) {
			left--
			done = later(done, w.transact(perCreate))
			return
		}
		w.res.Refused++
		w.after(report, create) // the client tries again
	}
	for i := range w.o.Burst {
		w.after(time.Duration(i)*w.o.Within/time.Duration(w.o.Burst), create)
	}
	for w.run(w.now.Add(w.o.Within)); left > 0; {
		w.run(w.now.Add(report))
	}
	w.res.PlaceTime = w.placing / time.Duration(max(placed, 1))
	w.res.BurstDone = done.Sub(began)
	w.run(later(w.now, done))
}

// Transactions around the code that runs here: to create a sandbox, to record that
// one is gone, and of a reaper for one lease.
const (
	perCreate = 3
	perGone   = 2
	perSweep  = 4
)

// lose ends a zone. The operator gives its nodes up, and then all its sessions are
// used again.
func (w *world) lose() {
	for i := range w.nodes {
		w.nodes[i].dead = w.nodes[i].zone == 0
	}
	w.run(w.now.Add(w.o.Word))
	word, done := w.now, w.now
	for i := range w.nodes {
		if n := &w.nodes[i]; n.dead {
			n.gone = true
			done = w.transact(n.sandboxes * perGone)
		}
	}
	w.res.GivenUp = done.Sub(word)
	var lost []*group
	for _, g := range w.groups {
		if w.nodes[g.on].gone {
			lost = append(lost, g)
		}
	}
	before, served := w.txs, done
	left := len(lost)
	for _, g := range lost {
		var use func()
		use = func() {
			now := w.txs
			if !w.acquire(g) {
				w.after(report, use)
				return
			}
			left--
			served = later(served, w.transact((w.txs-now+perCreate)*w.o.Weight))
		}
		w.after(done.Sub(w.now)+time.Duration(w.rng.Int64N(int64(w.o.Return))), use)
	}
	for w.run(done.Add(w.o.Return)); left > 0; {
		w.run(w.now.Add(report))
	}
	w.res.Recovered, w.res.Rebuilt = served.Sub(word), len(lost)*w.o.Weight
	w.res.PerRebuild = float64(w.txs-before) / float64(max(len(lost), 1))
}

// measure checks that every session has one sandbox.
func (w *world) measure() {
	w.res.Imbalance = w.imbalance()
	count := map[*group]int{}
	for _, g := range w.living {
		count[g]++
	}
	for _, g := range w.groups {
		switch n := count[g]; {
		case n > 1:
			w.res.Twice++
		case n == 0 || g.lease.State != lease.Warm || w.nodes[g.on].dead:
			w.res.Missing++
		}
	}
}

// acquire uses a session, as its client does.
func (w *world) acquire(g *group) bool {
	_, err := w.manager(g).Acquire(context.Background(), session.Plan{Group: g.name}, lease.Acquire{Kind: lease.Turn, ID: "t"}, nil)
	return err == nil
}

// manager is a real one of a control daemon.
func (w *world) manager(g *group) *session.Manager {
	d := &w.daemons[w.rng.IntN(len(w.daemons))]
	return session.NewManager(session.Config{
		Leases: leases{w, g}, Sandboxes: sandboxes{w, g, d}, Now: func() time.Time { return w.now },
		Sleep: func(context.Context, time.Duration) error { return errors.ErrUnsupported }, // nobody waits for another
	})
}

// leases stores the lease of a group, one transaction for each operation.
type leases struct {
	w *world
	g *group
}

func (s leases) Groups(context.Context) ([]string, error) { return []string{s.g.name}, nil }

func (s leases) Load(context.Context, string) (lease.Lease, error) {
	s.w.txs++
	return s.g.lease.Clone(), nil
}

func (s leases) Apply(_ context.Context, name string, op lease.Op) (lease.Lease, lease.Effect, error) {
	s.w.txs++
	s.g.lease.Group = name
	l, effect, err := lease.Apply(s.g.lease, op, lease.Default(), s.w.now)
	if err == nil && effect.Done {
		s.g.lease = l
	}
	return l.Clone(), effect, err
}

// sandboxes implements session.Sandboxes for a group, which has one sandbox.
type sandboxes struct {
	w *world
	g *group
	d *daemon
}

func (s sandboxes) handle() session.Sandbox {
	return session.Sandbox{ID: sandbox.ID(fmt.Sprint("sb-", s.g.sandbox)), Provider: s.w.nodes[s.g.on].name}
}

func (s sandboxes) Create(context.Context, session.Plan) (session.Sandbox, error) {
	at, ok := s.w.place(s.d, s.w.o.Weight)
	if !ok || !s.w.put(at, s.w.o.Weight) {
		return session.Sandbox{}, &sandbox.Error{Code: sandbox.CodeExhausted, Message: "the node is full"}
	}
	s.w.made++
	s.g.on, s.g.sandbox = at, s.w.made
	s.w.living[s.g.sandbox] = s.g
	return s.handle(), nil
}

func (s sandboxes) Find(context.Context, session.Plan) (session.Sandbox, error) {
	return session.Sandbox{}, &sandbox.Error{Code: sandbox.CodeNotFound}
}

func (s sandboxes) Resume(_ context.Context, e durable.Envelope) (session.Sandbox, durable.Outcome, bool, error) {
	switch n := &s.w.nodes[s.g.on]; {
	case n.gone: // recorded; it ends if the node comes back
		delete(s.w.living, s.g.sandbox)
		return session.Sandbox{}, "", false, &sandbox.Error{Code: sandbox.CodeGone, Subject: e.Sandbox, Message: "its node was given up"}
	case n.dead:
		return session.Sandbox{}, "", false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "its node does not answer"}
	}
	return s.handle(), durable.OutcomeAttached, false, nil
}

func (s sandboxes) Probe(context.Context, session.Sandbox) error { return nil }

func (s sandboxes) Hydrate(_ context.Context, sb session.Sandbox, _ durable.Envelope) (session.Sandbox, durable.ReceiptFrom, []string, error) {
	return sb, durable.ReceiptFrom{}, nil, nil
}

func (s sandboxes) Capture(_ context.Context, _ session.Sandbox, e durable.Envelope) (durable.Envelope, error) {
	return e, nil
}
func (s sandboxes) Discard(context.Context, durable.Envelope) error { return nil }
func (s sandboxes) Pause(context.Context, session.Sandbox) error    { return nil }
func (s sandboxes) Delete(context.Context, session.Sandbox) error   { return nil }
func (s sandboxes) Permanent(context.Context, string) bool          { return false }
