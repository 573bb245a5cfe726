// Package sim runs the real session code against simulated leases and a
// simulated provider, under a scheduler that chooses the next actor. After
// every step it checks that no needed sandbox ended, that none has a rival, and
// that no saved data is lost.
//
// A run is determined by its seed. Each call to the leases or the provider is a
// step: the caller waits for the scheduler before the call and after it, so a
// crash can happen between an effect and its response.
package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

const group = "g"

// Options configures a run.
type Options struct {
	Seed    uint64
	Clients int     // number of clients that use the sandbox, several times each
	Reapers int     // number of reapers that sweep all the time
	Faults  float64 // probability that a provider call fails or loses its answer
	Crashes float64 // probability per step that the actor dies
	Losses  float64 // probability per step that the provider loses the sandbox
	// Lifetime is when the provider ends a sandbox, even if clients still hold it.
	// Zero: never.
	Lifetime time.Duration
	// Nodes is how many nodes hold the sandboxes, and Daemons is how many daemons
	// on one database make them there. Zero: one provider that is always there.
	Nodes, Daemons int
	Skew           time.Duration // the clock of a daemon is wrong by at most that
	Cuts           float64       // probability per step that a node dies, is cut off, or comes back
	Operators      int           // number of operators that drain and remove nodes
	Mutant         string        // a rule to break; empty: none
}

// actor is a goroutine that runs one step at a time.
type actor struct {
	name   string
	step   chan bool // true: go on; false: die
	done   bool
	attach []lease.Acquire // holders that it left
	d      *daemon         // of which it is a part; nil: a process of its own
}

// world is the simulated state. Only the scheduled actor accesses it.
type world struct {
	opts   Options
	rng    *rand.Rand
	now    time.Time
	actors []*actor
	events chan *actor // an actor is ready for its next step, or done
	cfg    lease.Config

	lease     lease.Lease
	sandboxes map[sandbox.ID]*simSandbox
	made      int
	acked     int // last write that was acknowledged to a client
	saved     int // last write in an archive
	log       []string
	fault     string // first violation

	nodes   []*node
	daemons []*daemon
	beats   map[string]time.Time // the last heartbeats of holders
}

// simSandbox is a simulated sandbox. Its content is one number.
type simSandbox struct {
	id     sandbox.ID
	key    string
	alive  bool
	lost   bool // ended by the provider
	paused bool
	served bool // was committed to the lease
	data   int
	made   time.Time

	node   *node  // that has it; nil: the only provider
	gone   bool   // recorded as gone
	making *actor // records it and makes it now
}

// Result is the result of a run.
type Result struct {
	Steps     int
	Violation string // empty: none
	Log       []string
}

// Run runs one schedule to its end.
func Run(o Options) Result {
	w := &world{
		opts: o, rng: rand.New(rand.NewPCG(o.Seed, 1)), now: time.Unix(1_000_000, 0), events: make(chan *actor),
		cfg: lease.Config{Warming: 45 * time.Second, Grace: 30 * time.Second, ViewerTTL: time.Minute}, lease: lease.Lease{Group: group, State: lease.Cold}, sandboxes: map[sandbox.ID]*simSandbox{},
		beats: map[string]time.Time{},
	}
	if o.Daemons > 0 { // many actors take turns
		w.cfg.Warming, w.cfg.ViewerTTL = 4*time.Minute, 4*time.Minute
	}
	w.settle()
	for i := range o.Clients {
		w.start(fmt.Sprintf("client%d", i), w.daemonOf(i), w.client)
	}
	for i := range max(o.Reapers, o.Daemons) {
		w.start(fmt.Sprintf("reaper%d", i), w.daemonOf(i), w.reaper)
	}
	for i := range o.Operators {
		w.start(fmt.Sprintf("operator%d", i), w.daemonOf(i), w.operator)
	}
	steps := w.schedule()
	if w.fault == "" {
		w.quiesce()
	}
	return Result{Steps: steps, Violation: w.fault, Log: w.log}
}

