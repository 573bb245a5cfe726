package microsandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// kept is the service's record of a snapshot, beside its files.
type kept struct {
	source servicetest.Sandbox
	labels map[string]string
}

// operation is the taking of a snapshot.
type operation struct {
	ID       string    `json:"id"`
	Kind     string    `json:"kind"`
	Status   string    `json:"status"`
	Result   any       `json:"result"`
	Error    any       `json:"error"`
	Created  time.Time `json:"created_at"`
	Updated  time.Time `json:"updated_at"`
	Name     string    `json:"snapshot_name"`
	owner    string
	snapshot string
}

func (s *Server) snapshotRoutes() {
	const all, one = "/v1/snapshots", "/v1/snapshots/{snapshot}"
	s.Handle("POST "+all, s.capture)
	s.Handle("GET "+all, func(r *http.Request, owner string) (any, error) {
		return page(r, s.Snapshots(owner), func(m servicetest.Snapshot) string { return m.ID }, s.shownSnapshot), nil
	})
	s.Handle("GET "+one, s.withSnapshot(func(m *servicetest.Snapshot) (any, error) { return s.shownSnapshot(*m), nil }))
	s.Handle("DELETE "+one, s.withSnapshot(func(m *servicetest.Snapshot) (any, error) {
		return map[string]string{"message": "Snapshot deleted"}, s.Forget(m)
	}))
	s.Handle("GET /v1/snapshot-operations", func(r *http.Request, owner string) (any, error) {
		return page(r, s.ongoing(owner), func(o operation) string { return o.ID }, func(o operation) any { return o }), nil
	})
	s.Handle("GET /v1/snapshot-operations/{operation}", func(r *http.Request, owner string) (any, error) {
		for _, o := range s.ongoing(owner) {
			if o.ID == r.PathValue("operation") {
				return o, nil
			}
		}
		return nil, servicetest.FailAs(http.StatusNotFound, "snapshot_operation_not_found", "Snapshot operation not found")
	})
}

// ongoing returns the operations of an owner, also those that have ended.
func (s *Server) ongoing(owner string) (found []operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.operations {
		if o.owner == owner {
			found = append(found, *o)
		}
	}
	return found
}

// withSnapshot is a call about one snapshot.
func (s *Server) withSnapshot(f func(*servicetest.Snapshot) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		text := r.PathValue("snapshot")
		m, err := s.Snapshot(owner, text)
		if err != nil || (m.ID == text) == (r.Header.Get(nameHeader) != "") {
			return nil, servicetest.FailAs(http.StatusNotFound, "snapshot_not_found", "Snapshot %s not found", text)
		}
		return f(m)
	}
}

// capture begins to save the disk of a sandbox, which must be stopped.
func (s *Server) capture(r *http.Request, owner string) (any, error) {
	var in struct {
		Kind    string            `json:"kind"`
		Sandbox string            `json:"sandbox_id"`
		Name    string            `json:"name"`
		Labels  map[string]string `json:"labels"`
	}
	if err := servicetest.ReadStrictly(r, &in); err != nil {
		return nil, err
	}
	b, err := s.Find(owner, in.Sandbox)
	switch {
	case err != nil || s.Show(b).ID != in.Sandbox || s.Show(b).Status == removed:
		return nil, notFound(in.Sandbox)
	case in.Kind != "disk" || in.Name == "":
		return nil, servicetest.FailAs(http.StatusUnprocessableEntity, "unsupported_feature", "only named snapshots of disks are supported")
	case s.Show(b).Status != stopped:
		return nil, servicetest.FailAs(http.StatusUnprocessableEntity, "snapshot_source_ineligible", "Sandbox %s must be stopped", in.Sandbox)
	}
	if _, err := s.Snapshot(owner, in.Name); err == nil {
		return nil, servicetest.FailAs(http.StatusConflict, "snapshot_name_already_exists", "Snapshot %s already exists", in.Name)
	}
	o := &operation{ID: servicetest.UUID(), Kind: "disk", Status: "queued", Created: time.Now().UTC(), Updated: time.Now().UTC(), Name: in.Name, owner: owner, snapshot: servicetest.UUID()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.operations = append(s.operations, o)
	s.kept[o.snapshot] = kept{s.Show(b), in.Labels}
	s.Work.Go(func() {
		m, err := s.Keep(b, o.snapshot, in.Name)
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.Status = "failed"; err == nil {
			o.Status, o.Result = "succeeded", s.describe(*m, s.kept[m.ID])
		} else {
			o.Error = map[string]string{"code": "snapshot_failed", "message": err.Error()}
		}
	})
	return servicetest.Reply{Status: http.StatusAccepted, Body: *o}, nil
}

func (s *Server) shownSnapshot(m servicetest.Snapshot) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.describe(m, s.kept[m.ID])
}

// describe shows a snapshot. Its digest is that of its manifest, whose fields have
// an order.
func (*Server) describe(m servicetest.Snapshot, k kept) any {
	type image struct {
		Reference string `json:"ref"`
		Digest    string `json:"manifest_digest"`
	}
	type upper struct {
		File      string `json:"file"`
		Size      int64  `json:"size_bytes"`
		Integrity any    `json:"integrity"`
	}
	type state struct {
		Kind   string `json:"kind"`
		Format string `json:"format"`
		Type   string `json:"fstype"`
		Upper  upper  `json:"upper"`
	}
	const digest = "sha256:"
	c, _ := k.source.Request.(creation)
	if k.labels == nil {
		k.labels = map[string]string{}
	}
	manifest := struct {
		Schema     int               `json:"schema"`
		Artifact   string            `json:"artifact"`
		Scope      string            `json:"scope"`
		Created    string            `json:"created_at"`
		Parent     any               `json:"parent"`
		Image      image             `json:"image"`
		Source     string            `json:"source_sandbox"`
		State      state             `json:"state"`
		Labels     map[string]string `json:"labels"`
		Extensions struct{}          `json:"extensions"`
		Requires   []string          `json:"requires"`
	}{
		1, "snapshot", "disk", m.Created.UTC().Format(time.RFC3339), nil,
		image{"image", digest + hash([]byte(c.Image))},
		k.source.Name,
		state{"file", "raw", "ext4", upper{"upper.ext4", m.Size, nil}},
		k.labels,
		struct{}{},
		[]string{},
	}
	text, _ := json.Marshal(manifest) // only strings and numbers
	return map[string]any{
		"kind": "disk", "name": m.Name, "location": map[string]string{"type": "managed", "id": m.ID}, "sandbox_id": k.source.ID, "digest": digest + hash(text),
		"size_bytes": m.Size, "manifest": manifest, "labels": k.labels, "created_at": m.Created.UTC().Format(time.RFC3339Nano),
	}
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// page is a page of a list, with few entries: a client must ask for more.
func page[T any](r *http.Request, all []T, id func(T) string, show func(T) any) any {
	const most = 3
	if after := r.URL.Query().Get("cursor"); after != "" {
		all = all[slices.IndexFunc(all, func(one T) bool { return id(one) == after })+1:]
	}
	answer, data := map[string]any{"next_cursor": nil}, []any{}
	if len(all) > most {
		all = all[:most]
		answer["next_cursor"] = id(all[most-1])
	}
	for _, one := range all {
		data = append(data, show(one))
	}
	answer["data"] = data
	return answer
}
