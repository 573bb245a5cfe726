package runloop

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// saver saves the disks of running sandboxes. Metadata marks snapshots as ours.
type saver struct{ p *Provider }

const disks = "/v1/devboxes/disk_snapshots"

// saved is the service's description of a snapshot.
type saved struct {
	ID       string            `json:"id"`
	Created  int64             `json:"create_time_ms"`
	Size     int64             `json:"size_bytes"`
	Metadata map[string]string `json:"metadata"`
}

// The states of a snapshot.
const (
	complete  = "complete"
	ongoing   = "in_progress"
	discarded = "deleted"
)

func (s saved) describe(status string) hosted.Saved {
	return hosted.Saved{
		Data: s.ID, ID: s.Metadata[hosted.MetaID], Kind: driver.SnapshotFilesystem, Status: status, Ready: status == complete, Coming: status == ongoing,
		Size: max(1, s.Size), Created: time.UnixMilli(s.Created),
	}
}

func at(snapshot, rest string) string { return disks + "/" + url.PathEscape(snapshot) + rest }

// usableID matches ids of the service that are valid in a path.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Owns implements hosted.Saver.
func (saver) Owns(data string) bool { return usableID.MatchString(data) }

// list returns the snapshots of this directory. With an ID, only that one.
func (k saver) list(ctx context.Context, id string) ([]saved, error) {
	scope, err := k.p.Scope()
	if err != nil {
		return nil, err
	}
	q := url.Values{"limit": {"1000"}, "include_total_count": {"false"}}
	for name, value := range hosted.Wanted(scope, sandbox.ID(id)) {
		q.Set("metadata["+name+"]", value)
	}
	return hosted.Chained(&k.p.api.Client, func(cursor string) (found []saved, next string, err error) {
		if cursor != "" {
			q.Set("starting_after", cursor)
		}
		var page struct {
			Items []saved `json:"snapshots"`
			More  bool    `json:"has_more"`
		}
		err = k.p.api.Call(ctx, http.MethodGet, disks+"?"+q.Encode(), nil, &page)
		if err == nil && page.Items == nil {
			err = k.p.ProtocolError("the service's list is invalid")
		}
		for _, s := range page.Items {
			if next = s.ID; s.Metadata[hosted.MetaScope] == scope && (id == "" || s.Metadata[hosted.MetaID] == id) {
				found = append(found, s)
			}
		}
		if !page.More {
			next = ""
		}
		return found, next, err
	})
}

// Saved implements hosted.Saver. Lists do not say whether snapshots are complete.
func (k saver) Saved(ctx context.Context, id string) (found []hosted.Saved, err error) {
	all, err := k.list(ctx, id)
	for _, s := range all {
		now := s.describe(complete)
		if id != "" && err == nil {
			now, err = k.Referred(ctx, s.ID)
			now.ID = id // one that is not complete has no metadata there
		}
		if errors.Is(err, hosted.ErrNone) { // removed meanwhile
			err = nil
			continue
		}
		found = append(found, now)
	}
	return found, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	var said struct {
		Status   string `json:"status"`
		Problem  string `json:"error_message"`
		Snapshot saved  `json:"snapshot"`
	}
	err := k.p.api.Call(ctx, http.MethodGet, at(data, "/status"), nil, &said)
	switch {
	case missing(err), err == nil && said.Status == discarded:
		err = hosted.ErrNone
	case err == nil && said.Status == complete && said.Snapshot.ID != data:
		err = k.p.ProtocolError("the service answers for another snapshot")
	}
	s := said.Snapshot.describe(said.Status)
	if s.Data = data; said.Problem != "" {
		s.Status += ": " + k.p.api.Clip(said.Problem)
	}
	return s, err
}

// Save implements hosted.Saver. It requests the snapshot once. If the answer is
// lost, it looks for the snapshot by its metadata.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, _ *hosted.SavedRecord) (out hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return out, err
	}
	var s saved
	body := map[string]any{"name": "atoll-" + id, "metadata": hosted.Wanted(scope, sandbox.ID(id))}
	err = k.p.api.Call(ctx, http.MethodPost, path(in.Sandbox, "/snapshot_disk_async"), body, &s)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return out, err
	}
	return k.p.Await(ctx, err, func() (hosted.Saved, error) {
		if s.ID == "" {
			all, err := k.list(ctx, id)
			if err == nil && len(all) == 0 {
				err = hosted.ErrNone
			}
			if err != nil {
				return out, err
			}
			s = all[0]
		}
		return k.Referred(ctx, s.ID)
	})
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error {
	return hosted.Ended(ctx, func() error {
		_, err := k.Referred(ctx, data)
		return err
	}, func() error {
		err := k.p.api.Call(ctx, http.MethodPost, at(data, "/delete"), struct{}{}, nil)
		if missing(err) {
			err = nil
		}
		return err
	}, func() error { return k.p.ProtocolError("the service does not remove the snapshot") })
}

// Copy implements hosted.Saver.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	return k.p.make(ctx, spec, creation{Snapshot: s.Data})
}
