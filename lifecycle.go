package atoll

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// change sends a request that changes the sandbox, and returns the sandbox
// after the change.
func (s *Sandbox) change(ctx context.Context, method, rest string, in any) (info sandbox.Sandbox, err error) {
	return info, s.client.conn.Call(ctx, method, s.path(rest), nil, in, &info)
}

// Stop sends SIGTERM to the commands, waits for at most grace, and stops the
// sandbox. Its files are kept for Start. If the provider cannot keep them, Stop
// returns sandbox.CodeUnsupported and changes nothing.
func (s *Sandbox) Stop(ctx context.Context, grace time.Duration) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/stop", map[string]int64{"graceMs": client.Milliseconds(grace)})
}

// Start starts a stopped sandbox with the files it had. A running sandbox is
// success.
func (s *Sandbox) Start(ctx context.Context) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/start", nil)
}

// Pause pauses the sandbox in memory or on disk. Paused on disk, it has no
// memory and no processes. The time of its lifetime does not pass while it is
// paused. It must not be in use, and cannot be used before Resume.
func (s *Sandbox) Pause(ctx context.Context, kind sandbox.PauseKind) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/pause", map[string]bool{"toDisk": kind == sandbox.PauseDisk})
}

// Resume continues a paused sandbox. A running sandbox is success.
func (s *Sandbox) Resume(ctx context.Context) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/resume", nil)
}

// Update changes limits, labels, lifetime and idle policy of the sandbox. On an
// error it changes nothing.
func (s *Sandbox) Update(ctx context.Context, c sandbox.Change) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPatch, "", c)
}

// Fork makes copies of the sandbox, each with its own name and id. A copy has
// the files of the sandbox and, if the provider can do that, its processes with
// their memory. On an error there are no copies. With opts.IdempotencyKey, a
// repeated call returns the copies that the first call made.
func (s *Sandbox) Fork(ctx context.Context, opts sandbox.ForkRequest) ([]*Sandbox, error) {
	opts.Count = max(opts.Count, 1)
	text, err := json.Marshal(opts)
	if err != nil {
		return nil, err
	}
	var out struct{ Sandboxes []sandbox.Sandbox }
	if err := s.client.once(ctx, s.path("/fork"), text, opts.IdempotencyKey, &out); err != nil {
		return nil, err
	}
	copies := make([]*Sandbox, len(out.Sandboxes))
	for i, info := range out.Sandboxes {
		copies[i] = &Sandbox{client: s.client, info: info}
	}
	return copies, nil
}

// Snapshot saves the state of the sandbox as a snapshot. The sandbox continues.
func (s *Sandbox) Snapshot(ctx context.Context, opts sandbox.SnapshotRequest) (snap sandbox.Snapshot, err error) {
	return snap, s.client.conn.Call(ctx, http.MethodPost, s.path("/snapshots"), nil, opts, &snap)
}

// GetSnapshot returns the snapshot of that name or id.
func (c *Client) GetSnapshot(ctx context.Context, ref string) (s sandbox.Snapshot, err error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return s, err
	}
	return s, c.conn.Call(ctx, http.MethodGet, "/v1/snapshots/"+ref, nil, nil, &s)
}

// Snapshots yields the snapshots that have all of the labels, newest first, and
// ends with the first error.
func (c *Client) Snapshots(ctx context.Context, labels map[string]string) iter.Seq2[sandbox.Snapshot, error] {
	return func(yield func(sandbox.Snapshot, error) bool) {
		query := url.Values{"limit": {strconv.Itoa(snapshotPage)}}
		for k, v := range labels {
			query.Add("label", k+"="+v)
		}
		for {
			var page struct {
				Snapshots []sandbox.Snapshot
				Next      string
			}
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/snapshots", query, nil, &page); err != nil {
				yield(sandbox.Snapshot{}, err)
				return
			}
			for _, s := range page.Snapshots {
				if !yield(s, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}

const snapshotPage = 200

// RemoveSnapshot removes the snapshot of that name or id. Sandboxes made from
// it are not affected.
func (c *Client) RemoveSnapshot(ctx context.Context, ref string) error {
	if err := sandbox.ValidateName(ref); err != nil {
		return err
	}
	return c.conn.Call(ctx, http.MethodDelete, "/v1/snapshots/"+ref, nil, nil, nil)
}

// PruneSnapshots removes the snapshots with all of the labels from which no
// living sandbox was made, and returns them.
func (c *Client) PruneSnapshots(ctx context.Context, labels map[string]string) ([]sandbox.Snapshot, error) {
	var out struct{ Snapshots []sandbox.Snapshot }
	return out.Snapshots, c.conn.Call(ctx, http.MethodPost, "/v1/snapshots/prune", nil, map[string]any{"labels": labels}, &out)
}
