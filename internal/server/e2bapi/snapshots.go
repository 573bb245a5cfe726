package e2bapi

import (
	"cmp"
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// defaultTag is the tag if none is given.
const defaultTag = "default"

// tagOf returns the tag that a snapshot was created with.
func tagOf(s *durable.Snapshot) string { return cmp.Or(s.Labels[labelTag], defaultTag) }

// hasName reports whether a snapshot has a name, which is NAME or NAME:TAG.
func hasName(s *durable.Snapshot, name string) bool {
	name, tag, _ := strings.Cut(name, ":")
	return name != "" && s.Labels[labelName] == name && tagOf(s) == cmp.Or(tag, defaultTag)
}

// all returns the finished snapshots with the labels, newest first.
// Clients do not see the snapshots that belong to templates.
func (h *snapshotAPI) all(ctx context.Context, labels map[string]string) (all []durable.Snapshot, err error) {
	q := sandbox.ListQuery{Labels: labels, Limit: 1000}
	for {
		page, next, err := h.snapshots.ListSnapshots(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			if s.Ready && s.Labels[durable.LabelTemplate] == "" {
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

// snapshotInfo is a snapshot as clients see it.
type snapshotInfo struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func toSnapshot(s *durable.Snapshot) snapshotInfo {
	out := snapshotInfo{SnapshotID: s.ID + ":" + tagOf(s), Names: []string{}}
	if name := s.Labels[labelName]; name != "" {
		out.Names = append(out.Names, name+":"+tagOf(s))
	}
	return out
}

// snapshotAPI serves snapshots. To E2B's clients a snapshot is a template.
type snapshotAPI struct {
	finder
	snapshots Snapshots
}

func (h *snapshotAPI) create(w http.ResponseWriter, r *http.Request) error {
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
	for _, k := range []string{labelUser, labelDir} {
		if v := s.Labels[k]; v != "" {
			labels[k] = v
		}
	}
	made, err := h.snapshots.CreateSnapshot(r.Context(), string(s.ID), durable.SnapshotRequest{Memory: req.Memory == nil || *req.Memory, Labels: labels})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, toSnapshot(&made))
	return nil
}

func (h *snapshotAPI) list(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	labels := map[string]string{}
	name, tag, _ := strings.Cut(strings.ToLower(q.Get("name")), ":")
	if name != "" {
		labels[labelName] = name
	}
	all, err := h.all(r.Context(), labels)
	if err != nil {
		return err
	}
	limit, err := pageLimit(q.Get("limit"))
	if err != nil {
		return err
	}
	out, skipping, more := []snapshotInfo{}, q.Get("nextToken"), ""
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

// removeNamed removes the snapshots with an id or a name, and with a tag if one
// is given. If there are none, the error is CodeNotFound.
func (h *snapshotAPI) removeNamed(ctx context.Context, ref string) error {
	name, tag, _ := strings.Cut(ref, ":")
	all, err := h.all(ctx, nil)
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
		err := h.snapshots.RemoveSnapshot(ctx, s.ID)
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