func (w *world) start(name string, d *daemon, run func(*actor)) {
	a := &actor{name: name, step: make(chan bool), d: d}
	w.actors = append(w.actors, a)
	go func() {
		defer func() {
			a.done = true
			w.events <- a
		}()
		w.wait(a)
		run(a)
	}()
	<-w.events
}

// wait returns control to the scheduler and waits for the next step.
func (w *world) wait(a *actor) {
	w.events <- a
	if !<-a.step {
		runtime.Goexit() // simulates a crash of the process
	}
}

// schedule picks actors until all are done.
func (w *world) schedule() int {
	for steps := 0; ; steps++ {
		var ready []*actor
		for _, a := range w.actors {
			if !a.done {
				ready = append(ready, a)
			}
		}
		if len(ready) == 0 {
			return steps
		}
		a := ready[w.rng.IntN(len(ready))]
		over := w.fault != "" || steps > 5000
		switch dies := over || w.rng.Float64() < w.opts.Crashes; {
		case !dies:
			a.step <- true
			<-w.events
		case a.d != nil && !over:
			w.kill(a.d)
		default:
			w.die(a)
			w.bury(a)
		}
		w.now = w.now.Add(time.Duration(w.rng.IntN(8)>>min(1, len(w.daemons))) * time.Second)
		if w.rng.Float64() < w.opts.Losses {
			w.lose()
		}
		if w.rng.Float64() < w.opts.Cuts {
			w.cut()
		}
		w.expire()
		w.invariants()
	}
}

// die ends an actor where it is.
func (w *world) die(a *actor) {
	w.note(a, "dies")
	a.step <- false
	<-w.events
}

// lose makes the provider end the sandbox of the lease; unsaved data is lost.
func (w *world) lose() {
	if b := w.sandboxes[w.lease.Sandbox]; b != nil && b.alive {
		b.alive, b.lost = false, true
		w.acked = min(w.acked, content(w.lease.Archive))
		w.log = append(w.log, "provider: loses "+string(b.id))
	}
}

// expire makes the provider end sandboxes whose lifetime is over. Without other
// failures, their data must be saved by then.
func (w *world) expire() {
	for _, id := range w.ids() {
		b := w.sandboxes[id]
		if w.opts.Lifetime == 0 || !b.alive || w.now.Before(b.made.Add(w.opts.Lifetime)) {
			continue
		}
		if b.data > w.saved && w.opts.Faults+w.opts.Crashes+w.opts.Losses == 0 {
			w.violated("%s reached its deadline with %d, and only %d was saved", b.id, b.data, w.saved)
		}
		b.alive, b.lost = false, true
		if w.lease.Sandbox == b.id {
			w.acked = min(w.acked, content(w.lease.Archive))
		}
	}
}

// bury releases the holders of a dead process, as its supervisor does, and ends
// its attempt, as its next process does.
func (w *world) bury(a *actor) {
	for _, h := range a.attach {
		w.lease, _, _ = lease.Apply(w.lease, lease.Release{Kind: h.Kind, ID: h.ID}, w.cfg, w.now)
	}
	a.attach = nil
	for _, id := range w.ids() { // a record without a sandbox
		if b := w.sandboxes[id]; b.making == a {
			b.making, b.gone = nil, b.gone || !b.alive
		}
	}
	restart := lease.Restart{Spawner: a.process(), Own: func(string) bool { return false }}
	if w.opts.Mutant != "a dead attempt goes on" {
		w.lease, _, _ = lease.Apply(w.lease, restart, w.cfg, w.now)
	}
	if l := w.lease; l.Spawner == a.process() && (l.State == lease.Warming || !l.Moving.IsZero()) {
		w.violated("the attempt of %s, which died, blocks the others", a.name)
	}
}

func (w *world) note(a *actor, format string, args ...any) {
	w.log = append(w.log, a.name+": "+fmt.Sprintf(format, args...))
}

func (w *world) violated(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
	}
}

// invariants are checked after every step.
func (w *world) invariants() {
	l := w.lease
	if l.State == lease.Warm && l.Sandbox == "" {
		w.violated("the lease is warm without a sandbox")
	}
	if b := w.sandboxes[l.Sandbox]; l.State == lease.Warm && b != nil && !b.alive && !b.lost {
		w.violated("the lease is warm and its sandbox %s was ended", l.Sandbox)
	}
}

