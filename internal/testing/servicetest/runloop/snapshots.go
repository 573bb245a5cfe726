package runloop

import (
	"net/http"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// snapshots is the name of the snapshots of disks in paths.
const snapshots = "disk_snapshots"

// labels are what a client gives a snapshot.
type labels struct {
	Name     string            `json:"name"`
	Message  string            `json:"commit_message"`
	Metadata map[string]string `json:"metadata"`
}

func (s *Server) snapshotRoutes() {
	const all = "/v1/devboxes/" + snapshots
	s.Handle("POST /v1/devboxes/{sandbox}/snapshot_disk_async", s.withSandbox(s.capture))
	s.Handle("GET "+all, s.listSnapshots)
	s.Handle("POST "+all+"/{snapshot}/delete", func(r *http.Request, owner string) (any, error) {
		m, err := s.snapshot(owner, r.PathValue("snapshot"))
		if err != nil {
			return nil, err
		}
		return struct{}{}, s.Forget(m)
	})
}

func (s *Server) snapshot(owner, id string) (*servicetest.Snapshot, error) {
	m, err := s.Snapshot(owner, id)
	if err != nil {
		return nil, servicetest.Fail(http.StatusNotFound, "Snapshot %s not found", id)
	}
	return m, nil
}

// capture begins to save the disk of a sandbox, which must run.
func (s *Server) capture(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in labels
	if err := servicetest.ReadStrictly(r, &in); err != nil {
		return nil, err
	}
	id := "snp_" + servicetest.NewID()
	_, err := s.Save(b, servicetest.Snapshot{ID: id, Name: id, Request: in}) // a name need not be unique
	if err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "Devbox is not running")
	}
	m, err := s.snapshot(s.Show(b).Owner, id)
	if err != nil {
		return nil, err
	}
	return shownSnapshot(*m), nil
}

// snapshotStatus shows how the saving of a disk is.
func (s *Server) snapshotStatus(owner, id string) (any, error) {
	m, err := s.snapshot(owner, id)
	switch {
	case err != nil:
		return nil, err
	case !m.Ready:
		return map[string]any{"status": "in_progress", "error_message": nil, "snapshot": nil}, nil
	}
	return map[string]any{"status": "complete", "error_message": nil, "snapshot": shownSnapshot(*m)}, nil
}

func shownSnapshot(m servicetest.Snapshot) map[string]any {
	in, _ := m.Request.(labels)
	if in.Metadata == nil {
		in.Metadata = map[string]string{}
	}
	return map[string]any{
		"id": m.ID, "name": in.Name, "commit_message": in.Message, "metadata": in.Metadata, "create_time_ms": m.Created.UnixMilli(), "source_devbox_id": m.Sandbox,
		"size_bytes": m.Size,
	}
}

// listSnapshots lists the snapshots with some metadata, a few per page.
func (s *Server) listSnapshots(r *http.Request, owner string) (any, error) {
	const most = 3 // a client must ask for more
	q := r.URL.Query()
	all := slices.DeleteFunc(s.Snapshots(owner), func(m servicetest.Snapshot) bool {
		in, _ := m.Request.(labels)
		for key, values := range q {
			name, filters := strings.CutPrefix(key, "metadata[")
			if filters && in.Metadata[strings.TrimSuffix(name, "]")] != values[0] {
				return true
			}
		}
		sandbox := q.Get("devbox_id")
		return sandbox != "" && m.Sandbox != sandbox
	})
	if i := slices.IndexFunc(all, func(m servicetest.Snapshot) bool { return m.ID == q.Get("starting_after") }); i >= 0 {
		all = all[i+1:]
	}
	items, more := []any{}, len(all) > most
	for _, m := range all[:min(most, len(all))] {
		items = append(items, shownSnapshot(m))
	}
	return map[string]any{"snapshots": items, "has_more": more}, nil
}
