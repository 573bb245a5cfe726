package e2bapi

import (
	"cmp"
	"context"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// pause keeps a sandbox on disk. One that is paused already is 409.
func (h *Handler) pause(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Memory *bool `json:"memory"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	if state, _ := stateOf(&s); state == "paused" {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: publicID(s.ID), Message: "the sandbox is paused already"}
	}
	if err := h.service.Pause(r.Context(), s.ID, req.Memory == nil || *req.Memory); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

const maxForks = 100

// forked is one of the copies that were asked for.
type forked struct {
	Sandbox *made    `json:"sandbox,omitempty"`
	Error   *problem `json:"error,omitempty"`
}

func (h *Handler) fork(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	timeout, err := seconds(req.Timeout, timeoutV1)
	if err != nil {
		return err
	}
	count := 1
	if req.Count != nil {
		count = *req.Count
	}
	if count < 1 || count > maxForks {
		return invalid("count", "%d is not between 1 and %d", count, maxForks)
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	if state, _ := stateOf(&s); state == "paused" {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: publicID(s.ID), Message: "the sandbox is paused", Hint: "connect to it first"}
	}
	copies, err := h.service.Fork(r.Context(), s.ID, count)
	if err != nil {
		return err
	}
	out := make([]forked, len(copies))
	for i := range copies {
		one, err := h.service.Expire(r.Context(), copies[i].ID, h.opts.Now().Add(timeout), false)
		if err != nil {
			out[i].Error = newProblem(err)
			continue
		}
		m := h.made(&one)
		out[i].Sandbox = &m
	}
	writeJSON(w, http.StatusCreated, out)
	return nil
}

// defaultTag is the tag of what was made without one.
const defaultTag = "default"

// tagOf returns the tag that a snapshot was created with.
func tagOf(s *sandbox.Snapshot) string { return cmp.Or(s.Labels[labelTag], defaultTag) }

// hasName reports whether a snapshot has a name, which is NAME or NAME:TAG.
func hasName(s *sandbox.Snapshot, name string) bool {
	name, tag, _ := strings.Cut(name, ":")
	return name != "" && s.Labels[labelName] == name && tagOf(s) == cmp.Or(tag, defaultTag)
}

// allSnapshots returns the finished snapshots with the labels, newest first.
// Clients do not see the snapshots that belong to templates.
func (h *Handler) allSnapshots(ctx context.Context, labels map[string]string) (all []sandbox.Snapshot, err error) {
	q := sandbox.ListQuery{Labels: labels, Limit: 1000}
	for {
		page, next, err := h.service.Snapshots.ListSnapshots(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			if s.Ready && s.Labels[sandbox.LabelTemplate] == "" {
				all = append(all, s)
			}
		}
		if q.Cursor = next; next == "" {
			return all, nil
		}
	}
}

var snapshotName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,127}(:[a-z0-9][a-z0-9_.-]{0,127})?$`)
})

// shownSnapshot is a snapshot as clients see it.
type shownSnapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func toSnapshot(s *sandbox.Snapshot) shownSnapshot {
	out := shownSnapshot{SnapshotID: s.ID + ":" + tagOf(s), Names: []string{}}
	if name := s.Labels[labelName]; name != "" {
		out.Names = append(out.Names, name+":"+tagOf(s))
	}
	return out
}