// client uses the sandbox a few times: it acquires, writes, and releases.
func (w *world) client(a *actor) {
	m := w.manager(a)
	for round := range 4 {
		for range w.rng.IntN(20) { // does something else
			w.wait(a)
		}
		op := lease.Acquire{Kind: lease.Turn, ID: fmt.Sprintf("%s.%d", a.name, round)}
		if w.opts.Nodes > 0 && round%2 == 1 {
			op.Kind = lease.Operator
		}
		a.attach = []lease.Acquire{op}
		held, err := m.Acquire(context.Background(), session.Plan{Group: group, Provider: w.provider()}, op, nil)
		if err != nil {
			w.note(a, "acquire: %v", err)
			continue
		}
		w.use(a, held)
		for range w.rng.IntN(1 + 12*min(w.opts.Nodes, 1)) {
			w.beat(a, op, held)
			w.use(a, held)
		}
		for until := w.now.Add(w.opts.Lifetime + w.opts.Lifetime/4); w.opts.Lifetime > 0 && w.now.Before(until) && w.serves(a, held); {
			w.use(a, held)
		}
		_, _, _ = (&leases{w, a}).Apply(context.Background(), group, lease.Release{Kind: op.Kind, ID: op.ID})
		a.attach = nil
	}
}

// serves is the check that every request must pass.
func (w *world) serves(a *actor, held session.Held) bool {
	moving := w.clock(a).Before(w.lease.Moving) && w.opts.Mutant != "moving sandboxes serve"
	return w.opts.Mutant == "evicted sandboxes serve" || w.lease.Serves() && w.lease.Epoch == held.Epoch && !moving
}

// use reads the number that earlier clients wrote, and writes a new one.
func (w *world) use(a *actor, held session.Held) {
	w.wait(a)
	b := w.sandboxes[held.Sandbox.ID]
	switch {
	case b != nil && (b.lost || b.gone || !w.reaches(a, b.node)), !w.serves(a, held):
		return
	case b == nil || !b.alive:
		w.violated("%s holds %s, which was ended", a.name, held.Sandbox.ID)
		return
	case b.data < w.acked:
		w.violated("%s reads %d in %s, and %d was written", a.name, b.data, b.id, w.acked)
		return
	}
	b.data, w.acked = w.acked+1, w.acked+1
	w.note(a, "writes %d to %s at epoch %d", b.data, b.id, held.Epoch)
}

// reaper sweeps, ends unneeded sandboxes, and removes orphans.
func (w *world) reaper(a *actor) {
	m := w.manager(a)
	for w.busy() {
		if err := m.Sweep(context.Background()); err != nil {
			w.note(a, "sweep: %v", err)
		}
		w.orphans(a)
		w.check(a)
		w.wait(a)
	}
}

// busy reports whether a client is working.
func (w *world) busy() bool {
	return slices.ContainsFunc(w.actors, func(a *actor) bool { return !a.done && strings.HasPrefix(a.name, "client") })
}

// orphans removes sandboxes that no attempt can commit any more.
func (w *world) orphans(a *actor) {
	w.wait(a)
	var seen []*simSandbox
	for _, id := range w.ids() {
		if b := w.sandboxes[id]; b.alive && w.reaches(a, b.node) {
			seen = append(seen, b)
		}
	}
	w.wait(a)
	l := w.lease // read after the response of the provider
	for _, b := range seen {
		_, attempt, _ := session.SplitKey(b.key)
		if session.Orphan(l, b.id, attempt) || b.gone && b.making == nil || w.opts.Mutant == "orphan of a running attempt" && l.Sandbox != b.id {
			w.note(a, "removes orphan %s", b.id)
			w.end(a, b)
		}
	}
}

