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
	Mutant   string // a rule to break; empty: none
}

// actor is a goroutine that runs one step at a time.
type actor struct {
	name   string
	step   chan bool // true: go on; false: die
	done   bool
	attach []lease.Acquire // holders that it left
}

// world is the simulated state. Only the scheduled actor accesses it.
type world struct {
	opts   Options
	rng    *rand.Rand
	now    time.Time
	actors []*actor
	events chan *actor // an actor is ready for its next step, or done
	cfg    lease.Config

	lease lease.Lease
	boxes map[sandbox.ID]*box
	made  int
	acked int // last write that was acknowledged to a client
	saved int // last write in an archive
	log   []string
	fault string // first violation
}

// box is a simulated sandbox. Its content is one number.
type box struct {
	id     sandbox.ID
	key    string
	alive  bool
	lost   bool // ended by the provider
	paused bool
	served bool // was committed to the lease
	data   int
	made   time.Time
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
		cfg: lease.Config{Warming: 45 * time.Second, Grace: 30 * time.Second, ViewerTTL: time.Minute}, lease: lease.Lease{Group: group, State: lease.Cold}, boxes: map[sandbox.ID]*box{},
	}
	for i := range o.Clients {
		w.start(fmt.Sprintf("client%d", i), w.client)
	}
	for i := range o.Reapers {
		w.start(fmt.Sprintf("reaper%d", i), w.reaper)
	}
	steps := w.schedule()
	if w.fault == "" {
		w.quiesce()
	}
	return Result{Steps: steps, Violation: w.fault, Log: w.log}
}

func (w *world) start(name string, run func(*actor)) {
	a := &actor{name: name, step: make(chan bool)}
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
		dies := w.fault != "" || steps > 5000 || w.rng.Float64() < w.opts.Crashes
		if dies {
			w.note(a, "dies")
		}
		a.step <- !dies
		<-w.events
		if dies {
			w.bury(a)
		}
		w.now = w.now.Add(time.Duration(w.rng.IntN(8)) * time.Second)
		if w.rng.Float64() < w.opts.Losses {
			w.lose()
		}
		w.expire()
		w.invariants()
	}
}

// lose makes the provider end the sandbox of the lease; unsaved data is lost.
func (w *world) lose() {
	if b := w.boxes[w.lease.Sandbox]; b != nil && b.alive {
		b.alive, b.lost = false, true
		w.acked = min(w.acked, content(w.lease.Archive))
		w.log = append(w.log, "provider: loses "+string(b.id))
	}
}