func (h *Handler) snapshot(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name   string `json:"name"`
		Memory *bool  `json:"memory"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	whole := strings.ToLower(strings.TrimSpace(req.Name))
	if whole != "" && !snapshotName().MatchString(whole) {
		return invalid("name", "%.80q is not NAME or NAME:TAG", whole)
	}
	name, tag, _ := strings.Cut(whole, ":")
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	labels := map[string]string{}
	if name != "" {
		labels[labelName] = name
	}
	if tag != "" && tag != defaultTag {
		labels[labelTag] = tag
	}
	made, err := h.service.Snapshots.CreateSnapshot(r.Context(), string(s.ID), sandbox.SnapshotRequest{Memory: req.Memory == nil || *req.Memory, Labels: labels})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, toSnapshot(&made))
	return nil
}

func (h *Handler) snapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	labels := map[string]string{}
	name, tag, _ := strings.Cut(strings.ToLower(q.Get("name")), ":")
	if name != "" {
		labels[labelName] = name
	}
	all, err := h.allSnapshots(r.Context(), labels)
	if err != nil {
		return err
	}
	limit, err := pageLimit(q.Get("limit"))
	if err != nil {
		return err
	}
	out, skipping, more := []shownSnapshot{}, q.Get("nextToken"), ""
	for i := range all {
		switch s := &all[i]; {
		case tag != "" && tagOf(s) != tag:
		case q.Get("sandboxID") != "" && publicID(s.Parent) != q.Get("sandboxID"):
		case skipping != "":
			if s.ID == skipping {
				skipping = ""
			}
		case len(out) == limit:
			w.Header().Set("X-Next-Token", more)
			writeJSON(w, http.StatusOK, out)
			return nil
		default:
			out, more = append(out, toSnapshot(s)), s.ID
		}
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// removeSnapshots removes the snapshots that clients know by an id, or by a
// name, with its tag if one is given. None is CodeNotFound.
func (h *Handler) removeSnapshots(ctx context.Context, ref string) error {
	name, tag, _ := strings.Cut(ref, ":")
	all, err := h.allSnapshots(ctx, nil)
	if err != nil {
		return err
	}
	found := false
	for i := range all {
		s := &all[i]
		if s.ID != name && (name == "" || s.Labels[labelName] != name || tag != "" && tagOf(s) != tag) {
			continue
		}
		found = true
		err := h.service.Snapshots.RemoveSnapshot(ctx, s.ID)
		if sandbox.CodeOf(err) == sandbox.CodeConflict {
			return invalid("snapshot", "sandboxes use it")
		}
		if err != nil {
			return err
		}
	}
	if !found {
		return noTemplate(ref)
	}
	return nil
}

func noTemplate(ref string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: clip(ref), Message: "there is no such template"}
}

// metric is the resource usage of a sandbox at one time.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// measure returns what a sandbox consumes now. The share of the processors is
// that since it was made: nothing is sampled in between.
func (h *Handler) measure(r *http.Request, s *Sandbox) ([]metric, error) {
	if s.State != sandbox.Running {
		return []metric{}, nil
	}
	u, err := h.service.Usage(r.Context(), s.ID)
	if err != nil {
		return nil, err
	}
	m := metric{
		Timestamp: stamp(u.Sampled), TimestampUnix: u.Sampled.Unix(), CPUCount: cpuCount(s.Resources.CPUs),
		MemUsed: max(0, u.Memory), MemTotal: max(0, s.Resources.Memory), DiskUsed: max(0, u.Disk), DiskTotal: max(0, s.Resources.Disk),
	}
	if lived := u.Sampled.Sub(s.Created); lived > 0 && u.CPU > 0 {
		m.CPUUsedPct = min(100, 100*u.CPU.Seconds()/lived.Seconds()/float64(m.CPUCount))
	}
	return []metric{m}, nil
}

func (h *Handler) metrics(w http.ResponseWriter, r *http.Request) error {
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	all, err := h.measure(r, &s)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	for name, outside := range map[string]func(at, bound int64) bool{
		"start": func(at, bound int64) bool { return at < bound }, "end": func(at, bound int64) bool { return at > bound },
	} {
		if bound, err := strconv.ParseInt(q.Get(name), 10, 64); err == nil && len(all) > 0 && outside(all[0].TimestampUnix, bound) {
			all = []metric{}
		}
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

func (h *Handler) metricsOfMany(w http.ResponseWriter, r *http.Request) error {
	ids := strings.Split(r.URL.Query().Get("sandbox_ids"), ",")
	if len(ids) > maxPage {
		return invalid("sandbox_ids", "are more than %d", maxPage)
	}
	out := map[string]metric{}
	for _, public := range ids {
		r.SetPathValue("id", public)
		s, err := h.find(r.Context(), r)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			continue
		}
		var m []metric
		if err == nil {
			m, err = h.measure(r, &s)
		}
		if err != nil {
			return err
		}
		if len(m) > 0 {
			out[publicID(s.ID)] = m[0]
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"sandboxes": out})
	return nil
}