func (w *world) ids() []sandbox.ID {
	ids := make([]sandbox.ID, 0, len(w.sandboxes))
	for id := range w.sandboxes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// end ends a sandbox for good.
func (w *world) end(a *actor, b *simSandbox) {
	l := w.lease
	if b.alive && !b.lost && l.Sandbox == b.id {
		switch {
		case l.State == lease.Warm:
			w.violated("%s ended %s, which the lease serves", a.name, b.id)
		case b.data > w.saved:
			w.violated("%s ended %s with %d, and only %d was saved", a.name, b.id, b.data, w.saved)
		}
	}
	b.alive, b.gone = false, true
}

func (w *world) manager(a *actor) *session.Manager { return session.NewManager(w.config(a)) }

func (w *world) config(a *actor) session.Config {
	return session.Config{
		Spawner: a.process(), Leases: &leases{w, a}, Sandboxes: &simProvider{w, a}, PauseOnExit: w.opts.Seed/36%2 == 0,
		Sleep: func(context.Context, time.Duration) error { w.wait(a); return nil }, Now: func() time.Time { return w.clock(a) },
	}
}

// quiesce lets time pass without actors or faults, and checks that only what the
// lease knows is left.
func (w *world) quiesce() {
	w.opts.Faults, w.opts.Crashes, w.opts.Losses, w.opts.Lifetime = 0, 0, 0, 0
	w.lease.Holders = nil
	w.heal()
	for range 4 {
		w.now = w.now.Add(w.cfg.Grace + w.cfg.Warming)
		w.actors = nil
		w.start("last", w.daemonOf(0), func(a *actor) {
			m := w.manager(a)
			w.check(a)
			if err := m.Sweep(context.Background()); err != nil {
				w.violated("the last sweep fails: %v", err)
			}
			w.orphans(a)
		})
		w.schedule()
	}
	for _, id := range w.ids() {
		if b := w.sandboxes[id]; b.alive && w.lease.Sandbox != id {
			w.violated("%s is left over", id)
		}
	}
	kept := content(w.lease.Archive)
	if b := w.sandboxes[w.lease.Sandbox]; b != nil && b.alive {
		kept = max(kept, b.data)
	}
	if kept < w.acked {
		w.violated("%d was written, and %d is left", w.acked, kept)
	}
	if w.lease.State != lease.Cold {
		w.violated("the lease is still %s", w.lease.State)
	}
}

// leases is the simulated store. Each operation is one transaction; its
// response can be lost.
type leases struct {
	w *world
	a *actor
}

func (s *leases) Groups(context.Context) ([]string, error) { return []string{group}, nil }

func (s *leases) Load(context.Context, string) (lease.Lease, error) {
	s.w.wait(s.a)
	return s.w.lease.Clone(), nil
}

func (s *leases) Apply(_ context.Context, _ string, op lease.Op) (lease.Lease, lease.Effect, error) {
	w := s.w
	w.wait(s.a)
	op = mutateOp(w, op)
	before := w.lease
	l, effect, err := lease.Apply(before, op, w.cfg, w.clock(s.a))
	if err == nil && effect.Done {
		l = mutateLease(w, op, w.lease, l)
		w.lease = l
		w.beating(op, before)
		switch o := op.(type) {
		case lease.Arrive:
			w.sandboxes[o.Sandbox].served = true
			w.sandboxes[before.Sandbox].served = false // it is an orphan now
			if w.sandboxes[o.Sandbox].lost {           // its node died before it served
				w.lost(w.sandboxes[o.Sandbox])
			}
		case lease.Persist:
			w.saved = content(l.Archive)
		case lease.Commit:
			w.sandboxes[o.Sandbox].served = true
		}
		w.note(s.a, "%s → %s epoch %d attempt %d sandbox %q %s", strings.TrimPrefix(fmt.Sprintf("%T", op), "lease."), l.State, l.Epoch, l.Attempt, l.Sandbox, effect.Role)
	}
	w.wait(s.a)
	return l.Clone(), effect, err
}

// content returns the number in an archive.
func content(archive json.RawMessage) int {
	e, err := durable.ParseEnvelope(archive)
	if err != nil || e.Archive == nil {
		return 0
	}
	return int(e.Archive.Size)
}