// expire makes the provider end sandboxes whose lifetime is over. Without other
// failures, their data must be saved by then.
func (w *world) expire() {
	for _, id := range w.ids() {
		b := w.boxes[id]
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
	restart := lease.Restart{Spawner: a.name, Own: func(string) bool { return false }}
	if w.opts.Mutant != "a dead attempt goes on" {
		w.lease, _, _ = lease.Apply(w.lease, restart, w.cfg, w.now)
	}
	if l := w.lease; l.Spawner == a.name && (l.State == lease.Warming || !l.Moving.IsZero()) {
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
	if b := w.boxes[l.Sandbox]; l.State == lease.Warm && b != nil && !b.alive && !b.lost {
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
		a.attach = []lease.Acquire{op}
		held, err := m.Acquire(context.Background(), session.Plan{Group: group, Provider: "p"}, op, nil)
		if err != nil {
			w.note(a, "acquire: %v", err)
			continue
		}
		w.use(a, held)
		for until := w.now.Add(w.opts.Lifetime + w.opts.Lifetime/4); w.opts.Lifetime > 0 && w.now.Before(until) && w.serves(held); {
			w.use(a, held)
		}
		_, _, _ = (&leases{w, a}).Apply(context.Background(), group, lease.Release{Kind: op.Kind, ID: op.ID})
		a.attach = nil
	}
}

// serves is the check that every request must pass.
func (w *world) serves(held session.Held) bool {
	return w.opts.Mutant == "evicted sandboxes serve" || w.lease.Serves() && w.lease.Epoch == held.Epoch
}

// use reads the number that earlier clients wrote, and writes a new one.
func (w *world) use(a *actor, held session.Held) {
	w.wait(a)
	b := w.boxes[held.Box.ID]
	switch {
	case b != nil && b.lost, !w.serves(held):
		return
	case b == nil || !b.alive:
		w.violated("%s holds %s, which was ended", a.name, held.Box.ID)
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
	var seen []*box
	for _, id := range w.ids() {
		if b := w.boxes[id]; b.alive {
			seen = append(seen, b)
		}
	}
	w.wait(a)
	l := w.lease // read after the response of the provider
	for _, b := range seen {
		_, attempt, _ := session.SplitKey(b.key)
		if session.Orphan(l, b.id, attempt) || w.opts.Mutant == "orphan of a running attempt" && l.Sandbox != b.id {
			w.note(a, "removes orphan %s", b.id)
			w.end(a, b)
		}
	}
}

func (w *world) ids() []sandbox.ID {
	ids := make([]sandbox.ID, 0, len(w.boxes))
	for id := range w.boxes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// end ends a sandbox for good.
func (w *world) end(a *actor, b *box) {
	l := w.lease
	if b.alive && l.Sandbox == b.id {
		switch {
		case l.State == lease.Warm:
			w.violated("%s ended %s, which the lease serves", a.name, b.id)
		case b.data > w.saved:
			w.violated("%s ended %s with %d, and only %d was saved", a.name, b.id, b.data, w.saved)
		}
	}
	b.alive = false
}

func (w *world) manager(a *actor) *session.Manager {
	return session.NewManager(session.Config{
		Spawner: a.name, Leases: &leases{w, a}, Boxes: &boxes{w, a}, PauseOnExit: w.opts.Seed/36%2 == 0,
		Sleep: func(context.Context, time.Duration) error { w.wait(a); return nil }, Now: func() time.Time { return w.now },
	})
}

// quiesce lets time pass without actors or faults, and checks that only what the
// lease knows is left.
func (w *world) quiesce() {
	w.opts.Faults, w.opts.Crashes, w.opts.Losses, w.opts.Lifetime = 0, 0, 0, 0
	w.lease.Holders = nil
	for range 4 {
		w.now = w.now.Add(w.cfg.Grace + w.cfg.Warming)
		w.actors = nil
		w.start("last", func(a *actor) {
			m := w.manager(a)
			if err := m.Sweep(context.Background()); err != nil {
				w.violated("the last sweep fails: %v", err)
			}
			w.orphans(a)
		})
		w.schedule()
	}
	for _, id := range w.ids() {
		if b := w.boxes[id]; b.alive && w.lease.Sandbox != id {
			w.violated("%s is left over", id)
		}
	}
	kept := content(w.lease.Archive)
	if b := w.boxes[w.lease.Sandbox]; b != nil && b.alive {
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
	l, effect, err := lease.Apply(w.lease, op, w.cfg, w.now)
	if err == nil && effect.Done {
		l = mutateLease(w, op, w.lease, l)
		w.lease = l
		switch o := op.(type) {
		case lease.Persist:
			w.saved = content(l.Archive)
		case lease.Commit:
			w.boxes[o.Sandbox].served = true
		}
		w.note(s.a, "%s → %s epoch %d attempt %d sandbox %q %s", strings.TrimPrefix(fmt.Sprintf("%T", op), "lease."), l.State, l.Epoch, l.Attempt, l.Sandbox, effect.Role)
	}
	w.wait(s.a)
	return l.Clone(), effect, err
}

// content returns the number in an archive.
func content(archive json.RawMessage) int {
	e, err := sandbox.ParseEnvelope(archive)
	if err != nil || e.Archive == nil {
		return 0
	}
	return int(e.Archive.Size)
}
