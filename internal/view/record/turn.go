package record

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// A turn that holds the sandbox of a session is recorded from the first use of
// the desktop until it is released. So turns without a desktop leave nothing.

type turnKey struct{ tenant, session, id string }

// turn is a turn that holds a sandbox.
type turn struct {
	group   string
	sandbox sandbox.ID
	epoch   int64

	begin sync.Once
	mu    sync.Mutex
	over  bool
	rec   string // id of its recording, once there is one
}

// TurnHolds makes the first use of a desktop start a recording.
func (s *Service) TurnHolds(row store.Session, id string, sb sandbox.ID, epoch int64) {
	k := turnKey{row.Tenant, row.ID, id}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[k]; t == nil || t.sandbox != sb || t.epoch != epoch {
		s.turns[k] = &turn{group: row.Group, sandbox: sb, epoch: epoch}
	}
}

// TurnOver ends the recording of a turn.
func (s *Service) TurnOver(row store.Session, id string) {
	s.endTurn(turnKey{row.Tenant, row.ID, id})
}

func (s *Service) endTurn(k turnKey) {
	s.mu.Lock()
	t := s.turns[k]
	delete(s.turns, k)
	s.mu.Unlock()
	if t == nil {
		return
	}
	t.mu.Lock()
	t.over = true
	rec := t.rec
	t.mu.Unlock()
	s.endOf(rec)
}

func (s *Service) endOf(rec string) {
	if r := s.recorder(rec); r != nil {
		r.end(errTurn)
	}
}

// Used starts the recordings of the turns that hold a sandbox, for a caller who
// may use its desktop, and who goes on if that fails.
func (s *Service) Used(ctx context.Context, id sandbox.ID) {
	s.mu.Lock()
	var all []func()
	for k, t := range s.turns {
		if t.sandbox == id {
			all = append(all, func() { t.begin.Do(func() { s.note(s.beginTurn(ctx, k, t)) }) })
		}
	}
	s.mu.Unlock()
	for _, begin := range all {
		begin()
	}
}

// firstWait is how long the first action of a turn waits for its recording.
const firstWait = 30 * time.Second

// beginTurn records for the user of the desktop. The session asks for it, which
// a key for one sandbox may not look at. A caller who goes away does not stop it,
// because it is tried once.
func (s *Service) beginTurn(ctx context.Context, k turnKey, t *turn) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	who.Verbs, who.Sandbox = []key.Verb{key.Read, key.Exec}, ""
	ctx, cancel := context.WithTimeout(guard.WithPrincipal(context.WithoutCancel(ctx), who), firstWait)
	defer cancel()
	r, err := s.Start(ctx, string(t.sandbox), viewing.StreamSession{Ref: k.session, Epoch: t.epoch}, viewing.NewRecording{Kind: viewing.RecordDesktop, Title: "turn " + k.id})
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.rec = r.ID
	over := t.over
	t.mu.Unlock()
	if over {
		s.endOf(r.ID)
	}
	return nil
}

// sweepTurns forgets turns that do not hold their sandbox any more: another
// daemon released them, or the session ended.
func (s *Service) sweepTurns(ctx context.Context) {
	s.mu.Lock()
	held := maps.Clone(s.turns)
	s.mu.Unlock()
	for k, t := range held {
		l, err := store.Read(ctx, s.cfg.Store, func(tx *store.Tx) (lease.Lease, error) { return tx.Sessions().Lease(ctx, k.tenant, t.group) })
		if err == nil && (l.Sandbox != t.sandbox || !l.Holds(lease.Turn, k.id)) {
			s.endTurn(k)
		}
	}
}
