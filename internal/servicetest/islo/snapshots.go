package islo

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
)

// snapshot is a saved sandbox. Its fields are the server's, under its mutex.
type snapshot struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Box     string    `json:"sandbox_id"`
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created_at"`
	tenant  string
	ref     driver.SnapshotRef
}

// snapshot finds a snapshot by its name. The mutex is held.
func (s *Server) snapshot(tenant, name string) *snapshot {
	for _, sn := range s.snapshots {
		if sn.tenant == tenant && sn.Name == name {
			return sn
		}
	}
	return nil
}

// Snapshots returns how many there are.
func (s *Server) Snapshots() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.snapshots)
}

// createSnapshot saves a sandbox that runs. It is answered when that is done, or,
// if the client prefers it, when it has begun.
func (s *Server) createSnapshot(r *http.Request, tenant string) (int, any, error) {
	var in struct {
		Box  string `json:"sandbox_name"`
		Name string `json:"name"`
	}
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	b, err := s.get(in.Box, tenant)
	if err != nil {
		return 0, nil, err
	}
	if now := s.shown(b); now.Status != Running {
		return 0, nil, wrongState(now)
	}
	sn := &snapshot{ID: newID(), Name: in.Name, Status: "saving", Box: b.ID, Created: time.Now().UTC(), tenant: tenant}
	if sn.Name == "" {
		sn.Name = "snapshot-" + sn.ID[:8]
	}
	s.mu.Lock()
	if s.snapshot(tenant, sn.Name) != nil {
		s.mu.Unlock()
		return 0, nil, fail(http.StatusConflict, "INVALID_REQUEST", "snapshot %s already exists", sn.Name)
	}
	s.snapshots = append(s.snapshots, sn)
	takes := s.takes
	s.mu.Unlock()
	done := make(chan error, 1)
	s.work.Go(func() {
		time.Sleep(takes)
		done <- s.save(context.Background(), b, sn)
	})
	if !strings.Contains(r.Header.Get("Prefer"), "respond-async") {
		if err := <-done; err != nil {
			return 0, nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.StatusCreated, *sn, nil
}

func (s *Server) save(ctx context.Context, b *box, sn *snapshot) error {
	saver, ok := driver.As[driver.Snapshotter](b.in)
	if !ok {
		return fail(http.StatusServiceUnavailable, "RESOURCE_UNAVAILABLE", "no snapshots")
	}
	saved, err := saver.Snapshot(ctx, driver.SnapshotOptions{ID: "saved-" + sn.ID[:13]})
	s.mu.Lock()
	defer s.mu.Unlock()
	if sn.Status = "ready"; err != nil {
		sn.Status = "failed"
		s.snapshots = slices.DeleteFunc(s.snapshots, func(o *snapshot) bool { return o == sn })
	}
	sn.ref, sn.Size = saved.Ref, saved.Size
	return err
}

func (s *Server) listSnapshots(r *http.Request, tenant string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var mine []snapshot
	for _, sn := range s.snapshots {
		if sn.tenant == tenant {
			mine = append(mine, *sn)
		}
	}
	return http.StatusOK, page(r, mine), nil
}

func (s *Server) getSnapshot(r *http.Request, tenant string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sn := s.snapshot(tenant, r.PathValue("name"))
	if sn == nil {
		return 0, nil, fail(http.StatusNotFound, "RESOURCE_NOT_FOUND", "snapshot not found")
	}
	return http.StatusOK, *sn, nil
}

func (s *Server) deleteSnapshot(r *http.Request, tenant string) (int, any, error) {
	s.mu.Lock()
	sn := s.snapshot(tenant, r.PathValue("name"))
	switch {
	case sn == nil:
		s.mu.Unlock()
		return 0, nil, fail(http.StatusNotFound, "RESOURCE_NOT_FOUND", "snapshot not found")
	case sn.Status == "saving":
		s.mu.Unlock()
		return 0, nil, fail(http.StatusConflict, "INVALID_REQUEST", "snapshot is being saved")
	}
	s.snapshots = slices.DeleteFunc(s.snapshots, func(o *snapshot) bool { return o == sn })
	s.mu.Unlock()
	if keeper, ok := driver.As[driver.SnapshotKeeper](s.backing); ok {
		return http.StatusNoContent, nil, keeper.RemoveSnapshot(r.Context(), sn.ref)
	}
	return http.StatusNoContent, nil, nil
}
