package vercel

import (
	"net/http"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// kept is a snapshot: one that a client asked for, or one that the service has
// taken of a sandbox that stopped. Times are milliseconds.
type kept struct {
	id, session, name, owner string
	created, expires         int64 // expires may be 0
	auto                     bool
}

// usual is how long the service keeps a snapshot if nothing else was asked for.
const usual = 30 * 24 * time.Hour

func (s *Server) snapshotRoutes() {
	const all, one = "/api/v2/sandboxes/snapshots", "/api/v2/sandboxes/snapshots/{snapshot}"
	s.Handle("POST /api/v2/sandboxes/sessions/{session}/snapshot", s.withSession(s.capture))
	s.Handle("GET "+all, s.listSnapshots)
	s.Handle("GET "+one, s.withSnapshot(func(k kept) (any, error) { return map[string]any{"snapshot": s.shownSnapshot(k, "created")}, nil }))
	s.Handle("DELETE "+one, s.withSnapshot(func(k kept) (any, error) {
		shown := s.shownSnapshot(k, deleted)
		return map[string]any{"snapshot": shown}, s.discard(k)
	}))
}

// capture saves a sandbox that runs, and stops it.
func (s *Server) capture(r *http.Request, one *session) (any, error) {
	in := struct{ Expiration *int64 }{}
	if r.ContentLength != 0 {
		if err := servicetest.Read(r, &in); err != nil {
			return nil, err
		}
	}
	if _, _, err := s.machine(one); err != nil {
		return nil, err
	}
	err := s.Stop(one.sandbox)
	if err == nil {
		err = s.Wait(one.sandbox)
	}
	id, now := "snap_"+servicetest.NewID(), time.Now().UnixMilli()
	if err == nil {
		_, err = s.Keep(one.sandbox, id, id)
	}
	if err != nil {
		return nil, err
	}
	b := s.Show(one.sandbox)
	k := kept{id: id, session: one.id, name: b.Name, owner: b.Owner, created: now, expires: now + usual.Milliseconds()}
	if in.Expiration != nil {
		if k.expires = 0; *in.Expiration > 0 {
			k.expires = now + *in.Expiration
		}
	}
	s.mu.Lock()
	s.kept = append(s.kept, k)
	s.mu.Unlock()
	return map[string]any{"snapshot": s.shownSnapshot(k, "created"), "session": s.shownSession(one)}, nil
}

// saves returns the snapshots of a sandbox, or without a name of all of them.
func (s *Server) saves(owner, name string) (found []kept) {
	s.mu.Lock()
	all, over := slices.Clone(s.kept), slices.Clone(s.sessions)
	over = slices.DeleteFunc(over, func(one *session) bool {
		return one.dropped || slices.ContainsFunc(all, func(k kept) bool { return k.session == one.id })
	})
	s.mu.Unlock()
	for _, one := range over {
		b := s.Show(one.sandbox)
		if b.Status == stopped || b.Status != deleted && s.current(one.sandbox) != one {
			now := time.Now().UnixMilli()
			all = append(all, kept{id: "snap_" + one.id, session: one.id, name: b.Name, owner: b.Owner, created: now, expires: now + usual.Milliseconds(), auto: true})
		}
	}
	for _, k := range all {
		if k.owner == owner && (name == "" || k.name == name) {
			found = append(found, k)
		}
	}
	return found
}

// Saved returns the IDs of all snapshots, without the service's own of sandboxes
// that there are.
func (s *Server) Saved() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		ids = append(ids, k.id)
	}
	return ids
}

// discard removes a snapshot.
func (s *Server) discard(k kept) error {
	s.mu.Lock()
	for _, one := range s.sessions {
		one.dropped = one.dropped || k.auto && one.id == k.session
	}
	s.kept = slices.DeleteFunc(s.kept, func(o kept) bool { return o.id == k.id })
	s.mu.Unlock()
	if k.auto {
		return nil
	}
	m, err := s.Snapshot(k.owner, k.id)
	if err != nil {
		return err
	}
	return s.Forget(m)
}

// remove ends a sandbox. Its snapshots stay, unless the client says otherwise.
func (s *Server) remove(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	shown, now := s.shown(b), s.Show(b)
	all := s.saves(now.Owner, now.Name)
	err := s.Delete(b)
	for _, k := range all {
		switch {
		case err != nil:
		case r.URL.Query().Get("deleteOrphanSnapshots") == "true":
			err = s.discard(k)
		case k.auto:
			s.mu.Lock()
			s.kept = append(s.kept, k)
			s.mu.Unlock()
		}
	}
	return shown, err
}

func (s *Server) withSnapshot(f func(kept) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		for _, k := range s.saves(owner, "") {
			if k.id == r.PathValue("snapshot") {
				return f(k)
			}
		}
		return nil, servicetest.Fail(http.StatusNotFound, "Snapshot %s not found", r.PathValue("snapshot"))
	}
}

func (s *Server) shownSnapshot(k kept, status string) map[string]any {
	shown := map[string]any{
		"id": k.id, "sourceSessionId": k.session, "region": "iad1", "status": status, "sizeBytes": 4096, "createdAt": k.created, "updatedAt": k.created,
	}
	if m, err := s.Snapshot(k.owner, k.id); err == nil {
		shown["sizeBytes"] = m.Size
	}
	if k.expires > 0 {
		shown["expiresAt"] = k.expires
	}
	return shown
}

// listSnapshots lists the snapshots of a sandbox, a few per page.
func (s *Server) listSnapshots(r *http.Request, owner string) (any, error) {
	const most = 2 // a client must follow the cursor
	q := r.URL.Query()
	if err := project(q.Get("project")); err != nil {
		return nil, err
	}
	all := s.saves(owner, q.Get("name"))
	if i := slices.IndexFunc(all, func(k kept) bool { return k.id == q.Get("cursor") }); i >= 0 {
		all = all[i+1:]
	}
	items, next := []any{}, any(nil)
	for i, k := range all[:min(most, len(all))] {
		items = append(items, s.shownSnapshot(k, "created"))
		if i+1 < len(all) {
			next = k.id
		}
	}
	if len(items) == len(all) {
		next = nil
	}
	return map[string]any{"snapshots": items, "pagination": map[string]any{"count": len(items), "next": next, "prev": nil}}, nil
}

// source is what a new sandbox is made from.
type source struct {
	Type     string `json:"type"`
	Snapshot string `json:"snapshotId"`
}

// from returns the snapshot that a new sandbox is made from, or nil.
func (s *Server) from(owner string, c creation) (*servicetest.Snapshot, error) {
	if c.Source == nil {
		return nil, nil
	}
	if c.Source.Type != "snapshot" || c.Image != "" {
		return nil, servicetest.Fail(http.StatusBadRequest, "Invalid source")
	}
	m, err := s.Snapshot(owner, c.Source.Snapshot)
	if err != nil {
		return nil, servicetest.Fail(http.StatusNotFound, "Snapshot %s not found", c.Source.Snapshot)
	}
	return m, nil
}
